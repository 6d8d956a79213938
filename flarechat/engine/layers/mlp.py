"""The gated feed-forward block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.layers.linear import Linear


class MLP:
    """down(silu(gate(x)) * up(x)); gate and up are one product, gate first."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up, self.down = gate_up, down

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)
