"""Rotary position embedding, rotate-half form, with the scalings llama checkpoints use."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from flarechat.errors import ModelError

SCALINGS = ("default", "linear", "llama3")


def inverse_frequencies(head_dim: int, theta: float, scaling: dict[str, Any] | None) -> Tensor:
    """float32 [head_dim / 2]: radians a position, per pair of dimensions."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    inv = torch.pow(theta, pairs).reciprocal()
    kind = (scaling or {}).get("rope_type", (scaling or {}).get("type", "default"))
    if kind not in SCALINGS:
        raise ModelError(
            f"The rotary scaling {kind!r} is not supported.", f"Known: {', '.join(SCALINGS)}."
        )
    if kind == "linear" and scaling:
        return inv.div(float(scaling["factor"]))
    return _llama3(inv, scaling) if kind == "llama3" and scaling else inv


def _llama3(inv: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Slow the long wavelengths by `factor`, keep the short ones, blend in between."""
    factor, old = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / inv
    smooth = (old / wavelength - low) / (high - low)
    blended = (1 - smooth) * inv / factor + smooth * inv
    scaled = torch.where(wavelength > old / low, inv / factor, inv)
    between = (wavelength <= old / low) & (wavelength >= old / high)
    return torch.where(between, blended, scaled)


class Rope:
    """Cosines and sines of every position up to `rows`, float32 [rows, head_dim]."""

    def __init__(
        self, head_dim: int, rows: int, theta: float, scaling: dict[str, Any] | None,
        device: torch.device,
    ) -> None:  # fmt: skip
        inv = inverse_frequencies(head_dim, theta, scaling)
        angles = torch.arange(rows).float()[:, None] * inv
        angles = torch.cat([angles, angles], dim=-1)
        self.cos, self.sin = angles.cos().to(device), angles.sin().to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin for positions [B, T]: each [B, 1, T, head_dim]."""
        flat = positions.reshape(-1)
        shape = (*positions.shape, -1)
        cos = self.cos.index_select(0, flat).reshape(shape)[:, None]
        return cos, self.sin.index_select(0, flat).reshape(shape)[:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, H, T, D] by its rows' angles."""
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat([-right, left], dim=-1)
    return (x * cos + turned * sin).to(x.dtype)
