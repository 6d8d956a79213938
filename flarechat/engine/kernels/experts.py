"""Products of few rows with the packed experts they were routed to, in Triton.

Owns the grouping of rows by expert and the two products around the gate. An expert's weights are
read once for every sixteen rows that take it and decoded on the way; activations stay floats. A
row's result does not depend on the rows it travels with, and nothing is read back from the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from flarechat.engine.weights.formats import Packed

BLOCK = 16
_OUT_TILE, _IN_TILE = 64, 128
_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def packed_experts(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Packed, down: Packed
) -> Tensor:
    """x [N, D], ids int64 [N, k] and weights [N, k] → [N, D].

    gate_up holds [E, 2, I, D] and down [E, D, I], both nvfp4 or both fp8_blocks.
    """
    experts, _, inner, wide = gate_up.shape
    pairs = ids.numel()
    order, block_expert, block_first, block_rows = group(ids.reshape(-1), experts)
    nvfp4 = gate_up.scale_2 is not None
    # Triton's interpreter multiplies no bfloat16.
    product = tl.float32 if x.device.type == "cpu" else _TYPES[x.dtype]
    x = x.contiguous()
    inside = torch.empty(pairs, inner, dtype=x.dtype, device=x.device)
    out = torch.empty(pairs, wide, dtype=torch.float32, device=x.device)
    blocks = len(block_expert)
    tiles = {"NVFP4": nvfp4, "TYPE": product, "OUT_TILE": _OUT_TILE, "IN_TILE": _IN_TILE}
    _gate_up[(blocks, triton.cdiv(inner, _OUT_TILE))](
        x, inside, order, block_expert, block_first, block_rows,
        *_stored(gate_up), experts, ids.shape[1], OUT=inner, IN=wide, BLOCK=BLOCK, **tiles,
    )  # fmt: skip
    _down[(blocks, triton.cdiv(wide, _OUT_TILE))](
        inside, out, order, weights.reshape(-1), block_expert, block_first, block_rows,
        *_stored(down), experts, OUT=wide, IN=inner, BLOCK=BLOCK, **tiles,
    )  # fmt: skip
    return out.view(*ids.shape, wide).sum(1).to(x.dtype)


def group(ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pairs of a row and its expert, ids int64 [P], in blocks of at most BLOCK of one expert.

    order [P] sorts the pairs by expert. Of each block: its expert (`experts` for one past the
    last), the place in `order` where it begins, and its pairs. There are as many blocks as P pairs
    could need, so that shapes do not depend on values.
    """
    pairs, device = ids.numel(), ids.device
    blocks = min(pairs, experts) + pairs // BLOCK
    order = ids.argsort(stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=device)
    counts = counts.index_add(0, ids, torch.ones_like(ids))
    needed = (counts + BLOCK - 1) // BLOCK
    ends = needed.cumsum(0)
    block = torch.arange(blocks, device=device)
    expert = torch.searchsorted(ends, block, right=True)
    own = expert.clamp(max=experts - 1)
    done = (block - (ends - needed)[own]) * BLOCK
    first = (counts.cumsum(0) - counts)[own] + done
    return order, expert, first, (counts[own] - done).clamp(0, BLOCK)


def _stored(packed: Packed) -> tuple[Tensor, Tensor, Tensor]:
    """Weight, scales and last scales, float8 as bytes; without last scales the first again."""
    scale = packed.scale
    if packed.scale_2 is not None:
        return packed.weight, scale.view(torch.uint8), packed.scale_2
    return packed.weight.view(torch.uint8), scale, scale


@triton.jit
def _e2m1(code):  # type: ignore[no-untyped-def]
    """Codes 0 … 15 to float32."""
    size = code & 7
    value = tl.where(size < 4, size * 0.5, tl.where(size < 6, size - 2.0, size * 2.0 - 8.0))
    return tl.where(code > 7, -value, value).to(tl.float32)


@triton.jit
def _e4m3(byte):  # type: ignore[no-untyped-def]
    """Bytes of E4M3 to float32, by way of the float16 with the same exponent field."""
    wide = byte.to(tl.uint16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return half.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x, rows, live, weight, scale, matrix, tile,
    OUT: tl.constexpr, IN: tl.constexpr, BLOCK: tl.constexpr, NVFP4: tl.constexpr,
    TYPE: tl.constexpr, OUT_TILE: tl.constexpr, IN_TILE: tl.constexpr,
):  # fmt: skip
    """Rows of x [..., IN] with one tile of outputs of one matrix, before any last scale."""
    out = tile * OUT_TILE + tl.arange(0, OUT_TILE)
    known = out < OUT
    line = matrix.to(tl.int64) * OUT + out
    total = tl.zeros((BLOCK, OUT_TILE), dtype=tl.float32)
    if NVFP4:
        HALF: tl.constexpr = IN // 2
        for start in range(0, HALF, IN_TILE // 2):
            byte = start + tl.arange(0, IN_TILE // 2)
            there = known[:, None] & (byte < HALF)[None, :]
            codes = tl.load(weight + line[:, None] * HALF + byte[None, :], there, other=0)
            steps = scale + line[:, None] * (IN // 16) + (byte // 8)[None, :]
            step = _e4m3(tl.load(steps, there, other=0))
            first = x + rows[:, None] * IN + 2 * byte[None, :]
            given = live[:, None] & (byte < HALF)[None, :]
            even = tl.load(first, given, other=0.0).to(TYPE)
            odd = tl.load(first + 1, given, other=0.0).to(TYPE)
            # A code times its step has six bits, so it is exact in every type.
            low = (_e2m1(codes & 15) * step).to(TYPE)
            high = (_e2m1(codes >> 4) * step).to(TYPE)
            total += tl.dot(even, tl.trans(low), input_precision="ieee")
            total += tl.dot(odd, tl.trans(high), input_precision="ieee")
    else:
        DOWN: tl.constexpr = (OUT + 127) // 128
        ACROSS: tl.constexpr = (IN + 127) // 128
        for start in range(0, IN, IN_TILE):
            place = start + tl.arange(0, IN_TILE)
            there = known[:, None] & (place < IN)[None, :]
            codes = tl.load(weight + line[:, None] * IN + place[None, :], there, other=0)
            given = live[:, None] & (place < IN)[None, :]
            values = tl.load(x + rows[:, None] * IN + place[None, :], given, other=0.0).to(TYPE)
            steps = scale + (matrix * DOWN + out // 128) * ACROSS + start // 128
            step = tl.load(steps, known, other=0.0).to(tl.float32)
            part = tl.dot(values, tl.trans(_e4m3(codes).to(TYPE)), input_precision="ieee")
            total += part * step[None, :]
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _gate_up(  # type: ignore[no-untyped-def]
    x, inside, order, block_expert, block_first, block_rows, weight, scale, scale_2,
    experts, chosen, OUT: tl.constexpr, IN: tl.constexpr, BLOCK: tl.constexpr,
    NVFP4: tl.constexpr, TYPE: tl.constexpr, OUT_TILE: tl.constexpr, IN_TILE: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of one block of pairs, at their places in `order`: inside [P, OUT]."""
    block, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(block_expert + block)
    if expert < experts:
        lane = tl.arange(0, BLOCK)
        live = lane < tl.load(block_rows + block)
        place = tl.load(block_first + block) + lane
        rows = tl.load(order + place, live, other=0) // chosen
        gate = _product(x, rows, live, weight, scale, 2 * expert, tile,
                        OUT, IN, BLOCK, NVFP4, TYPE, OUT_TILE, IN_TILE)  # fmt: skip
        up = _product(x, rows, live, weight, scale, 2 * expert + 1, tile,
                      OUT, IN, BLOCK, NVFP4, TYPE, OUT_TILE, IN_TILE)  # fmt: skip
        if NVFP4:
            gate *= tl.load(scale_2 + 2 * expert)
            up *= tl.load(scale_2 + 2 * expert + 1)
        out = tile * OUT_TILE + tl.arange(0, OUT_TILE)
        value = gate / (1.0 + tl.exp(-gate)) * up
        kept = live[:, None] & (out < OUT)[None, :]
        to = inside + place[:, None] * OUT + out[None, :]
        tl.store(to, value.to(inside.dtype.element_ty), kept)


@triton.jit  # type: ignore[untyped-decorator]
def _down(  # type: ignore[no-untyped-def]
    inside, result, order, share, block_expert, block_first, block_rows, weight, scale, scale_2,
    experts, OUT: tl.constexpr, IN: tl.constexpr, BLOCK: tl.constexpr, NVFP4: tl.constexpr,
    TYPE: tl.constexpr, OUT_TILE: tl.constexpr, IN_TILE: tl.constexpr,
):  # fmt: skip
    """The weighted output of one block of pairs, each at its pair's own row: result [P, OUT]."""
    block, tile = tl.program_id(0), tl.program_id(1)
    expert = tl.load(block_expert + block)
    if expert < experts:
        lane = tl.arange(0, BLOCK)
        live = lane < tl.load(block_rows + block)
        place = tl.load(block_first + block) + lane
        pair = tl.load(order + place, live, other=0)
        value = _product(inside, place, live, weight, scale, expert, tile,
                         OUT, IN, BLOCK, NVFP4, TYPE, OUT_TILE, IN_TILE)  # fmt: skip
        if NVFP4:
            value *= tl.load(scale_2 + expert)
        value *= tl.load(share + pair, live, other=0.0).to(tl.float32)[:, None]
        out = tile * OUT_TILE + tl.arange(0, OUT_TILE)
        kept = live[:, None] & (out < OUT)[None, :]
        tl.store(result + pair[:, None] * OUT + out[None, :], value, kept)
