"""The gated residual: a residual of several streams that each sub-layer reads mixed into one and
writes back by gates of its own.

A row [S * D] holds its S streams one after the other.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.layers.linear import Linear
from flarechat.engine.layers.offset_norm import OffsetRMSNorm


class GatedResidual:
    """Mixing and combining of `streams` streams. Without `inject` it only mixes."""

    def __init__(
        self, norm: OffsetRMSNorm, down: Linear, up: Linear, inject: Linear | None, streams: int
    ) -> None:
        self.norm, self.down, self.up, self.inject = norm, down, up, inject
        self.streams = streams

    def mix(self, h: Tensor) -> Tensor:
        """The residual [..., S * D] as one stream [..., D]."""
        return self._mixed(self.norm(h))

    def read(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """What a sub-layer reads [..., D], and the gates [..., S] by which it will write."""
        assert self.inject is not None
        normed = self.norm(h)
        gates = 2 * torch.sigmoid(self.inject(normed) / self.streams)
        return self._mixed(normed), gates

    @staticmethod
    def combine(h: Tensor, gates: Tensor, out: Tensor) -> Tensor:
        """The residual [..., S * D] with a sub-layer's output [..., D] added by its gates."""
        return h + (gates[..., None] * out[..., None, :]).flatten(-2)

    def _mixed(self, normed: Tensor) -> Tensor:
        weights = torch.sigmoid(self.up(F.silu(self.down(normed) / self.streams)))
        return torch.unflatten(weights * normed, -1, (self.streams, -1)).mean(-2)
