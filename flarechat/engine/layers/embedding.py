"""Rows of a table for tokens."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from flarechat.engine import kernels


def embed(tokens: Tensor, table: Tensor) -> Tensor:
    """Rows of table [V, D] for tokens int64 [B, W] → [B, W, D]."""
    if kernels.fused(table):
        from flarechat.engine.kernels import lookups

        return lookups.embed(tokens, table)
    return F.embedding(tokens, table)
