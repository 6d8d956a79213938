"""Matrix products against a fixed weight, in the storage that suits the device.

Owns the choice of storage: plain torch weights, or fp16 weights packed for the CPU's fp32
arithmetic (half the bytes to stream, and wide passes cost little more than narrow ones).
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_PADDED_ROWS = {1: 3, 2: 3, 7: 8}


class Linear(Protocol):
    """x [..., in] → [..., out]."""

    def __call__(self, x: Tensor) -> Tensor: ...


class DenseLinear:
    """Weight [out, in] as torch holds it."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class PackedHalfLinear:
    """Weight [out, in] rounded to fp16 and packed; inputs, sums and outputs are float32.

    The packed kernel picks its inner loop by row count, and those for one, two and seven rows
    round differently from the others. Padding these to the next count keeps a row's result
    independent of how many rows it travels with, so a wide pass equals narrow ones bit for bit.
    """

    def __init__(self, weight: Tensor) -> None:
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), None)

    def __call__(self, x: Tensor) -> Tensor:
        shape = x.shape
        flat = x.reshape(-1, shape[-1])
        rows = flat.shape[0]
        padded = _PADDED_ROWS.get(rows, rows)
        if padded != rows:
            flat = F.pad(flat, (0, 0, 0, padded - rows))
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(flat, self.packed)
        return out[:rows].reshape(*shape[:-1], -1)


class PendingLinear:
    """A product whose weight another thread is still getting ready; the first use waits for it."""

    def __init__(self, making: Future[Linear]) -> None:
        self._making = making

    def __call__(self, x: Tensor) -> Tensor:
        return self._making.result()(x)


def packed_half_available() -> bool:
    """Whether this build of torch has the packed fp16 kernel on this machine."""
    if not hasattr(torch.ops.quantized, "linear_prepack_fp16"):
        return False
    try:
        PackedHalfLinear(torch.ones(8, 8))(torch.ones(1, 8))
    except RuntimeError:
        return False
    return "fbgemm" in torch.backends.quantized.supported_engines
