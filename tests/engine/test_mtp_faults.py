"""Planted faults of draft state: the comparison of state sees them, the text does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.state.hidden import HiddenState
from tests.engine.mtp_reference import StagedMtp, assert_draft_state, luck, workbench
from tests.engine.tiny import PROMPT, greedy, reference

COUNT = 40
Plant = Callable[[pytest.MonkeyPatch], None]


def nothing(patch: pytest.MonkeyPatch) -> None:
    """No fault."""


def recursive_rows_stand(patch: pytest.MonkeyPatch) -> None:
    """Rounds leave the rows of the chain, made from its own outputs, as if they were true."""
    absorb = MtpDrafter.absorb

    def faulty(self: Any, lanes: Any, inputs: Any, hidden: Any, emitted: Any, plan: Any) -> None:
        if lanes.prefilling:
            absorb(self, lanes, inputs, hidden, emitted, plan)
        else:
            self.hidden.write(lanes, lanes.cache_rows(plan.width), self.head.condense(hidden))

    patch.setattr(MtpDrafter, "absorb", faulty)


def last_row_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """The row of a round's last accepted draft keeps what it had."""
    absorb = MtpDrafter.absorb

    def faulty(self: Any, lanes: Any, inputs: Any, hidden: Any, emitted: Any, plan: Any) -> None:
        row, slot = int(lanes.consumed()[0] + emitted[0]) - 2, lanes.slots[0]
        caches = list(self.cache.tensors().values())
        before = [rows[slot, :, row].clone() for rows in caches]
        absorb(self, lanes, inputs, hidden, emitted, plan)
        if not lanes.prefilling and int(emitted[0]) > 1:
            for rows, value in zip(caches, before, strict=True):
                rows[slot, :, row] = value

    patch.setattr(MtpDrafter, "absorb", faulty)


def hidden_rows_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    """Rounds do not store the target's hidden rows, so pairs take older ones."""
    store = HiddenState.store

    def faulty(self: HiddenState, lanes: Any, hidden: Tensor, *rest: Any) -> None:
        if lanes.prefilling:
            store(self, lanes, hidden, *rest)

    patch.setattr(HiddenState, "store", faulty)


def pairs_are_one_off(patch: pytest.MonkeyPatch) -> None:
    """A token is paired with its own hidden row in place of the one before."""
    write = MtpDrafter._write

    def faulty(self: Any, lanes: Any, hidden: Any, tokens: Any, plan: Any) -> None:
        write(self, lanes, hidden if lanes.prefilling else hidden.roll(-1, 1), tokens, plan)

    patch.setattr(MtpDrafter, "_write", faulty)


FAULTS = (
    recursive_rows_stand,
    last_row_is_skipped,
    hidden_rows_are_not_stored,
    pairs_are_one_off,
)


@pytest.mark.parametrize("plant", [nothing, *FAULTS])
def test_stale_draft_state_is_seen_in_the_state_and_not_in_the_text(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    model = reference()
    truth = {0: greedy(model, PROMPT, COUNT + 8)}
    made, head = workbench(model)
    assert isinstance(made.executor.drafter, StagedMtp)
    made.executor.drafter.script = luck(truth, lambda slot, done: 3, wrong=False)
    made.open(0, budget=COUNT)
    emitted: list[int] = []
    for k in itertools.cycle((5, 7)):
        if int(made.pool.finish[0]):
            break
        emitted += made.play((0,), k)[0].tokens

    assert truth[0][:COUNT] == emitted
    if plant is nothing:
        assert_draft_state(made, head, 0, [*PROMPT, *emitted])
        return
    with pytest.raises(AssertionError, match="not close"):
        assert_draft_state(made, head, 0, [*PROMPT, *emitted])
