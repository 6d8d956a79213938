"""Root-mean-square normalisations of the Qwen4 family: with weights that are offsets from one, over
the whole row or by groups, and gated.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "silu": F.silu}


class OffsetRMSNorm:
    """x / rms(x) * weight over the last dimension, in float32, cast back after the product.

    `weight` is float32 [D] with the one already added to what a checkpoint stores. With `groups`,
    each of as many equal runs of the row has a mean of its own.
    """

    def __init__(self, weight: Tensor, eps: float, groups: int = 1) -> None:
        self.weight, self.eps, self.groups = weight.float(), eps, groups

    def __call__(self, x: Tensor) -> Tensor:
        wide = torch.unflatten(x.float(), -1, (self.groups, -1))
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return ((wide * scale).flatten(-2) * self.weight).to(x.dtype)


class GatedNorm:
    """x / rms(x) * weight * activation(gate) over the last dimension; `weight` [D] is no offset.

    The normalised row is rounded to x's dtype before the weight and again after the gate.
    """

    def __init__(self, weight: Tensor, eps: float, activation: str) -> None:
        self.weight, self.eps, self.activation = weight, eps, ACTIVATIONS[activation]

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * normed.to(x.dtype) * self.activation(gate.float())).to(x.dtype)
