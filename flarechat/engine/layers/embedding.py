"""Rows of a table for tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from flarechat.engine import kernels

if TYPE_CHECKING:
    from flarechat.engine.weights.tiles import Tiles


class TiledTable:
    """A table [V, D] in tiles; rows for tokens int64 [...] are float32 [..., D]."""

    def __init__(self, weight: Tiles) -> None:
        from flarechat.engine.kernels.cpu import operators

        self.weight, self._rows = weight, operators.Table(weight)

    def __call__(self, tokens: Tensor) -> Tensor:
        return self._rows(tokens)


def embed(tokens: Tensor, table: Tensor | TiledTable) -> Tensor:
    """Rows of table [V, D] for tokens int64 [B, W] → [B, W, D]."""
    if isinstance(table, TiledTable):
        return table(tokens)
    if kernels.fused(table):
        from flarechat.engine.kernels import lookups

        return lookups.embed(tokens, table)
    return F.embedding(tokens, table)
