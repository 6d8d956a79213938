"""Captured rounds on a GPU: the eager rounds, bit for bit, and not a byte allocated on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flarechat.engine.executors.graph import GraphExecutor
from flarechat.protocol import Sampling, Speculation
from tests.engine.conftest import Desk
from tests.engine.learned import write_head
from tests.engine.test_graph import assert_same_states, told

pytestmark = pytest.mark.cuda
Pair = Callable[..., tuple[Desk, Desk]]
GREEDY = Sampling(temperature=0, seed=4)
WARM = Sampling(temperature=0.9, top_k=20, top_p=0.95, repetition_penalty=1.2, seed=5)
WHOLE = Sampling(temperature=1.1, top_p=0.9, presence_penalty=0.3, seed=6)


@pytest.fixture
def pair(tiny_gguf: Path, tmp_path: Path) -> Pair:
    """Engines on the GPU that differ in the executor alone: eager and graph."""
    head = write_head(tmp_path, tiny_gguf, tmp_path)

    def make(**boot: Any) -> tuple[Desk, Desk]:
        fields: dict[str, Any] = {"dtype": "float32", "mtp_file": str(head), **boot}
        made = [
            Desk(tiny_gguf, tmp_path, device="cuda", executor=name, **fields)
            for name in ("eager", "graph")
        ]
        return made[0], made[1]

    return make


def poison(made: Desk) -> Callable[[], None]:
    """Fills what captures left free of their pool with NaN, at every call."""
    executor = made.engine.executor
    assert isinstance(executor, GraphExecutor)

    def filled() -> tuple[torch.Tensor, ...]:
        sizes = [1 << power for power in range(9, 24)]
        return tuple(torch.full((n,), float("nan"), device="cuda") for n in sizes for _ in "ab")

    with executor.capture.warm():
        filled()
    replay, _ = executor.capture.capture(filled)
    return replay


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM, WHOLE])
def test_every_width_plays_the_eager_rounds(pair: Pair, sampling: Sampling, dtype: str) -> None:
    eager, graph = pair(dtype=dtype)
    spoil = poison(graph)
    play = graph.engine.executor.play

    def spoiled(*args: Any) -> Any:
        spoil()
        return play(*args)

    graph.engine.executor.play = spoiled  # type: ignore[method-assign]
    for depth in range(8):
        how = Speculation(draft_tokens=depth, adaptive=False)
        fields = {"sampling": sampling, "max_tokens": 40, "speculation": how, "stop": ("never",)}
        for made in (eager, graph):
            made.ask("hello the", **fields)

    for n in range(1, 9):
        assert told(eager.rounds(f"r{n}")) == told(graph.rounds(f"r{n}"))
    assert_same_states(eager, graph)


def test_lanes_branches_and_restored_turns_play_the_eager_rounds(pair: Pair) -> None:
    eager, graph = pair(lanes=4)
    how = Speculation(adaptive=False, draft_tokens=3)
    for made in (eager, graph):
        for turn in ("hello", "hello the hello"):
            for seed in range(4):
                sampling = Sampling(temperature=0.9, top_k=20, seed=seed)
                made.engine.submit(
                    made.request(
                        turn, sampling=sampling, max_tokens=20, speculation=how, stop=("never",)
                    )
                )
            made.run()

    for n in range(1, 9):
        assert told(eager.rounds(f"r{n}")) == told(graph.rounds(f"r{n}"))
    assert graph.finished("r2").usage.restored_tokens > 0
    assert_same_states(eager, graph)


def test_a_thousand_rounds_allocate_nothing(pair: Pair) -> None:
    _, made = pair()
    made.ask("hello", sampling=WARM, max_tokens=20)
    for n in range(50):
        how = Speculation(draft_tokens=n % 4, history_drafts=False)
        request = made.request("hello", sampling=WARM, max_tokens=100, speculation=how)
        made.engine.submit(request)
        while not made.engine.playing:
            made.engine.step()
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()
        for _ in range(20):  # rounds of four tokens at most: none ends the answer
            made.engine.step()
        torch.cuda.synchronize()
        after = torch.cuda.memory_stats()
        for name in ("allocation.all.allocated", "segment.all.allocated", "num_alloc_retries"):
            assert before[name] == after[name], name
        made.run()
