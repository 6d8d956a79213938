"""Causal depthwise convolution of a few new rows, with the rows before them given."""

from __future__ import annotations

import torch
from torch import Tensor


def depthwise(before: Tensor, rows: Tensor, weight: Tensor, dilation: int = 1) -> Tensor:
    """before [B, L, C] and rows [B, T, C] → [B, T, C]; `weight` is [C, taps], the last tap for the
    row itself, and L = (taps - 1) * dilation.

    Sums in float32 and rounds once to the rows' dtype.
    """
    held, length = torch.cat([before, rows], dim=1).float(), rows.shape[1]
    taps = weight.float().unbind(-1)
    out = held[:, :length] * taps[0]
    for tap, factor in enumerate(taps[1:], start=1):
        out = out + held[:, tap * dilation : tap * dilation + length] * factor
    return out.to(rows.dtype)
