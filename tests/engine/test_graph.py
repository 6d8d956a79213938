"""The graph executor over a seam that replays on the CPU: frames and states are the eager ones'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flarechat.engine import kernels
from flarechat.engine.executors import graph
from flarechat.engine.executors.graph import FixedLanes
from flarechat.engine.frame import read
from flarechat.engine.plan import LawShape, Plan
from flarechat.engine.slot import SCRATCH_ROWS, Lanes
from flarechat.protocol import Request, Round, Sampling, Speculation
from tests.engine.captures import HostCapture, captured, graph_of
from tests.engine.conftest import Desk
from tests.engine.learned import write_head
from tests.engine.test_flights import schedule
from tests.engine.test_schedules import (
    assert_played_as_alone,
    learned_of,
    play,
)

Make = Callable[..., Desk]
GREEDY = Sampling(temperature=0, seed=4)
WARM = Sampling(temperature=0.9, top_k=20, top_p=0.95, repetition_penalty=1.2, seed=5)
WHOLE = Sampling(temperature=1.1, top_p=0.9, presence_penalty=0.3, seed=6)


def states_of(desk: Desk) -> dict[str, torch.Tensor]:
    """Every tensor that slots own, by name; of caches the rows before those for scratch."""
    executor = desk.engine.executor
    parts = [desk.engine.pool.tensors()]
    parts += [s.tensors() for s in executor.target.states()]  # type: ignore[attr-defined]
    parts += [s.tensors() for s in desk.engine.drafter.states()]
    named = {f"{n}.{name}": t for n, part in enumerate(parts) for name, t in part.items()}
    rows = desk.engine.pool.context + 2 * SCRATCH_ROWS
    for name, t in named.items():
        for dim in range(1, t.dim()):
            if t.shape[dim] == rows:
                named[name] = t.narrow(dim, 0, desk.engine.pool.context)
    return named


def assert_same_states(ours: Desk, theirs: Desk) -> None:
    """What slots are bound to, and the rows of what they hold: of caches, those that can be
    reached (of a head's, those that can be relied on)."""
    left, right = states_of(ours), states_of(theirs)
    assert left.keys() == right.keys()
    for slot in range(ours.engine.pool.slots):
        held = ours.engine.residents.held(slot)
        assert held == theirs.engine.residents.held(slot)
        ready = min(learned_of(ours.engine).ready[slot], len(held) - 1)
        for name, value in left.items():
            one, other = value[slot], right[name][slot]
            if ".keys" in name or ".values" in name:
                rows = len(held) if name.startswith("1.") else ready
                one, other = one[:, :rows], other[:, :rows]
            elif ".hidden" in name:
                one, other = one[: len(held)], other[: len(held)]
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4, msg=f"{name} {slot}")


def told(rounds: list[Round]) -> list[tuple[object, ...]]:
    return [(r.width, r.offered, r.accepted, r.tokens, r.sources) for r in rounds]


def test_warming_up_and_capturing_touch_nothing(learned_desk: Make) -> None:
    made = learned_desk(lanes=2)
    generator = torch.Generator().manual_seed(3)
    for value in states_of(made).values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator))
    before = {name: value.clone() for name, value in states_of(made).items()}
    executor = graph_of(made)

    assert executor.capture.captured == len(executor.catalogue.all()) + 1  # type: ignore[attr-defined]
    for name, value in states_of(made).items():
        assert torch.equal(before[name], value), name


@pytest.mark.parametrize("sampling", [GREEDY, WARM, WHOLE])
@pytest.mark.parametrize("depth", [0, 2, 7])
def test_every_width_plays_the_eager_rounds(
    learned_desk: Make, depth: int, sampling: Sampling
) -> None:
    how = Speculation(draft_tokens=depth, adaptive=False)
    fields = {"sampling": sampling, "max_tokens": 40, "speculation": how, "stop": ("never said",)}
    eager, graph = learned_desk(), captured(learned_desk())
    for made in (eager, graph):
        for text in ("hello the", "hello the hello"):
            made.ask(text, **fields)

    for request in ("r1", "r2"):
        assert told(eager.rounds(request)) == told(graph.rounds(request))
        assert eager.finished(request).text == graph.finished(request).text
    assert_same_states(eager, graph)


def test_four_lanes_of_every_kind_play_the_eager_rounds(learned_desk: Make) -> None:
    hows = [Speculation(draft_tokens=k, adaptive=False, mtp=k != 2) for k in (7, 3, 2, 0)]
    samplings = [GREEDY, WARM, WHOLE, Sampling(temperature=0.8, top_k=5, seed=1)]
    eager, graph = learned_desk(lanes=4), captured(learned_desk(lanes=4))
    for made in (eager, graph):
        for text, how, sampling in zip(("hello", "the", "a b a b", "l"), hows, samplings,
                                       strict=True):  # fmt: skip
            made.engine.submit(
                made.request(
                    text, sampling=sampling, max_tokens=30, speculation=how, stop=("never",)
                )
            )
        made.run()

    for request in ("r1", "r2", "r3", "r4"):
        assert told(eager.rounds(request)) == told(graph.rounds(request))
    assert_same_states(eager, graph)


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("seed", [20, 21])
def test_any_schedule_says_what_plain_decoding_says(
    learned_desk: Make, monkeypatch: pytest.MonkeyPatch, seed: int, lanes: int
) -> None:
    monkeypatch.setattr("flarechat.engine.engine.PREFILL_CHUNK", 5)
    together = captured(learned_desk(lanes=lanes))
    assert_played_as_alone(together, play(together, schedule(seed)), learned_desk)


def test_log_probabilities_come_from_the_logits_that_the_replay_left(learned_desk: Make) -> None:
    how = Speculation(draft_tokens=3, adaptive=False)
    rounds = []
    for made in (learned_desk(), captured(learned_desk())):
        _, played = made.ask("hello the", sampling=WARM, max_tokens=30, speculation=how, logprobs=2)
        rounds.append(played)
    eager, graph = ([p for r in played for p in r.logprobs] for played in rounds)

    assert [p.id for p in eager] == [p.id for p in graph]
    assert [[t.id for t in p.top] for p in eager] == [[t.id for t in p.top] for p in graph]
    for ours, theirs in zip(eager, graph, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)


def test_a_frame_is_the_hosts_until_the_one_after_the_next(learned_desk: Make) -> None:
    made = captured(learned_desk(), learned=True)
    made.ask("hello", sampling=GREEDY, max_tokens=3)
    executor, pool = made.engine.executor, made.engine.pool
    pool.budget[0] = 100
    pool.start(0)
    lanes, plan = Lanes(pool, (0,)), Plan(0, pool.context + SCRATCH_ROWS, LawShape(1), "match")
    first, second = executor.play(lanes, plan), executor.play(lanes, plan)
    tokens = [read(frame)[0].tokens for frame in (first, second)]
    third = executor.play(lanes, plan)

    assert tokens[1] == read(second)[0].tokens
    assert first.record.data_ptr() == third.record.data_ptr() != second.record.data_ptr()
    assert all(len(t) == 1 for t in tokens)
    assert sum(mark.waited for mark in executor.capture.marks) >= 3  # type: ignore[attr-defined]


def test_nothing_is_captured_after_the_start(learned_desk: Make) -> None:
    capture = HostCapture()
    made = captured(learned_desk(lanes=2), capture=capture)
    before = capture.captured
    for k in range(8):
        made.ask("hello the", sampling=WHOLE, max_tokens=9, logprobs=k % 2,
                 speculation=Speculation(draft_tokens=k, adaptive=k % 2 == 0))  # fmt: skip

    assert before == capture.captured
    assert capture.replayed > 20


def test_a_copied_slot_holds_what_the_other_held(learned_desk: Make) -> None:
    made = captured(learned_desk(lanes=4))
    generator = torch.Generator().manual_seed(3)
    named = {n: t for n, t in states_of(made).items() if not n.startswith("0.")}
    for source, target in ((0, 2), (3, 0), (1, 2)):
        for value in named.values():
            value.copy_(torch.rand(value.shape, generator=generator))
        before = {name: value.clone() for name, value in named.items()}
        made.engine.executor.copy(source, target, 12)

        others = [slot for slot in range(4) if slot != target]
        for name, value in named.items():
            assert torch.equal(before[name][source], value[target]), name
            assert torch.equal(before[name][others], value[others]), name


def test_the_capacity_bounds_what_is_offered(learned_desk: Make) -> None:
    made = learned_desk(lanes=4, speculative_token_capacity=12)
    made = captured(made, capacity=12)
    fixed = Speculation(adaptive=False)
    for text in ("hello", "the", "a", "in"):
        request = made.request(text, sampling=GREEDY, max_tokens=12, speculation=fixed)
        made.engine.submit(request)
    made.run()
    alone, rounds = made.ask("hello", sampling=GREEDY, max_tokens=40, speculation=fixed)

    widths = {r.width for n in range(1, 5) for r in made.rounds(f"r{n}") if r.lanes > 2}
    assert 3 == max(widths)
    assert 8 == max(r.width for r in rounds)
    assert "length" == alone.reason


def test_two_rounds_are_under_way(learned_desk: Make) -> None:
    made = captured(learned_desk())
    request = Request(
        id="q", messages=made.request("hello").messages, sampling=GREEDY, max_tokens=40,
        speculation=Speculation(history_drafts=False, adaptive=False),
    )  # fmt: skip
    made.engine.submit(request)
    out = 0
    while made.engine.busy:
        made.engine.step()
        out = max(out, len(made.engine.player.flights))
    assert 1 == out  # one is left under way when a step ends


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
def test_what_is_captured_knows_no_slot_numbers(
    desk: Make, tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(lanes: FixedLanes) -> tuple[int, ...]:
        raise AssertionError("a captured pass asked for slot numbers")

    monkeypatch.setattr(graph.FixedLanes, "slots", property(asked))
    monkeypatch.setattr(graph.GraphExecutor, "prepare", lambda self, progress: None)
    head = write_head(tmp_path, tiny_gguf, tmp_path)
    made = desk(mtp_file=str(head))
    executor, full = graph_of(made), made.engine.pool.context + SCRATCH_ROWS
    with kernels.interpreted(), torch.inference_mode():
        for captured_plan in (
            executor.catalogue.prefill_for(2, Plan(1, full)),
            executor.catalogue.round_for(1, Plan(2, full, LawShape(20), drafting="both")),
        ):
            assert captured_plan in executor.catalogue.all()
            executor._work(captured_plan)()

    with pytest.raises(AssertionError, match="slot numbers"), torch.inference_mode():
        executor._work(captured_plan)()


def test_the_start_tells_what_is_compiled_and_captured(learned_desk: Make) -> None:
    told_of: list[tuple[str, int, int]] = []
    executor = graph_of(learned_desk(), told=lambda *step: told_of.append(step))
    total = len(executor.catalogue.all())

    assert [("kernels", n, total) for n in range(total)] == told_of[:total]
    assert [("graphs", n + 1, total) for n in range(total)] == told_of[total:]
