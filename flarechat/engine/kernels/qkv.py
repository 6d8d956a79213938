"""From a layer's input to rotated queries and written keys and values, in one Triton kernel: norm,
product, rotary position and cache rows.

Owns how the heads are cut. A program has some pairs of dimensions d and d + D / 2 of one head,
which is what a rotation needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from flarechat.engine.kernels.launch import begin, options, placed, places, product_type
from flarechat.engine.kernels.products import ROWS, Cut, products, tiling

if TYPE_CHECKING:
    from flarechat.engine.window import Window


def project(
    x: Tensor, norm: Tensor, eps: float, weight: Tensor, angles: tuple[Tensor, Tensor],
    window: Window, keys: Tensor, values: Tensor, *, queries: bool = True, cut: Cut | None = None,
) -> Tensor:  # fmt: skip
    """Put the keys and values of x [B, W, I] into the window's rows of keys and values [S, H, rows,
    D]; returns the rotated queries [B, W, heads, D], or without `queries` none, [B, W, 0, D].

    `weight` [(heads + 2 H) D, I] has queries' lines first, then keys', then values'; `angles` are
    the cosines and sines of all positions, float32 [rows, D].
    """
    batch, width, wide = x.shape
    _, kv_heads, _, dim = keys.shape
    heads = len(weight) // dim - 2 * kv_heads
    cut = cut or Cut(block=8)  # pairs
    block = min(cut.block, 1 << ((dim // 2).bit_length() - 1))
    first = 0 if queries else heads
    out = torch.empty(batch, width, heads - first, dim, dtype=x.dtype, device=x.device)
    cos, sin = angles
    cut = Cut(block, cut.warps, cut.split, cut.stages)
    grid = (
        triton.cdiv(batch * width, ROWS), triton.cdiv(dim // 2, block), heads + 2 * kv_heads - first
    )  # fmt: skip
    _project[grid](
        x.reshape(-1, wide), norm, weight, out if queries else x, keys, values, cos, sin,
        batch * width, eps, keys.stride(0), keys.stride(1), len(cos), **places(window),
        IN=wide, DIM=dim, HEADS=heads, KV_HEADS=kv_heads, FIRST=first, BLOCK=block,
        TYPE=product_type(x), **tiling(wide, dim // 2, weight.element_size(), cut, pair=True),
        num_warps=cut.warps, **options(x),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows", "width", "shift", "spare", "reach"])  # type: ignore[untyped-decorator]
def _project(  # type: ignore[no-untyped-def]
    x, norm, weight, out, keys, values, cos, sin, rows, eps, slot_step, head_step, reach,
    index, consumed, finish, width, shift, spare, PREFILLING: tl.constexpr,
    IN: tl.constexpr, DIM: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    FIRST: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr, WHOLE: tl.constexpr,
    REST: tl.constexpr, SPLIT: tl.constexpr, HELD: tl.constexpr, EXACT: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sixteen rows, BLOCK pairs of one head."""
    begin(PDL)
    HALF: tl.constexpr = DIM // 2
    row = tl.program_id(0) * 16 + tl.arange(0, 16)
    pair = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    head = FIRST + tl.program_id(2)
    line = head * DIM + pair
    left, right = products(
        x, norm, weight, row, rows, IN, eps, line, line + HALF, (HEADS + 2 * KV_HEADS) * DIM,
        IN, True, True, TYPE, WHOLE, REST, SPLIT, HELD, EXACT, STAGES, PDL,
    )  # fmt: skip
    KIND: tl.constexpr = x.dtype.element_ty
    left = left.to(KIND).to(tl.float32)
    right = right.to(KIND).to(tl.float32)
    there = row < rows
    slot, position, place, _ = placed(
        row, there, index, consumed, finish, width, shift, spare, PREFILLING
    )
    kept = there[:, None] & (pair < HALF)[None, :]
    if head < HEADS + KV_HEADS:
        # Lanes that are at rest may stand anywhere; the angles end where the cache does.
        turn = tl.minimum(position, reach - 1)[:, None] * DIM + pair[None, :]
        c = tl.load(cos + turn, kept, other=0.0)
        s = tl.load(sin + turn, kept, other=0.0)
        turned = left * c - right * s
        right = right * c + left * s
        left = turned
    if head < HEADS:
        at = out + (row * HEADS + head)[:, None] * DIM + pair[None, :]
        tl.store(at, left.to(KIND), kept)
        tl.store(at + HALF, right.to(KIND), kept)
    else:
        base = slot * slot_step + place * DIM
        if head < HEADS + KV_HEADS:
            to = keys + (base + (head - HEADS) * head_step)[:, None] + pair[None, :]
            tl.store(to, left.to(KIND), kept)
            tl.store(to + HALF, right.to(KIND), kept)
        else:
            to = values + (base + (head - HEADS - KV_HEADS) * head_step)[:, None] + pair[None, :]
            tl.store(to, left.to(KIND), kept)
            tl.store(to + HALF, right.to(KIND), kept)
