"""The last round: what it left, by which the host has it end sooner than it did.

Owns the order in which a lane is taken back to where it stood and given fewer of its rows again.
All of it is plain calls, whoever played the round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flarechat.engine.accept import RUNNING, clip
from flarechat.engine.frame import (
    ACCEPTED,
    EMITTED,
    FINISH,
    HEADER,
    OFFERED,
    LaneRecord,
    Logprobs,
    lane_record,
    pack,
)
from flarechat.engine.redraw import mask_of, redrawn
from flarechat.engine.slot import Lanes

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.contracts import Drafter, Target
    from flarechat.engine.plan import Plan


class LastRound:
    """A round over `lanes` whose pass over inputs [B, W] gave hidden [B, W, F] and logits
    [B, W, V]; `record` is its frame's, and the log-probabilities are those that the host reads. The
    pass of one that was `recalled` was made before."""

    def __init__(
        self, lanes: Lanes, plan: Plan, record: Tensor, passed: tuple[Tensor, Tensor, Tensor],
        logprobs: Logprobs | None = None, *, recalled: bool = False,
    ) -> None:  # fmt: skip
        self.lanes, self.plan, self.record, self.logprobs = lanes, plan, record, logprobs
        self.inputs, self.hidden, self.logits = passed
        self.recalled = recalled
        self._own = False

    def redraw(self, slot: int, row: int, legal: bytes) -> int:
        """As Executor.redraw."""
        lane, own, numbers = self._lane(slot)
        emitted, tokens = numbers[EMITTED], self._tokens(lane)
        assert row < emitted, f"row {row} of {emitted} was not emitted"
        mask = mask_of(legal, self.logits.shape[-1])
        self._rewind(lane, own, tokens[:, :emitted])
        logits = self.logits[lane : lane + 1, row : row + 1]
        token = redrawn(logits, own, tokens[:, :row], self.plan.law, mask)
        finish = tokens.new_full((1,), numbers[FINISH])
        own.advance(tokens[:, :emitted], tokens.new_full((1,), emitted), finish)
        return token

    def amend(
        self, target: Target, drafter: Drafter, slot: int, kept: int, token: int | None
    ) -> LaneRecord:
        """As Executor.amend."""
        lane, own, numbers = self._lane(slot)
        emitted, accepted, tokens = numbers[EMITTED], numbers[ACCEPTED], self._tokens(lane)
        assert (token is not None) <= kept <= emitted, f"{kept} of {emitted} tokens cannot be kept"
        self._rewind(lane, own, tokens[:, :emitted])
        if kept < emitted:
            assert not (self.recalled and kept == 0), "a pass that was recalled cannot be undone"
            self._step_back(target, drafter, lane, own, kept)
        if token is not None:
            tokens[:, kept - 1] = token
            accepted = min(accepted, kept - 1)
            self._tell(lane, kept - 1, token)
        count, finish = tokens.new_zeros(1), tokens.new_full((1,), RUNNING)
        if kept:
            count, finish = clip(tokens[:, :kept], count + kept - 1, own)
            own.advance(tokens[:, :kept], count, finish)
        offered, kept_drafts = (tokens.new_full((1,), n) for n in (numbers[OFFERED], accepted))
        self._write(lane, pack(own, offered, kept_drafts, count, finish, tokens))
        return lane_record(self.record[lane].tolist())

    def _lane(self, slot: int) -> tuple[int, Lanes, list[int]]:
        """The slot's lane, alone, and what its record says."""
        lane = self.lanes.slots.index(slot)
        return lane, Lanes(self.lanes.pool, (slot,)), self.record[lane].tolist()

    def _tokens(self, lane: int) -> Tensor:
        return self.record[lane : lane + 1, HEADER:].clone()

    def _rewind(self, lane: int, own: Lanes, emitted: Tensor) -> None:
        """The lane's columns as they were before the round, which emitted these tokens."""
        pool, (slot,), count = own.pool, own.slots, emitted.shape[1]
        pool.consumed[slot] -= count
        pool.generated[slot] -= count
        pool.pending[slot] = self.inputs[lane, 0]
        pool.finish[slot] = RUNNING
        ones = torch.ones_like(emitted[0], dtype=pool.counts.dtype)
        pool.counts[slot].index_add_(0, emitted[0], -ones)

    def _step_back(
        self, target: Target, drafter: Drafter, lane: int, own: Lanes, kept: int
    ) -> None:
        """All states as they are after `kept` rows of the pass."""
        part, rows = slice(lane, lane + 1), self.inputs.new_full((1,), kept)
        target.amend(own, self.inputs[part], rows, self.plan)
        drafter.amend(own, self.hidden[part], rows, self.plan)

    def _tell(self, lane: int, row: int, token: int) -> None:
        """The log-probability of another token."""
        if self.logprobs is not None:
            logits = self.logits[lane, row].float()
            self.logprobs.chosen[lane, row] = logits[token] - logits.logsumexp(-1)

    def _write(self, lane: int, record: Tensor) -> None:
        """The lane's record is another; the frame that was handed out stays what it was."""
        if not self._own:
            self.record, self._own = self.record.clone(), True
        self.record[lane] = record[0]
