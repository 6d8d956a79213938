"""Rows looked up by number, in Triton: embeddings of tokens, what a draft head reads of them, and
the hidden rows it starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from flarechat.engine.kernels.launch import begin, options, placed, places, wait

if TYPE_CHECKING:
    from flarechat.engine.window import Window

_PART = 1024  # features of a row that a program copies


def embed(tokens: Tensor, table: Tensor) -> Tensor:
    """Rows of table [V, D] for tokens int64 [B, W] → [B, W, D]."""
    dim = table.shape[1]
    out = torch.empty(*tokens.shape, dim, dtype=table.dtype, device=table.device)
    grid = (tokens.numel(), triton.cdiv(dim, _PART))
    _embed[grid](
        tokens.contiguous(), table, out, DIM=dim, PART=_part(dim), num_warps=4, **options(table)
    )
    return out


def pair(
    hidden: Tensor, norm_hidden: Tensor, tokens: Tensor, table: Tensor, norm_embedding: Tensor,
    eps: float,
) -> Tensor:  # fmt: skip
    """The normalised hidden rows [B, W, D] and embeddings of tokens int64 [B, W], side by side:
    [B, W, 2 D]."""
    dim = table.shape[1]
    out = torch.empty(*tokens.shape, 2 * dim, dtype=table.dtype, device=table.device)
    _pair[(tokens.numel(), 2)](
        hidden.reshape(-1, dim), norm_hidden, tokens.contiguous(), table, norm_embedding, out, eps,
        DIM=dim, WHOLE=triton.next_power_of_2(dim), num_warps=4, **options(table),
    )  # fmt: skip
    return out


def store(rows: Tensor, hidden: Tensor, window: Window) -> None:
    """Put hidden [B, W, D] into the window's rows of rows [S, R, D]."""
    batch, width, dim = hidden.shape
    _store[(batch * width, triton.cdiv(dim, _PART))](
        rows, hidden.contiguous(), rows.stride(0), **places(window),
        DIM=dim, PART=_part(dim), num_warps=4, **options(rows),
    )  # fmt: skip


def last(rows: Tensor, window: Window) -> Tensor:
    """[B, 1, D]: each lane's row of rows [S, R, D] at the position of the window's first row."""
    dim, batch = rows.shape[2], len(window.index)
    out = torch.empty(batch, 1, dim, dtype=rows.dtype, device=rows.device)
    _last[(batch, triton.cdiv(dim, _PART))](
        rows, out, rows.stride(0), **places(window), DIM=dim, PART=_part(dim), num_warps=4,
        **options(rows),
    )  # fmt: skip
    return out


def _part(dim: int) -> int:
    return min(int(triton.next_power_of_2(dim)), _PART)


@triton.jit(do_not_specialize_on_alignment=["tokens"])  # type: ignore[untyped-decorator]
def _embed(  # type: ignore[no-untyped-def]
    tokens, table, out, DIM: tl.constexpr, PART: tl.constexpr, PDL: tl.constexpr
):
    """A part of one token's row."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * PART + tl.arange(0, PART)
    wait(PDL)
    value = tl.load(table + tl.load(tokens + row) * DIM + d, d < DIM)
    tl.store(out + row * DIM + d, value, d < DIM)


@triton.jit(do_not_specialize_on_alignment=["tokens"])  # type: ignore[untyped-decorator]
def _pair(  # type: ignore[no-untyped-def]
    hidden, norm_hidden, tokens, table, norm_embedding, out, eps,
    DIM: tl.constexpr, WHOLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One half of one row: the hidden one first."""
    begin(PDL)
    row, half = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, WHOLE)
    wait(PDL)
    if half == 0:
        source, norm = hidden + row * DIM, norm_hidden
    else:
        source, norm = table + tl.load(tokens + row) * DIM, norm_embedding
    value = tl.load(source + d, d < DIM, other=0.0).to(tl.float32)
    weight = tl.load(norm + d, d < DIM, other=0.0).to(tl.float32)
    value = value * tl.rsqrt(tl.sum(value * value, axis=0) / DIM + eps) * weight
    tl.store(out + (2 * row + half) * DIM + d, value.to(out.dtype.element_ty), d < DIM)


@triton.jit(do_not_specialize=["width", "shift", "spare"])  # type: ignore[untyped-decorator]
def _store(  # type: ignore[no-untyped-def]
    rows, hidden, slot_step, index, consumed, finish, width, shift, spare,
    PREFILLING: tl.constexpr, DIM: tl.constexpr, PART: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A part of one hidden row, to its place."""
    begin(PDL)
    row = tl.program_id(0)
    d = tl.program_id(1) * PART + tl.arange(0, PART)
    wait(PDL)
    slot, _, place, _ = placed(
        row, row >= 0, index, consumed, finish, width, shift, spare, PREFILLING
    )
    value = tl.load(hidden + row.to(tl.int64) * DIM + d, d < DIM)
    tl.store(rows + slot * slot_step + place * DIM + d, value, d < DIM)


@triton.jit(do_not_specialize=["width", "shift", "spare"])  # type: ignore[untyped-decorator]
def _last(  # type: ignore[no-untyped-def]
    rows, out, slot_step, index, consumed, finish, width, shift, spare,
    PREFILLING: tl.constexpr, DIM: tl.constexpr, PART: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A part of one lane's row."""
    begin(PDL)
    lane = tl.program_id(0)
    d = tl.program_id(1) * PART + tl.arange(0, PART)
    wait(PDL)
    slot, position, _, _ = placed(
        lane * width, lane >= 0, index, consumed, finish, width, shift, spare, PREFILLING
    )
    value = tl.load(rows + slot * slot_step + position * DIM + d, d < DIM)
    tl.store(out + lane.to(tl.int64) * DIM + d, value, d < DIM)
