"""Random weights in tiles of 16 rows, and their products in the order that the kernels keep.

Written from the layout in flarechat.h with numpy alone; nothing here calls a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILE, GROUP = 16, 32
Q4_0, Q4_1, Q8_0, BF16 = range(4)
KINDS = {"q4_0": Q4_0, "q4_1": Q4_1, "q8_0": Q8_0, "bf16": BF16}

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Weight:
    """`codes` [rows, columns] are integers, or a bf16 weight's bits; scales and minima [rows,
    columns / 32] float16. Rows beyond `rows` of the last tile are zeros in `data`."""

    kind: int
    rows: int
    columns: int
    codes: NDArray[np.int32]
    scales: NDArray[np.float16]
    minima: NDArray[np.float16]
    data: NDArray[np.uint8]

    def values(self) -> NDArray[np.float64]:
        """What the weight means [rows, columns], exactly."""
        if self.kind == BF16:
            bits = (self.codes.astype(np.uint32) << 16).view(np.float32)
            return bits.astype(np.float64)
        scales = np.repeat(self.scales.astype(np.float64), GROUP, axis=1)
        codes = self.codes - (8 if self.kind == Q4_0 else 0)
        values = codes * scales
        if self.kind == Q4_1:
            values += np.repeat(self.minima.astype(np.float64), GROUP, axis=1)
        return values


def make(kind: int, rows: int, columns: int, seed: int = 0, spread: float = 0.05) -> Weight:
    """A weight of random codes, scales up to `spread` and minima around it."""
    random = np.random.default_rng(seed)
    groups = columns // GROUP
    scales = random.uniform(-spread, spread, (rows, groups)).astype(np.float16)
    minima = random.uniform(-spread, spread, (rows, groups)).astype(np.float16)
    if kind == BF16:
        floats = random.normal(size=(rows, columns)).astype(np.float32)
        codes = (floats.view(np.uint32) >> 16).astype(np.int32)
    elif kind == Q8_0:
        codes = random.integers(-128, 128, (rows, columns), dtype=np.int32)
    else:
        codes = random.integers(0, 16, (rows, columns), dtype=np.int32)
    return pack(kind, codes, scales, minima)


def pack(
    kind: int, codes: NDArray[np.int32], scales: NDArray[np.float16], minima: NDArray[np.float16]
) -> Weight:
    """The weight in tiles, aligned to 64 bytes."""
    rows, columns = codes.shape
    tiles = -(-rows // TILE)
    padded = _padded(codes, tiles).reshape(tiles, TILE, columns)
    if kind == BF16:
        columnwise = np.ascontiguousarray(padded.transpose(0, 2, 1).astype(np.uint16))
        parts: list[NDArray[np.uint8]] = [columnwise.view(np.uint8).reshape(tiles, -1)]
    else:
        groups = columns // GROUP
        quads = padded.reshape(tiles, TILE, groups, 8, 4).transpose(0, 2, 3, 1, 4)
        if kind == Q8_0:
            packed = quads.astype(np.int8).view(np.uint8)
        else:
            packed = (quads[:, :, :4] | quads[:, :, 4:] << 4).astype(np.uint8)
        parts = [packed.reshape(tiles, groups, -1), _factors(scales, tiles)]
        if kind == Q4_1:
            parts.append(_factors(minima, tiles))
    stream = np.concatenate(parts, axis=-1).reshape(-1)
    return Weight(kind, rows, columns, codes, scales, minima, aligned(stream))


def _padded(array: NDArray, tiles: int) -> NDArray:  # type: ignore[type-arg]
    return np.pad(array, ((0, tiles * TILE - len(array)), (0, 0)))


def _factors(factors: NDArray[np.float16], tiles: int) -> NDArray[np.uint8]:
    """[rows, groups] to [tiles, groups, bytes of 16 float16]."""
    padded = _padded(factors, tiles).reshape(tiles, TILE, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(padded).view(np.uint8)


def aligned(array: NDArray[np.uint8], boundary: int = 64) -> NDArray[np.uint8]:
    """A copy whose first byte lies on a boundary."""
    room = np.empty(array.nbytes + boundary, np.uint8)
    start = -room.ctypes.data % boundary
    room[start : start + array.nbytes] = array
    return room[start : start + array.nbytes]


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c rounded once: in float64 rounded to odd, which makes the second rounding right."""
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    rest = (product - (total - back)) + (addend - back)
    even = total.view(np.int64) % 2 == 0
    towards = np.where(rest > 0, np.inf, -np.inf)
    odd = np.where(np.isfinite(rest) & (rest != 0) & even, np.nextafter(total, towards), total)
    return odd.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Packed:
    """Activations as a product reads them: of every group of 32 columns the largest magnitude apart
    with its column, and the others as codes."""

    codes: NDArray[np.int32]
    """[rows, columns], 0 for a value kept apart."""
    scales: Floats
    """[rows, columns / 32], as all that follow."""
    apart: Floats
    column: NDArray[np.int64]
    """Of the value kept apart, counted over the whole row."""
    sums: Floats
    """Of a group's values: of scale * code and the one apart."""


def quantise(x: Floats) -> Packed:
    """Rows [rows, columns] of activations packed."""
    groups = x.reshape(len(x), -1, GROUP)
    size = np.abs(groups)
    finite = np.isfinite(size).all(axis=2)
    # The last five bits of magnitudes do not count; of equal ones it is the first.
    place = (size.view(np.int32) >> 5).argmax(axis=2)[..., None]
    others = groups.copy()
    np.put_along_axis(others, place, np.float32(0), 2)
    amax = np.abs(others).max(axis=2)
    kept = finite & (amax > np.float32(1e-30))
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=kept)
    scaled = np.where(kept[..., None], others, np.float32(0)) * inverse[..., None]
    codes = np.rint(scaled).astype(np.int32)
    scales = np.where(finite, amax / np.float32(127), np.float32(np.nan))
    apart = np.take_along_axis(groups, place, 2)[..., 0]
    apart = np.where(np.abs(apart) > np.float32(1e-30), apart, np.float32(0))
    sums = fused(scales, codes.sum(axis=2).astype(np.float32), apart)
    column = place[..., 0] + np.arange(groups.shape[1]) * GROUP
    return Packed(codes.reshape(x.shape), scales, apart, column, sums)


def product(weight: Weight, x: Floats) -> Floats:
    """[rows of x, rows of the weight], bit for bit what the kernels must say."""
    if weight.kind == BF16:
        return _bfloat_product(weight, x)
    packed = quantise(x)
    total = np.zeros((len(x), weight.rows), np.float32)
    for group in range(weight.columns // GROUP):
        span = slice(group * GROUP, (group + 1) * GROUP)
        whole = (packed.codes[:, span] @ weight.codes[:, span].T).astype(np.float32)
        scale = _like(weight.scales[None, :, group].astype(np.float32), total)
        code = weight.codes[:, packed.column[:, group]].T.astype(np.float32)
        most = packed.scales[:, group, None] * whole
        total = fused(scale, fused(_like(packed.apart[:, group, None], total), code, most), total)
        sums = _like(packed.sums[:, group, None], total)
        if weight.kind == Q4_0:
            total = fused(scale * np.float32(-8), sums, total)
        if weight.kind == Q4_1:
            minimum = weight.minima[None, :, group].astype(np.float32)
            total = fused(minimum, sums, total)
    return total


def _like(a: Floats, b: Floats) -> Floats:
    return np.broadcast_to(a, b.shape)


def _bfloat_product(weight: Weight, x: Floats) -> Floats:
    values = weight.values().astype(np.float32)
    totals = [np.zeros((len(x), weight.rows), np.float32) for _ in range(2)]
    for column in range(weight.columns):
        half = column % 2
        totals[half] = fused(values[None, :, column], x[:, column, None], totals[half])
    return totals[0] + totals[1]
