"""Whole rounds with the C steps and without: the same frames, the same states, the same text."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from flarechat.engine import kernels
from flarechat.engine.frame import LaneRecord
from flarechat.engine.kernels import cpu
from flarechat.engine.plan import LawShape
from flarechat.protocol import Sampling
from tests.engine.mtp_reference import kin, kin_tensors, workbench
from tests.engine.tiny import PROMPTS, VOCABULARY, Bench, head_record

if cpu.library() is None:
    pytest.skip(f"no C kernels: {cpu.reason()}", allow_module_level=True)

RECORD = head_record(layers=2, inner=24, taps=(1, 2, 1), vocabulary=range(1, VOCABULARY, 2))
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "drawn": Sampling(temperature=0.8, top_k=12, top_p=0.9),
    "penalised": Sampling(
        temperature=0.9, top_k=30, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.1,
        frequency_penalty=0.1,
    ),
    "whole": Sampling(temperature=0.9, top_p=0.9),
    "unfiltered": Sampling(temperature=1.0),
}  # fmt: skip
WIDTHS = (0, 3, 7, 1, 2, 5)


def play(
    sampling: Sampling, acceptance: str, *, in_torch: bool
) -> tuple[Bench, list[list[LaneRecord]]]:
    """Three requests, one of which ends soon and stays in its rounds; one prompt in pieces."""
    with kernels.in_torch() if in_torch else contextlib.nullcontext():
        made, _ = workbench(kin(), RECORD, kin_tensors(RECORD))
        for slot, match in enumerate((acceptance != "ratio", acceptance == "match")):
            made.open(slot, PROMPTS[slot], sampling=sampling, match=match, chunk=5, budget=60)
        made.open(2, PROMPTS[2], sampling=sampling, seed=11, match=True, budget=5)
        law = LawShape.of([sampling], VOCABULARY)
        frames = [
            made.play(slots, k, law=law, acceptance=acceptance)
            for turn, k in enumerate(WIDTHS * 2)
            for slots in [((0, 1, 2), (1, 0))[turn % 2]]
        ]
    return made, frames


@pytest.mark.parametrize("acceptance", ["ratio", "match", "mixed"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_rounds_say_the_same_with_the_library_and_without(name: str, acceptance: str) -> None:
    plain, expected = play(SAMPLINGS[name], acceptance, in_torch=True)
    made, frames = play(SAMPLINGS[name], acceptance, in_torch=False)

    assert expected == frames
    assert any(record.accepted for frame in frames for record in frame)
    for key, value in plain.pool.tensors().items():
        assert torch.equal(value, made.pool.tensors()[key]), key
    theirs: Any = plain.executor.drafter
    own: Any = made.executor.drafter
    assert torch.equal(theirs.hidden.rows, own.hidden.rows)
