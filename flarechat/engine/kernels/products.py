"""Products of the few rows of a round with a weight, in Triton: one kernel for a norm, a product
and what follows it.

Owns how such a product is cut. Sixteen rows make a tile, so a row's result does not depend on how
many others travel with it. A program has few outputs, so that all of the GPU reads weights, and
holds its part of the weight before the kernels ahead of it have ended; its sum over the inputs is
cut into `split` parts, one for each warp, added at last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flarechat.engine.kernels.launch import begin, options, product_type, wait

ROWS = 16

_HELD, _HELD_BYTES = 4096, 96 * 4 * 32  # inputs, and bytes a warp, of a weight held at once
_STEP = 256


@dataclass(frozen=True, slots=True)
class Cut:
    """A program's outputs (of a gated product as many gates besides), its warps, and the parts of
    its sum. `stages` are loads under way where the weight is not held at once."""

    block: int = 16
    warps: int = 4
    split: int = 4
    stages: int = 4


def cut_for(out: int, wide: int) -> Cut:
    """How to cut a product from `wide` inputs to `out` outputs."""
    if out <= 1024:
        return Cut(block=8, warps=8, split=8) if wide > 1024 else Cut(block=8)
    return Cut(block=32) if out >= 4096 else Cut()


def pieces(wide: int, split: int) -> tuple[int, int, int]:
    """`wide` inputs as one or two powers of two, and the parts that both can be split into."""
    whole = 1 << max(wide.bit_length() - 1, 4)
    split = min(split, whole // 16)
    if wide <= whole:
        return whole, 0, split
    rest = max(triton.next_power_of_2(wide - whole), 16 * split)
    return (2 * whole, 0, split) if rest >= whole else (whole, rest, split)


def plain(x: Tensor, weight: Tensor, cut: Cut | None = None) -> Tensor:
    """x [..., I] with weight [O, I] → [..., O]."""
    return _product("plain", x, weight, len(weight), cut)


def normed(x: Tensor, norm: Tensor, eps: float, weight: Tensor, cut: Cut | None = None) -> Tensor:
    """The normalised x [..., I] with weight [O, I] → [..., O]; `norm` is [I]."""
    return _product("normed", x, weight, len(weight), cut, norm=norm, eps=eps)


def gated(x: Tensor, norm: Tensor, eps: float, weight: Tensor, cut: Cut | None = None) -> Tensor:
    """silu(gate) * up of the normalised x [..., I] → [..., O]; weight [2 O, I], gates first."""
    return _product("gated", x, weight, len(weight) // 2, cut, norm=norm, eps=eps)


def added(x: Tensor, weight: Tensor, residual: Tensor, cut: Cut | None = None) -> Tensor:
    """residual [..., O] + the product of x [..., I] with weight [O, I]."""
    return _product("added", x, weight, len(weight), cut, residual=residual)


def _product(
    kind: str, x: Tensor, weight: Tensor, outputs: int, cut: Cut | None, *,
    norm: Tensor | None = None, eps: float = 0.0, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    wide = x.shape[-1]
    flat = x.reshape(-1, wide)
    cut = cut or cut_for(outputs, wide)
    out = torch.empty(*x.shape[:-1], outputs, dtype=x.dtype, device=x.device)
    side = out if residual is None else residual.reshape(-1, outputs)
    grid = (triton.cdiv(len(flat), ROWS), triton.cdiv(outputs, cut.block))
    _few[grid](
        flat, x if norm is None else norm, weight, side, out, len(flat), flat.stride(0), eps,
        IN=wide, OUT=outputs, NORM=norm is not None, GATED=kind == "gated",
        ADDED=residual is not None, BLOCK=cut.block, TYPE=product_type(x),
        **tiling(wide, outputs, weight.element_size(), cut, pair=kind == "gated"),
        num_warps=cut.warps, **options(x),
    )  # fmt: skip
    return out


def tiling(wide: int, outputs: int, size: int, cut: Cut, *, pair: bool) -> dict[str, Any]:
    """How the inputs are walked: as held pieces, or in steps where a program's weights, of `size`
    bytes each, would not fit."""
    whole, rest, split = pieces(wide, cut.split)
    taken = (whole + rest) * cut.block * size * (2 if pair else 1)
    held = whole + rest <= _HELD and taken <= _HELD_BYTES * cut.warps
    if not held:
        whole, rest = min(whole, _STEP), 0
        split = min(cut.split, whole // 16)
    exact = outputs % cut.block == 0 and (whole + rest == wide if held else wide % whole == 0)
    return {
        "WHOLE": whole, "REST": rest, "SPLIT": split, "HELD": held, "EXACT": exact,
        "STAGES": cut.stages,
    }  # fmt: skip


@triton.constexpr_function
def _across(wide, bits):  # type: ignore[no-untyped-def]
    """Inputs of a row that a warp's lanes load at once, sixteen bytes each."""
    return min(triton.next_power_of_2(wide), 32 * 128 // bits)


@triton.jit  # type: ignore[untyped-decorator]
def weight_tile(  # type: ignore[no-untyped-def]
    weight, line, start, lines, IN: tl.constexpr, SPLIT: tl.constexpr, SIZE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """[SPLIT, SIZE / SPLIT, n] of the lines [n] of weight [lines, IN] from input `start` on."""
    PART: tl.constexpr = SIZE // SPLIT
    k = start + tl.arange(0, SPLIT)[:, None] * PART + tl.arange(0, PART)[None, :]
    at = weight + (line.to(tl.int64) * IN)[None, None, :] + k[:, :, None]
    if EXACT:
        return tl.load(at)
    else:
        return tl.load(at, (k < IN)[:, :, None] & (line < lines)[None, None, :], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def row_tile(  # type: ignore[no-untyped-def]
    x, row, rows, step, start, IN: tl.constexpr, SPLIT: tl.constexpr, SIZE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """float32 [SPLIT, n, SIZE / SPLIT] of the rows [n] of x from input `start` on."""
    PART: tl.constexpr = SIZE // SPLIT
    k = start + tl.arange(0, SPLIT)[:, None] * PART + tl.arange(0, PART)[None, :]
    at = x + (row * step)[None, :, None] + k[:, None, :]
    known = (row < rows)[None, :, None]
    if not EXACT:
        known = known & (k < IN)[:, None, :]
    return tl.load(at, known, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def norm_tile(  # type: ignore[no-untyped-def]
    norm, start, IN: tl.constexpr, SPLIT: tl.constexpr, SIZE: tl.constexpr, EXACT: tl.constexpr
):
    """float32 [SPLIT, 1, SIZE / SPLIT] of the norm's weight."""
    PART: tl.constexpr = SIZE // SPLIT
    k = start + tl.arange(0, SPLIT)[:, None] * PART + tl.arange(0, PART)[None, :]
    if EXACT:
        return tl.load(norm + k).to(tl.float32)[:, None, :]
    else:
        return tl.load(norm + k, k < IN, other=0.0).to(tl.float32)[:, None, :]


@triton.jit  # type: ignore[untyped-decorator]
def row_squares(  # type: ignore[no-untyped-def]
    x, row, rows, step, IN: tl.constexpr, ACROSS: tl.constexpr, UNROLLED: tl.constexpr
):
    """float32 [n, ACROSS]: partial sums of the squares of each row of x. Rows are laid out anew
    for them, whole ones to a warp, so that adding them up needs no other warp's."""
    total = tl.zeros((row.shape[0], ACROSS), tl.float32)
    if UNROLLED:
        for start in tl.static_range(0, IN, ACROSS):
            total += _squared(x, row, rows, step, start, IN, ACROSS)
    else:
        for start in range(0, IN, ACROSS):
            total += _squared(x, row, rows, step, start, IN, ACROSS)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _squared(  # type: ignore[no-untyped-def]
    x, row, rows, step, start, IN: tl.constexpr, ACROSS: tl.constexpr
):
    k = start + tl.arange(0, ACROSS)
    at = x + (row * step)[:, None] + k[None, :]
    part = tl.load(at, (row < rows)[:, None] & (k < IN)[None, :], other=0.0).to(tl.float32)
    return part * part


@triton.jit  # type: ignore[untyped-decorator]
def scaled(tile, scale, norm, KIND: tl.constexpr, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows [SPLIT, n, PART] normalised by scale [n], rounded as they would be stored."""
    return (tile * scale[None, :, None] * norm).to(KIND).to(TYPE)


@triton.jit  # type: ignore[untyped-decorator]
def products(  # type: ignore[no-untyped-def]
    x, norm, weight, row, rows, step, eps, first, second, lines,
    IN: tl.constexpr, NORM: tl.constexpr, PAIR: tl.constexpr, TYPE: tl.constexpr,
    WHOLE: tl.constexpr, REST: tl.constexpr, SPLIT: tl.constexpr, HELD: tl.constexpr,
    EXACT: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """float32 [n, BLOCK] twice: rows [n] of x with the lines `first` [BLOCK] of the weight, and
    with the lines `second` if it is a PAIR. Waits for x; the weight is there."""
    KIND: tl.constexpr = x.dtype.element_ty
    ACROSS: tl.constexpr = _across(IN, KIND.primitive_bitwidth)
    if HELD:
        a = weight_tile(weight, first, 0, lines, IN, SPLIT, WHOLE, EXACT)
        if PAIR:
            b = weight_tile(weight, second, 0, lines, IN, SPLIT, WHOLE, EXACT)
        if NORM:
            n = norm_tile(norm, 0, IN, SPLIT, WHOLE, EXACT)
        if REST > 0:
            a_rest = weight_tile(weight, first, WHOLE, lines, IN, SPLIT, REST, EXACT)
            if PAIR:
                b_rest = weight_tile(weight, second, WHOLE, lines, IN, SPLIT, REST, EXACT)
            if NORM:
                n_rest = norm_tile(norm, WHOLE, IN, SPLIT, REST, EXACT)
        wait(PDL)
        if NORM:
            total = row_squares(x, row, rows, step, IN, ACROSS, True)
        tile = row_tile(x, row, rows, step, 0, IN, SPLIT, WHOLE, EXACT)
        if REST > 0:
            tile_rest = row_tile(x, row, rows, step, WHOLE, IN, SPLIT, REST, EXACT)
        if NORM:
            scale = tl.rsqrt(tl.sum(total, axis=1) / IN + eps)
            tile = scaled(tile, scale, n, KIND, TYPE)
            if REST > 0:
                tile_rest = scaled(tile_rest, scale, n_rest, KIND, TYPE)
        one = tl.dot(tile.to(TYPE), a.to(TYPE), input_precision="ieee")
        if REST > 0:
            one = tl.dot(tile_rest.to(TYPE), a_rest.to(TYPE), one, input_precision="ieee")
        other = one
        if PAIR:
            other = tl.dot(tile.to(TYPE), b.to(TYPE), input_precision="ieee")
            if REST > 0:
                other = tl.dot(tile_rest.to(TYPE), b_rest.to(TYPE), other, input_precision="ieee")
    else:
        wait(PDL)
        if NORM:
            total = row_squares(x, row, rows, step, IN, ACROSS, False)
            scale = tl.rsqrt(tl.sum(total, axis=1) / IN + eps)
        one = tl.zeros((SPLIT, row.shape[0], first.shape[0]), tl.float32)
        other = one
        for start in tl.range(0, IN, WHOLE, num_stages=STAGES):
            tile = row_tile(x, row, rows, step, start, IN, SPLIT, WHOLE, EXACT)
            if NORM:
                n = norm_tile(norm, start, IN, SPLIT, WHOLE, EXACT)
                tile = scaled(tile, scale, n, KIND, TYPE)
            a = weight_tile(weight, first, start, lines, IN, SPLIT, WHOLE, EXACT)
            one = tl.dot(tile.to(TYPE), a.to(TYPE), one, input_precision="ieee")
            if PAIR:
                b = weight_tile(weight, second, start, lines, IN, SPLIT, WHOLE, EXACT)
                other = tl.dot(tile.to(TYPE), b.to(TYPE), other, input_precision="ieee")
    return tl.sum(one, axis=0), tl.sum(other, axis=0)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _few(  # type: ignore[no-untyped-def]
    x, norm, weight, residual, out, rows, step, eps,
    IN: tl.constexpr, OUT: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr,
    ADDED: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr, WHOLE: tl.constexpr,
    REST: tl.constexpr, SPLIT: tl.constexpr, HELD: tl.constexpr, EXACT: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sixteen rows of x with BLOCK lines of the weight, and BLOCK gates' lines."""
    begin(PDL)
    row = tl.program_id(0) * 16 + tl.arange(0, 16)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    LINES: tl.constexpr = 2 * OUT if GATED else OUT
    value, up = products(
        x, norm, weight, row, rows, step, eps, column, column + OUT, LINES,
        IN, NORM, GATED, TYPE, WHOLE, REST, SPLIT, HELD, EXACT, STAGES, PDL,
    )  # fmt: skip
    KIND: tl.constexpr = out.dtype.element_ty
    if GATED:
        gate = value.to(KIND).to(tl.float32)
        gate = (gate / (1.0 + tl.exp(-gate))).to(KIND).to(tl.float32)
        value = gate * up.to(KIND).to(tl.float32)
    kept = (row < rows)[:, None] & (column < OUT)[None, :]
    at = row[:, None] * OUT + column[None, :]
    if ADDED:
        beside = tl.load(residual + at, kept, other=0.0).to(tl.float32)
        value = beside + value.to(KIND).to(tl.float32)
    tl.store(out + at, value.to(KIND), kept)
