"""The whole page by kernels against the page in plain torch: the same frames, states as near as
sums in another order are."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from flarechat.engine import kernels
from flarechat.engine.frame import LaneRecord
from flarechat.engine.plan import LawShape
from flarechat.protocol import Sampling
from tests.engine.kernels.slots import references as references
from tests.engine.mtp_reference import assert_near, kin, kin_tensors, workbench
from tests.engine.test_round import NoHostSync
from tests.engine.tiny import CONTEXT, PROMPTS, VOCABULARY, Bench, head_record

RECORD = head_record(layers=2, inner=24, taps=(1, 2, 1), vocabulary=range(1, VOCABULARY, 2))
DRAWN = Sampling(temperature=0.8, top_k=12, top_p=0.9)
ROUNDS = (((0, 1), 2), ((2, 0), 0), ((0, 1, 2), 3))


def play(*, by_kernels: bool) -> tuple[Bench, list[list[LaneRecord]]]:
    """Three requests, one of which ends soon and stays in its rounds; one prompt in pieces."""
    with kernels.interpreted() if by_kernels else contextlib.nullcontext():
        made, _ = workbench(kin(), RECORD, kin_tensors(RECORD))
        made.open(0, PROMPTS[0], sampling=DRAWN, match=False, chunk=5)
        made.open(1, PROMPTS[1], budget=3)
        made.open(2, (PROMPTS[2] * 12)[:70], sampling=DRAWN, seed=11)
        law = LawShape.of([DRAWN], VOCABULARY)
        frames = [made.play(slots, k, law=law, acceptance="mixed") for slots, k in ROUNDS]
    return made, frames


def states(made: Bench) -> dict[str, torch.Tensor]:
    """Everything a slot owns, scratch rows apart."""
    drafter: Any = made.executor.drafter
    caches = {"target": made.target.kv, "head": drafter.cache, "hidden": drafter.hidden}
    named = {f"{n}.{k}": t for n, cache in caches.items() for k, t in cache.tensors().items()}
    return {n: t[..., :CONTEXT, :] for n, t in named.items()}


def test_the_page_by_kernels_is_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, expected = play(by_kernels=False)
    # A prompt of 69 tokens is more rows than go to the kernels for few.
    monkeypatch.setattr(kernels, "FEW", 32)
    made, frames = play(by_kernels=True)

    assert expected == frames
    assert any(record.accepted for frame in frames for record in frame)
    for name, value in plain.pool.tensors().items():
        assert torch.equal(value, made.pool.tensors()[name]), name
    own = states(made)
    for name, value in states(plain).items():
        assert_near(own[name], value)


@pytest.mark.parametrize("few", [1, 128])
def test_kernels_ask_for_no_slots_numbers_and_wait_for_nothing(
    few: int, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels themselves do nothing here; the interpreter reads what a GPU would not."""
    from triton.runtime.interpreter import GridExecutor

    from flarechat.engine.executors.eager import EagerExecutor
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes

    made, _ = workbench(model, RECORD)
    for slot in (0, 1):
        made.open(slot, PROMPTS[slot], sampling=DRAWN)
    lanes = Lanes(made.pool, (0, 1))
    assert lanes.index is not None
    drafter: Any = made.executor.drafter
    monkeypatch.setattr(kernels, "FEW", few)
    monkeypatch.setattr(GridExecutor, "__call__", lambda self, *args, **kwargs: None)
    monkeypatch.setattr(lanes, "slots", None)
    monkeypatch.setattr(type(lanes), "__len__", lambda self: 2)
    assert isinstance(made.executor, EagerExecutor)
    with kernels.interpreted(), NoHostSync(), torch.no_grad():
        hidden, _ = made.target.verify(lanes, torch.ones(2, 3, dtype=torch.int64), Plan(2, CONTEXT))
        drafter.absorb(lanes, torch.ones(2, 3, dtype=torch.int64), hidden,
                       torch.ones(2, dtype=torch.int64), Plan(2, CONTEXT))  # fmt: skip
