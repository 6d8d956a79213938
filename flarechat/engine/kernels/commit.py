"""The small steps around a round's pass, one kernel each: inputs, clip, advance and frame.

Owns the kernels of `Lanes.inputs`, `accept.clip`, `Lanes.advance` and `frame.pack`, which are
their references. A program does one lane; counters are read and written by slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from flarechat.engine.kernels.launch import RUNNING, begin, ended, options, wait

if TYPE_CHECKING:
    from flarechat.engine.slot import Lanes

_WIDEST = 8  # rows of the widest round; one variant does for all widths
# A lane's finish column, as `accept` has it; a test holds the two together.
STOPPED, EXHAUSTED = 1, 2
_RUNNING: tl.constexpr = tl.constexpr(RUNNING)
_STOPPED: tl.constexpr = tl.constexpr(STOPPED)
_EXHAUSTED: tl.constexpr = tl.constexpr(EXHAUSTED)


def inputs(lanes: Lanes, drafts: Tensor) -> Tensor:
    """int64 [B, W]: the pending token of each lane and its drafts [B, K]."""
    out = torch.empty(
        len(drafts), drafts.shape[1] + 1, dtype=torch.int64, device=lanes.index.device
    )
    _inputs[(len(drafts),)](
        lanes.index, lanes.pool.pending, drafts, out, drafts.stride(0), **_width(out),
        **options(out),
    )  # fmt: skip
    return out


def clip(tokens: Tensor, accepted: Tensor, lanes: Lanes) -> tuple[Tensor, Tensor]:
    """As `accept.clip`."""
    emitted, finish, pool = torch.empty_like(accepted), torch.empty_like(accepted), lanes.pool
    _clip[(len(accepted),)](
        tokens, accepted, lanes.index, pool.eos, pool.finish, pool.budget, pool.generated,
        emitted, finish, **_width(tokens), EOS=pool.eos.shape[1], **options(tokens),
    )  # fmt: skip
    return emitted, finish


def advance(lanes: Lanes, tokens: Tensor, emitted: Tensor, finish: Tensor) -> None:
    """As `Lanes.advance`."""
    pool = lanes.pool
    _advance[(len(emitted),)](
        tokens, emitted, finish, lanes.index, pool.pending, pool.consumed, pool.generated,
        pool.finish, pool.counts, pool.vocabulary, **_width(tokens), **options(tokens),
    )  # fmt: skip


def pack(
    lanes: Lanes, offered: Tensor, accepted: Tensor, emitted: Tensor, finish: Tensor,
    tokens: Tensor, header: int,
) -> Tensor:  # fmt: skip
    """As `frame.pack`: int64 [B, header + W]."""
    width, pool = tokens.shape[1], lanes.pool
    out = torch.empty(len(tokens), header + width, dtype=torch.int64, device=tokens.device)
    _pack[(len(tokens),)](
        offered, accepted, emitted, finish, lanes.index, pool.consumed, pool.generated, tokens,
        out, HEADER=header, **_width(tokens), **options(tokens),
    )  # fmt: skip
    return out


def _width(tokens: Tensor) -> dict[str, int]:
    """The width, which is no part of a variant, and the rows that a program has for it."""
    width = tokens.shape[1]
    rows = max(int(triton.next_power_of_2(width)), _WIDEST)
    return {"width": width, "ROWS": rows, "num_warps": 1}


@triton.jit(do_not_specialize=["stride", "width"])  # type: ignore[untyped-decorator]
def _inputs(  # type: ignore[no-untyped-def]
    index, pending, drafts, out, stride, width, ROWS: tl.constexpr, PDL: tl.constexpr
):
    begin(PDL)
    lane, row = tl.program_id(0).to(tl.int64), tl.arange(0, ROWS)
    wait(PDL)
    first = tl.load(pending + tl.load(index + lane))
    draft = tl.load(drafts + lane * stride + row - 1, (row > 0) & (row < width), other=0)
    tl.store(out + lane * width + row, tl.where(row == 0, first, draft), row < width)


@triton.jit(do_not_specialize=["width"])  # type: ignore[untyped-decorator]
def _clip(  # type: ignore[no-untyped-def]
    tokens, accepted, index, eos, finish, budget, generated, emitted_out, finish_out,
    width, ROWS: tl.constexpr, EOS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    lane, row, ending = tl.program_id(0).to(tl.int64), tl.arange(0, ROWS), tl.arange(0, EOS)
    wait(PDL)
    slot, kept = tl.load(index + lane), tl.load(accepted + lane)
    token = tl.load(tokens + lane * width + row, row < width, other=-2)
    ends = tl.load(eos + slot * EOS + ending)
    terminal = tl.max((token[:, None] == ends[None, :]).to(tl.int32), 1) > 0
    first = tl.min(tl.where(terminal & (row <= kept), row, width), 0).to(tl.int64)
    before, left = tl.load(finish + slot), tl.load(budget + slot) - tl.load(generated + slot)
    emitted = tl.minimum(tl.minimum(kept, first) + 1, left)
    ended = tl.where(emitted == left, _EXHAUSTED, _RUNNING)
    ended = tl.where(first < emitted, _STOPPED, ended)
    live = before == _RUNNING
    tl.store(emitted_out + lane, tl.where(live, emitted, 0))
    tl.store(finish_out + lane, tl.where(live, ended, before))


@triton.jit(do_not_specialize=["width"])  # type: ignore[untyped-decorator]
def _advance(  # type: ignore[no-untyped-def]
    tokens, emitted, finish, index, pending, consumed, generated, finishes, counts, vocabulary,
    width, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # No kernel begins before this one has ended: those of the next round read, ahead of what they
    # wait for, where the lanes stand and the cache rows of the rounds before.
    lane, row = tl.program_id(0).to(tl.int64), tl.arange(0, ROWS)
    ended(PDL)
    slot, count = tl.load(index + lane), tl.load(emitted + lane)
    token = tl.load(tokens + lane * width + row, row < count, other=0)
    last = tl.sum(tl.where(row == count - 1, token, 0), 0)
    tl.store(pending + slot, last, count > 0)
    tl.store(consumed + slot, tl.load(consumed + slot) + count)
    tl.store(generated + slot, tl.load(generated + slot) + count)
    tl.store(finishes + slot, tl.load(finish + lane))
    # A token may be there twice.
    one = tl.full((ROWS,), 1, tl.int32)
    tl.atomic_add(counts + slot * vocabulary + token, one, row < count, sem="relaxed")


@triton.jit(do_not_specialize=["width"])  # type: ignore[untyped-decorator]
def _pack(  # type: ignore[no-untyped-def]
    offered, accepted, emitted, finish, index, consumed, generated, tokens, out,
    width, HEADER: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    lane, row = tl.program_id(0).to(tl.int64), tl.arange(0, ROWS)
    wait(PDL)
    slot, to = tl.load(index + lane), out + lane * (HEADER + width)
    tl.store(to + 0, tl.load(offered + lane))
    tl.store(to + 1, tl.load(accepted + lane))
    tl.store(to + 2, tl.load(emitted + lane))
    tl.store(to + 3, tl.load(finish + lane))
    tl.store(to + 4, tl.load(consumed + slot))
    tl.store(to + 5, tl.load(generated + slot))
    known = row < width
    tl.store(to + HEADER + row, tl.load(tokens + lane * width + row, known, other=0), known)
