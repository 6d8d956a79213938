"""Matrix products against a fixed weight, in the storage that suits the device.

Owns the ways of storing one: plain torch weights, fp16 weights packed for the CPU's fp32
arithmetic (half the bytes to stream, and wide passes cost little more than narrow ones), or tiles
in the numbers of the file, which kernels of our own read.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine import kernels

if TYPE_CHECKING:
    from flarechat.engine.layers.norm import RMSNorm
    from flarechat.engine.weights.tiles import Tiles

_WHOLE_BLOCKS = (3, 4, 5, 6, 8)


class Linear(Protocol):
    """x [..., in] → [..., out]."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def normed(self, x: Tensor, norm: RMSNorm) -> Tensor:
        """The product of the normalised x."""

    def rows(self, ids: Tensor) -> Linear:
        """The product cut to the outputs `ids` int64 [R], with weights of its own."""


class DenseLinear:
    """Weight [out, in] as torch holds it."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    def normed(self, x: Tensor, norm: RMSNorm) -> Tensor:
        return self(norm(x))

    def rows(self, ids: Tensor) -> Linear:
        return DenseLinear(self.weight[ids])


class PackedHalfLinear:
    """Weight [out, in] rounded to fp16 and packed; inputs, sums and outputs are float32.

    The packed kernel works in blocks of rows and rounds differently in a last block of one or two.
    Padding to a count without such a block keeps a row's result independent of how many rows it
    travels with, so a wide pass equals narrow ones bit for bit.
    """

    def __init__(self, weight: Tensor) -> None:
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), None)

    def __call__(self, x: Tensor) -> Tensor:
        shape = x.shape
        flat = x.reshape(-1, shape[-1])
        rows = flat.shape[0]
        padded = rows if rows in _WHOLE_BLOCKS else -(-rows // 3) * 3
        if padded != rows:
            flat = F.pad(flat, (0, 0, 0, padded - rows))
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(flat, self.packed)
        return out[:rows].reshape(*shape[:-1], -1)

    def normed(self, x: Tensor, norm: RMSNorm) -> Tensor:
        return self(norm(x))

    def rows(self, ids: Tensor) -> Linear:
        weight, _ = torch.ops.quantized.linear_unpack_fp16(self.packed)
        return PackedHalfLinear(weight[ids])


class TiledLinear:
    """Weight [out, in] in tiles, by the CPU's kernels; a row depends on nothing but itself."""

    def __init__(self, weight: Tiles) -> None:
        from flarechat.engine.kernels.cpu import operators

        self.weight, self._product = weight, operators.Product(weight)
        self._normed: operators.Product | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x)

    def normed(self, x: Tensor, norm: RMSNorm) -> Tensor:
        from flarechat.engine.kernels.cpu import operators

        if self._normed is None or self._normed.norm is not norm.weight:
            self._normed = operators.Product(self.weight, norm.weight, norm.eps)
        return self._normed(x)

    def rows(self, ids: Tensor) -> Linear:
        return TiledLinear(self.weight.take(ids))


class PendingLinear:
    """A product whose weight another thread is still getting ready; the first use waits for it."""

    def __init__(self, making: Future[Linear]) -> None:
        self._making = making

    @property
    def made(self) -> Linear:
        """The product, once it is ready."""
        return self._making.result()

    def __call__(self, x: Tensor) -> Tensor:
        return self.made(x)

    def normed(self, x: Tensor, norm: RMSNorm) -> Tensor:
        return self.made.normed(x, norm)

    def rows(self, ids: Tensor) -> Linear:
        return self.made.rows(ids)


def dense(product: Linear) -> Tensor:
    """The weight [out, in] of a product as torch holds it, which kernels read."""
    made = product.made if isinstance(product, PendingLinear) else product
    assert isinstance(made, DenseLinear), "such weights are for the CPU"
    return made.weight


def multiply(x: Tensor, product: Linear) -> Tensor:
    """The product of x [..., in], to whatever does it best."""
    if kernels.few(x):
        from flarechat.engine.kernels.products import plain

        return plain(x, dense(product))
    return product(x)


def multiply_normed(x: Tensor, norm: RMSNorm, product: Linear) -> Tensor:
    """The product of the normalised x [..., in]."""
    if kernels.few(x):
        from flarechat.engine.kernels import products, tall

        weight = dense(product)
        if tall.suits(weight):
            return tall.tall(tall.normed_rows(x, norm.weight, norm.eps), weight)
        return products.normed(x, norm.weight, norm.eps, weight)
    return product.normed(x, norm)


def packed_half_available() -> bool:
    """Whether this build of torch has the packed fp16 kernel on this machine."""
    if not hasattr(torch.ops.quantized, "linear_prepack_fp16"):
        return False
    try:
        PackedHalfLinear(torch.ones(8, 8))(torch.ones(1, 8))
    except RuntimeError:
        return False
    return "fbgemm" in torch.backends.quantized.supported_engines
