"""Stand-ins for a target in a round: one that keeps what its pass gave, one that recalls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.contracts import Target
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes


class Overheard:
    """A target that keeps what its last pass gave for whoever asks."""

    def __init__(self, target: Target) -> None:
        self._target, self.keep = target, target.keep
        self.gave: tuple[Tensor, Tensor] | None = None

    def verify(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        self.gave = self._target.verify(lanes, inputs, plan)
        return self.gave

    def first(self, lanes: int) -> tuple[Tensor, Tensor]:
        """Copies of hidden [B, F] and logits [B, V] of the first row of the first lanes."""
        assert self.gave is not None, "nothing was played"
        hidden, logits = self.gave
        return hidden[:lanes, 0].clone(), logits[:lanes, 0].clone()


class Recalled:
    """A target whose pass over one pending token was made before, and left what it leaves."""

    def __init__(self, hidden: Tensor, logits: Tensor, lanes: Lanes) -> None:
        device = lanes.index.device
        self._hidden, self._logits = (t.to(device)[None, None] for t in (hidden, logits))

    def verify(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        assert inputs.shape == (1, 1), "one pending token was passed over"
        return self._hidden, self._logits

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """The state is there: a pass over one row is kept whole."""
