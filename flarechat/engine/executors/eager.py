"""The eager executor: call the page as it stands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flarechat.engine.round import play_round

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.contracts import Drafter, Target
    from flarechat.engine.frame import Frame
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes


class EagerExecutor:
    """Plays rounds and prefill chunks by plain calls, on any device."""

    name = "eager"

    def __init__(self, target: Target, drafter: Drafter) -> None:
        self.target, self.drafter = target, drafter

    @torch.inference_mode()
    def play(self, lanes: Lanes, plan: Plan) -> Frame:
        """Run one round."""
        before = self.target.repair_ms
        frame = play_round(self.target, self.drafter, lanes, plan)
        return replace(frame, repair_ms=self.target.repair_ms - before)

    @torch.inference_mode()
    def prefill(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> None:
        """Run one chunk of inputs [B, T]; the drafter absorbs it whole."""
        lanes = lanes.for_prefill()
        hidden = self.target.prefill(lanes, inputs, plan)
        length = torch.full_like(lanes.index, plan.width)
        self.drafter.absorb(lanes, inputs, hidden, length, plan)
        lanes.pool.consumed.index_add_(0, lanes.index, length)
