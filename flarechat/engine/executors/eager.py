"""The eager executor: call the page as it stands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flarechat.engine.executors.last import LastRound
from flarechat.engine.executors.passes import Overheard, Recalled
from flarechat.engine.round import play_round

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.contracts import Drafter, Target
    from flarechat.engine.frame import Frame, LaneRecord
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes
    from flarechat.engine.staging import Staging


class EagerExecutor:
    """Plays rounds and prefill chunks by plain calls, on any device.

    `staging` is what the drafter stages in; on the CPU it need not be given.
    """

    name, depth = "eager", 1

    def __init__(self, target: Target, drafter: Drafter, staging: Staging | None = None) -> None:
        self.target, self.drafter, self.staging = target, drafter, staging
        self._overheard = Overheard(target)
        self._last: LastRound | None = None

    @torch.inference_mode()
    def play(self, lanes: Lanes, plan: Plan) -> Frame:
        """Run one round."""
        if self.staging is not None:
            self.staging.upload()
        before, self._overheard = self.target.repair_ms, Overheard(self.target)
        frame = self._play(self._overheard, lanes, plan)
        return replace(frame, repair_ms=self.target.repair_ms - before)

    def _play(
        self, target: Overheard, lanes: Lanes, plan: Plan, *, recalled: bool = False
    ) -> Frame:
        frame = play_round(target, self.drafter, lanes, plan)  # type: ignore[arg-type]
        self._last = LastRound(
            lanes, plan, frame.record, target.passed, frame.logprobs, recalled=recalled
        )
        return frame

    def heard(self, lanes: int) -> tuple[Tensor, Tensor]:
        """Copies of the last pass's first rows."""
        return self._overheard.first(lanes)

    @torch.inference_mode()
    def recall(self, lanes: Lanes, plan: Plan, hidden: Tensor, logits: Tensor) -> Frame:
        """Run the round on what a pass gave before."""
        if self.staging is not None:
            self.staging.upload()
        target = Overheard(Recalled(hidden, logits, lanes))
        return self._play(target, lanes, plan, recalled=True)

    @torch.inference_mode()
    def redraw(self, slot: int, row: int, legal: bytes) -> int:
        """From the logits that the last round kept."""
        assert self._last is not None, "nothing was played"
        return self._last.redraw(slot, row, legal)

    @torch.inference_mode()
    def amend(self, slot: int, kept: int, token: int | None = None) -> LaneRecord:
        """End the last round sooner in one slot."""
        assert self._last is not None, "nothing was played"
        return self._last.amend(self.target, self.drafter, slot, kept, token)

    @torch.inference_mode()
    def prefill(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> None:
        """Run one chunk of inputs [B, T]; the drafter absorbs it whole."""
        inputs = inputs.to(lanes.index.device)
        prefill_chunk(self.target, self.drafter, lanes.for_prefill(), inputs, plan)

    def copy(self, source: int, target: int, rows: int) -> None:
        """Copy one slot's rows in every state."""
        for state in (*self.target.states(), *self.drafter.states()):
            state.copy(source, target, rows)

    def wait(self) -> None:
        """On a GPU what was called may still be under way."""
        if self.staging is not None and self.staging.device.type == "cuda":
            torch.cuda.current_stream(self.staging.device).synchronize()


def prefill_chunk(
    target: Target, drafter: Drafter, lanes: Lanes, inputs: Tensor, plan: Plan
) -> None:
    """The target's state over inputs [B, T] of prefilling lanes, the drafter's, and the count."""
    hidden = target.prefill(lanes, inputs, plan)
    length = torch.full_like(lanes.index, plan.width)
    drafter.absorb(lanes, inputs, hidden, length, plan)
    lanes.pool.consumed.index_add_(0, lanes.index, length)
