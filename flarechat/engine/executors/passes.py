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

    def __init__(self, target: Target | Recalled) -> None:
        self._target, self.keep = target, target.keep
        self._passed: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def passed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [B, W], hidden [B, W, F] and logits [B, W, V] of the last pass."""
        assert self._passed is not None, "nothing was played"
        return self._passed

    def verify(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        hidden, logits = self._target.verify(lanes, inputs, plan)
        self._passed = inputs, hidden, logits
        return hidden, logits

    def first(self, lanes: int) -> tuple[Tensor, Tensor]:
        """Copies of hidden [B, F] and logits [B, V] of the first row of the first lanes."""
        _, hidden, logits = self.passed
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
