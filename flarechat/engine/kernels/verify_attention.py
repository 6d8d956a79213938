"""Attention of a window's rows over their slots' keys and values, split over the keys, in Triton.

Owns how the keys are split and put together again. A split is a fixed number of keys, so a row's
result does not depend on how many rows travel with it, and lengths are read on the device. The last
program of a lane, kv head and row tile to arrive adds the splits up, in their order.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from flarechat.engine.kernels.launch import begin, options, places, product_type, standing, wait

if TYPE_CHECKING:
    from flarechat.engine.window import Window

ROUND = 8  # rows of the widest round; more are a prompt's, whose tiles are many enough unsplit
_MOST_SPLITS, _COUNTERS = 128, 1 << 16
_NONE: tl.constexpr = tl.constexpr(-1e30)


@dataclass(frozen=True, slots=True)
class Split:
    """Keys of a block, blocks of a split, warps, loads under way, and splits added up at once."""

    keys: int = 128
    blocks: int = 1
    warps: int = 4
    stages: int = 3
    merged: int = 8


def split_for(dim: int, size: int = 2) -> Split:
    """How to split the keys of heads of `dim` dimensions of `size` bytes."""
    if dim > 128 or size > 2:
        return Split(keys=16 * 256 // max(dim, 128) if size > 2 else 32, warps=8, merged=2)
    return Split() if dim <= 64 else Split(keys=64, merged=4)


def attend(
    q: Tensor, keys: Tensor, values: Tensor, window: Window, split: Split | None = None
) -> Tensor:
    """Queries [B, W, heads, D] over keys and values [S, H, rows, D] of the lanes' slots, each row
    up to its own position → [B, W, heads * D]. Rows of lanes at rest come to nothing in particular.
    """
    batch, width, heads, dim = q.shape
    _, kv_heads, capacity, _ = keys.shape
    group = heads // kv_heads
    split = split or split_for(dim, q.element_size())
    own = layout(group, dim, capacity, width, q.element_size(), split)
    splits, tall = own.splits, own.tall
    tiles = triton.cdiv(width * group, tall)
    out = torch.empty(batch, width, heads * dim, dtype=q.dtype, device=q.device)
    parts = batch * kv_heads * tiles * splits * tall if splits > 1 else 1
    padded = padded_for(dim)
    sums = torch.empty(parts, padded, dtype=torch.float32, device=q.device)
    scales = torch.empty(parts, 2, dtype=torch.float32, device=q.device)
    _attend[(splits, tiles, batch * kv_heads)](
        q, keys, values, out, sums, scales, counters(q.device, batch * kv_heads * tiles),
        keys.stride(0), keys.stride(1), math.log2(math.e) / math.sqrt(dim), **places(window),
        GROUP=group, KV_HEADS=kv_heads, DIM=dim, PADDED=padded, ROWS=capacity, TALL=tall,
        KEYS=split.keys, BLOCKS=own.blocks, SPLITS=splits, MERGED=split.merged,
        FEW=_few(width * group, tall),
        TYPE=product_type(q), STAGES=split.stages, num_warps=split.warps, **options(q),
    )  # fmt: skip
    return out


def padded_for(dim: int) -> int:
    """The dimensions of a head in a tile: a power of two, and as many as a product needs."""
    return max(int(triton.next_power_of_2(dim)), 16)


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows of a tile, blocks of a split, and splits."""

    tall: int
    blocks: int
    splits: int


def layout(group: int, dim: int, capacity: int, width: int, size: int, split: Split) -> Layout:
    """How a window of `width` rows over caches of `capacity` rows is cut. A tile has the rows of
    the widest round, if they are not too many to hold."""
    most = 64 if dim > 128 or width > ROUND else 128
    most = 16 if dim > 128 and size > 2 else most
    tall = min(max(int(triton.next_power_of_2(ROUND * group)), 16), most)
    blocks = triton.cdiv(capacity, split.keys)
    own = max(split.blocks, triton.cdiv(blocks, _MOST_SPLITS)) if width <= ROUND else blocks
    return Layout(tall, own, triton.cdiv(blocks, own))


def _few(rows: int, tall: int) -> int:
    """Rows of a tile that are put together again: those there are, in a power of two."""
    return min(max(int(triton.next_power_of_2(rows)), 4), tall)


def counters(device: torch.device, count: int) -> Tensor:
    """int32 zeros, `count` at least; whoever uses them leaves zeros."""
    if count > _COUNTERS:
        raise ValueError(f"{count} tiles of rows; the kernel counts {_COUNTERS}")
    return _counters(device)


@functools.cache
def _counters(device: torch.device) -> Tensor:
    return torch.zeros(_COUNTERS, dtype=torch.int32, device=device)


@triton.jit(do_not_specialize=["width", "shift", "spare"])  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    q, keys, values, out, sums, scales, arrived, slot_step, head_step, factor,
    index, consumed, finish, width, shift, spare, PREFILLING: tl.constexpr,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, TALL: tl.constexpr, KEYS: tl.constexpr, BLOCKS: tl.constexpr,
    SPLITS: tl.constexpr, MERGED: tl.constexpr, FEW: tl.constexpr, TYPE: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One split of one tile of rows of a lane and kv head: rows w * GROUP + g, in that order."""
    begin(PDL)
    split, tile = tl.program_id(0), tl.program_id(1)
    lane, head = tl.program_id(2) // KV_HEADS, tl.program_id(2) % KV_HEADS
    r = tile * TALL + tl.arange(0, TALL)
    w, there = r // GROUP, r < width * GROUP
    d = tl.arange(0, PADDED)
    slot, before, position = standing(index + lane, consumed, finish, shift + w, ROWS, PREFILLING)
    last = tl.max(tl.where(there, position, 0))
    used = last // (KEYS * BLOCKS) + 1
    if split >= used:
        return
    base = slot * slot_step + head * head_step
    first = split * (KEYS * BLOCKS)
    end = tl.minimum(first + KEYS * BLOCKS, last + 1)
    k = first + tl.arange(0, KEYS)
    lines = base + k[:, None] * DIM + d[None, :]
    if BLOCKS == 1:
        # All but the newest rows are there since an earlier round.
        old = _within(k < tl.minimum(before - 1, end), d, DIM, PADDED)
        key = tl.load(keys + lines, old, other=0.0)
        value = tl.load(values + lines, old, other=0.0)
    wait(PDL)
    row = (lane * width + w) * (GROUP * KV_HEADS) + head * GROUP + r % GROUP
    at = row[:, None] * DIM + d[None, :]
    shown = _within(there, d, DIM, PADDED)
    own = tl.load(q + at, shown, other=0.0).to(TYPE)
    if BLOCKS == 1:
        new = _within((k >= before - 1) & (k < end), d, DIM, PADDED)
        key = tl.load(keys + lines, new, other=key)
        value = tl.load(values + lines, new, other=value)
        most, total, seen = _looked(own, key, value, k, position, factor, TYPE)
    else:
        most, total, seen = _walked(
            own, keys, values, base, first, end, position, factor, TALL, KEYS, DIM, PADDED, STAGES
        )
    KIND: tl.constexpr = out.dtype.element_ty
    if SPLITS == 1:
        tl.store(out + at, (seen / total[:, None]).to(KIND), shown)
    else:
        group = (tl.program_id(2) * tl.num_programs(1) + tile).to(tl.int64)
        _left(sums, scales, (group * SPLITS + split) * TALL, most, total, seen, there, TALL, PADDED)
        if tl.atomic_add(arrived + group, 1, sem="acq_rel") == used - 1:
            tl.debug_barrier()
            tl.store(arrived + group, 0)
            f = tile * TALL + tl.arange(0, FEW)
            known = f < width * GROUP
            merged = _merged(sums, scales, group * SPLITS, used, known, d,
                             FEW, TALL, PADDED, MERGED)  # fmt: skip
            to = (lane * width + f // GROUP) * (GROUP * KV_HEADS) + head * GROUP + f % GROUP
            to = out + to[:, None] * DIM + d[None, :]
            tl.store(to, merged.to(KIND), _within(known, d, DIM, PADDED))


@triton.jit  # type: ignore[untyped-decorator]
def _within(rows, d, DIM: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which of rows [n] and dimensions [PADDED] are there: all dimensions, where none is added."""
    if PADDED == DIM:
        return rows[:, None]
    else:
        return rows[:, None] & (d < DIM)[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def _looked(own, key, value, k, position, factor, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What rows see of the keys numbered k: their highest score, shares in all and values."""
    score = tl.dot(own, tl.trans(key.to(TYPE)), input_precision="ieee") * factor
    score = tl.where(k[None, :] <= position[:, None], score, _NONE)
    most = tl.max(score, axis=1)
    share = tl.where(score > _NONE, tl.exp2(score - most[:, None]), 0.0)
    told = share.to(value.dtype).to(TYPE)
    return most, tl.sum(share, axis=1), tl.dot(told, value.to(TYPE), input_precision="ieee")


@triton.jit  # type: ignore[untyped-decorator]
def _walked(  # type: ignore[no-untyped-def]
    own, keys, values, base, first, end, position, factor, TALL: tl.constexpr, KEYS: tl.constexpr,
    DIM: tl.constexpr, PADDED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The same of the keys from `first` to before `end`, block by block."""
    TYPE: tl.constexpr = own.dtype
    d = tl.arange(0, PADDED)
    most = tl.full((TALL,), _NONE, tl.float32)
    total = tl.zeros((TALL,), tl.float32)
    seen = tl.zeros((TALL, PADDED), tl.float32)
    for start in tl.range(first, end, KEYS, num_stages=STAGES):
        k = start + tl.arange(0, KEYS)
        lines = base + k[:, None] * DIM + d[None, :]
        known = _within(k < end, d, DIM, PADDED)
        key = tl.load(keys + lines, known, other=0.0).to(TYPE)
        score = tl.dot(own, tl.trans(key), input_precision="ieee") * factor
        score = tl.where(k[None, :] <= position[:, None], score, _NONE)
        higher = tl.maximum(most, tl.max(score, axis=1))
        share = tl.where(score > _NONE, tl.exp2(score - higher[:, None]), 0.0)
        kept = tl.exp2(most - higher)
        value = tl.load(values + lines, known, other=0.0).to(TYPE)
        total = total * kept + tl.sum(share, axis=1)
        told = share.to(values.dtype.element_ty).to(TYPE)
        seen = seen * kept[:, None] + tl.dot(told, value, input_precision="ieee")
        most = higher
    return most, total, seen


@triton.jit  # type: ignore[untyped-decorator]
def _left(  # type: ignore[no-untyped-def]
    sums, scales, first, most, total, seen, there, TALL: tl.constexpr, DIM: tl.constexpr
):
    """Leave a split's part, from row `first` on, for whoever comes last."""
    part = first + tl.arange(0, TALL)
    tl.store(scales + part * 2, most, there)
    tl.store(scales + part * 2 + 1, total, there)
    tl.store(sums + part[:, None] * DIM + tl.arange(0, DIM)[None, :], seen, there[:, None])
    tl.debug_barrier()


@triton.jit  # type: ignore[untyped-decorator]
def _merged(  # type: ignore[no-untyped-def]
    sums, scales, first, used, there, d, FEW: tl.constexpr, TALL: tl.constexpr, DIM: tl.constexpr,
    MERGED: tl.constexpr,
):  # fmt: skip
    """float32 [FEW, DIM]: the splits `first` … `first` + `used` - 1 as one, MERGED at a time and
    each after the one before, so that the sum does not depend on how many rows there are."""
    r = tl.arange(0, FEW)
    highest = tl.full((FEW,), _NONE, tl.float32)
    whole = tl.zeros((FEW,), tl.float32)
    seen = tl.zeros((FEW, DIM), tl.float32)
    for start in range(0, used, MERGED):
        mosts, totals, owns = (), (), ()
        higher = highest
        for step in tl.static_range(MERGED):
            number = start + step + tl.zeros_like(r)
            held = there & (number < used)
            line = (first + number) * TALL + r
            most = tl.load(scales + line * 2, held, other=_NONE, cache_modifier=".cg")
            total = tl.load(scales + line * 2 + 1, held, other=0.0, cache_modifier=".cg")
            own = tl.load(sums + line[:, None] * DIM + d[None, :], held[:, None], other=0.0,
                          cache_modifier=".cg")  # fmt: skip
            higher = tl.maximum(higher, most)
            mosts, totals, owns = mosts + (most,), totals + (total,), owns + (own,)  # type: ignore[assignment] # noqa: RUF005
        kept = tl.exp2(highest - higher)
        whole, seen = whole * kept, seen * kept[:, None]
        for step in tl.static_range(MERGED):
            share = tl.exp2(mosts[step] - higher)
            whole += share * totals[step]
            seen += share[:, None] * owns[step]
        highest = higher
    return seen / tl.where(there, whole, 1.0)[:, None]
