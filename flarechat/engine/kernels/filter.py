"""Logits to the law of each row over its 64 likeliest tokens, in Triton, and a draft's draw.

Owns what `sampling.target_law` computes where no lane asks for more candidates: penalties, the
likeliest tokens, temperature, top-k, top-p and min-p. Of equal logits the token of the lower id
comes first. Two launches: the likeliest of every block of columns, then those of a row and its law.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from flarechat.engine.kernels import draws
from flarechat.engine.kernels.draws import races, token_at_mass, uniform, winner
from flarechat.engine.kernels.largest import largest, largest_of_runs
from flarechat.engine.kernels.launch import begin, options, wait

if TYPE_CHECKING:
    from flarechat.engine.proposal import Proposal
    from flarechat.engine.slot import Lanes

CANDIDATES = 64
_FEWEST_TURNS, _MOST_TURNS, _MOST_RUNS = 4, 7, 32
_BITS: tl.constexpr = tl.constexpr(6)
_DRAFT: tl.constexpr = tl.constexpr(draws.DRAFT)
_STRIDE: tl.constexpr = tl.constexpr(draws.DRAFT_STRIDE)
_LOWEST: tl.constexpr = tl.constexpr(-(2**63))
_LAST: tl.constexpr = tl.constexpr(0x7FFFFFFF)
_LOW_WORD: tl.constexpr = tl.constexpr(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Cut:
    """A row's columns in `runs` blocks of 64 * 2^turns, and the warps of both launches."""

    runs: int
    turns: int
    warps: int
    merging_warps: int


@functools.cache
def cut_for(columns: int) -> Cut:
    """Small blocks, so that many run, but few enough that one warp puts the runs together: what it
    has to say to itself costs less than what four would have to say to one another."""
    turns = 0
    while turns < _MOST_TURNS and columns > CANDIDATES << turns:
        if turns >= _FEWEST_TURNS and triton.cdiv(columns, CANDIDATES << turns) <= _MOST_RUNS:
            break
        turns += 1
    runs = triton.cdiv(columns, CANDIDATES << turns)
    return Cut(runs, turns, max(4, 1 << turns >> 3), 1 if runs <= _MOST_RUNS else 4)


def law(
    logits: Tensor, lanes: Lanes, drafts: Tensor, penalties: bool, first: int = 0,
    vocabulary: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """probs float32 and ids int64 [B, W, 64]; arguments as of `sampling.target_law`."""
    lanes_count, width, _ = logits.shape
    probs = torch.empty(lanes_count, width, CANDIDATES, device=logits.device)
    ids = torch.empty_like(probs, dtype=torch.int64)
    likeliest = _likeliest(logits, lanes, drafts, penalties, first, vocabulary)
    _law[(lanes_count * width,)](
        likeliest, probs, ids, *_row(lanes, vocabulary), logits.shape[-1], width, 0, 0,
        *_UNUSED * (probs,), **_sizes(logits, vocabulary), MODE=0, DRAW=False,
        STAGED=False, **options(logits),
    )  # fmt: skip
    return probs, ids


class Chain:
    """Drafts of K steps as they are drawn: the tokens so far, and the law each was drawn from.

    tokens int64 [B, K], probs float32 and ids int64 [B, K, 64], offered int64 [B]. A lane's first
    `staged.offered` drafts are staged ones, with points for laws; without `staged` there are none.
    `depth` int64 [S] is by slot how many drafts a lane may draw.
    """

    def __init__(
        self, lanes: Lanes, depth: Tensor, staged: Proposal | None, draft_tokens: int,
        acceptance: str,
    ) -> None:  # fmt: skip
        shape, device = (len(lanes), draft_tokens), lanes.index.device
        self.lanes, self.depth, self.staged = lanes, depth, staged
        self.acceptance = acceptance
        self.tokens = torch.empty(shape, dtype=torch.int64, device=device)
        self.probs = torch.empty(*shape, CANDIDATES, device=device)
        self.ids = torch.empty(*shape, CANDIDATES, dtype=torch.int64, device=device)
        self.offered = torch.empty(shape[0], dtype=torch.int64, device=device)

    def draw(self, step: int, logits: Tensor, penalties: bool, vocabulary: Tensor | None) -> Tensor:
        """Draft `step` int64 [B, 1] from logits [B, 1, V], and its law."""
        lanes, staged, depth = self.lanes, self.staged, self.tokens.shape[1]
        likeliest = _likeliest(logits, lanes, self.tokens, penalties, step, vocabulary)
        given = (staged.tokens, staged.offered) if staged else (self.tokens, self.offered)
        token = torch.empty(len(lanes), 1, dtype=torch.int64, device=logits.device)
        _law[(len(lanes),)](
            likeliest, self.probs, self.ids, *_row(lanes, vocabulary), logits.shape[-1], 1,
            step, depth, lanes.pool.seed, lanes.pool.match, lanes.pool.consumed, *given,
            given[0].stride(0), self.depth, self.tokens, self.offered, token,
            **_sizes(logits, vocabulary), MODE=draws.MODES[self.acceptance], DRAW=True,
            STAGED=staged is not None, **options(logits),
        )  # fmt: skip
        return token


_UNUSED = 10


def _likeliest(
    logits: Tensor, lanes: Lanes, drafts: Tensor, penalties: bool, first: int,
    vocabulary: Tensor | None,
) -> Tensor:  # fmt: skip
    """int64 [B * W, blocks, 64]: values and columns of each block's likeliest, in one number."""
    logits, pool = logits.contiguous(), lanes.pool
    rows, columns = logits.shape[0] * logits.shape[1], logits.shape[-1]
    cut = cut_for(columns)
    out = torch.empty(rows, cut.runs, CANDIDATES, dtype=torch.int64, device=logits.device)
    filters = pool.filters
    _top[(cut.runs, rows)](
        logits, out, lanes.index, pool.counts, pool.prompt_seen.view(torch.uint8),
        filters["repetition_penalty"], filters["presence_penalty"], filters["frequency_penalty"],
        drafts, vocabulary if vocabulary is not None else lanes.index,
        columns, pool.vocabulary, logits.shape[1], first, drafts.shape[1], drafts.stride(0),
        PENALTIES=penalties, MAPPED=vocabulary is not None, TURNS=cut.turns, C=CANDIDATES,
        num_warps=cut.warps,
        # Rounded as torch rounds, so that equals stay equals.
        enable_fp_fusion=False, **options(logits),
    )  # fmt: skip
    return out


def _row(lanes: Lanes, vocabulary: Tensor | None) -> tuple[Tensor, ...]:
    filters = lanes.pool.filters
    names = ("temperature", "top_k", "top_p", "min_p")
    mapped = vocabulary if vocabulary is not None else lanes.index
    return lanes.index, *(filters[name] for name in names), mapped


def _sizes(logits: Tensor, vocabulary: Tensor | None) -> dict[str, object]:
    cut = cut_for(logits.shape[-1])
    return {
        "RUNS": cut.runs, "TURNS": (cut.runs - 1).bit_length(), "C": CANDIDATES,
        "MAPPED": vocabulary is not None, "num_warps": cut.merging_warps,
    }  # fmt: skip


@triton.jit
def _packed(value, column):  # type: ignore[no-untyped-def]
    """float32 and its column as one int64: in the order of values, and of lower columns first."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & _LAST)
    return (ordered.to(tl.int64) << 32) + (column ^ _LAST).to(tl.int64)


@triton.jit
def _value(packed):  # type: ignore[no-untyped-def]
    ordered = (packed >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & _LAST)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["width", "first", "depth", "stride"])  # type: ignore[untyped-decorator]
def _top(  # type: ignore[no-untyped-def]
    logits, out, index, counts, prompt_seen, repetition, presence, frequency, drafts, vocabulary,
    columns, tokens, width, first, depth, stride, PENALTIES: tl.constexpr, MAPPED: tl.constexpr,
    TURNS: tl.constexpr, C: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The C likeliest columns of one block of one row, after penalties."""
    begin(PDL)
    BLOCK: tl.constexpr = C * 2**TURNS
    block, row = tl.program_id(0), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    known = column < columns
    token = column.to(tl.int64)
    if PENALTIES:
        if MAPPED:
            token = tl.load(vocabulary + column, known, other=0)
        lane = row // width
        slot = tl.load(index + lane)
        scale, there = tl.load(repetition + slot), tl.load(presence + slot)
        often = tl.load(frequency + slot)
        asked = tl.abs(scale - 1.0) + tl.abs(there) + tl.abs(often)
        asked = known & (tl.zeros((BLOCK,), tl.float32) + asked > 0)
        at = slot * tokens + token
        count = tl.load(counts + at, asked, other=0)
        seen = tl.load(prompt_seen + at, asked, other=0) != 0
    wait(PDL)
    value = tl.load(logits + row.to(tl.int64) * columns + column, known, other=0.0).to(tl.float32)
    if PENALTIES:
        for place in range(tl.minimum(first + row % width, depth)):
            draft = tl.load(drafts + lane * stride + place)
            count += tl.where(token == draft, 1, 0)
        scaled = tl.where(value > 0, tl.div_rn(value, scale), value * scale)
        value = tl.where(seen | (count > 0), scaled, value)
        value -= tl.where(count > 0, there, 0.0)
        value -= often * count.to(tl.float32)
    packed = tl.where(known, _packed(value, column), _LOWEST)
    best = largest(packed, _BITS, TURNS)
    blocks = tl.num_programs(0)
    tl.store(out + (row.to(tl.int64) * blocks + block) * C + tl.arange(0, C), best)


@triton.jit  # type: ignore[untyped-decorator]
def _filtered(value, known, heat, top_k, top_p, min_p, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """probs [C] of falling values [C], as `sampling._filtered`."""
    rank = tl.arange(0, C)
    # One for each rank: the interpreter spreads no truth value.
    top_k, top_p = top_k + tl.zeros((C,), tl.int64), top_p + tl.zeros((C,), tl.float32)
    best = tl.max(tl.where(known, value, float("-inf")), 0)
    away = tl.where(value == best, 0.0, (value - best) / tl.where(heat > 0, heat, 1.0))
    probs = tl.where(known, tl.exp(away), 0.0)
    probs = probs / tl.sum(probs, 0)
    probs = tl.where((rank < top_k) | (top_k == 0), probs, 0.0)
    before = tl.cumsum(probs, 0) - probs
    kept = (before < top_p * tl.sum(probs, 0)) | (top_p >= 1) | (rank == 0)
    probs = tl.where(kept, probs, 0.0)
    probs = tl.where(probs >= min_p * tl.max(probs, 0), probs, 0.0)
    probs = probs / tl.sum(probs, 0)
    return tl.where(heat > 0, probs, tl.where(rank == 0, 1.0, 0.0))


@triton.jit(do_not_specialize=["width", "step", "depth", "stride"])  # type: ignore[untyped-decorator]
def _law(  # type: ignore[no-untyped-def]
    likeliest, probs_out, ids_out, index, temperature, top_k, top_p, min_p, vocabulary,
    columns, width, step, depth, seeds, match, consumed, staged, staged_offered, stride,
    limits, tokens, offered, said, RUNS: tl.constexpr, TURNS: tl.constexpr, C: tl.constexpr,
    MAPPED: tl.constexpr, MODE: tl.constexpr, DRAW: tl.constexpr, STAGED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The law of one row over its C likeliest and, of a draft, its token."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    lane = (tl.program_id(0) // width).to(tl.int64)
    place, rank = tl.arange(0, C * 2**TURNS), tl.arange(0, C)
    run = place // C
    if TURNS > 0:
        # Runs are stored falling; the network takes every other one rising.
        place = tl.where(run % 2 == 0, place ^ (C - 1), place)
    slot = tl.load(index + lane)
    heat, most = tl.load(temperature + slot), tl.load(top_k + slot)
    mass, least = tl.load(top_p + slot), tl.load(min_p + slot)
    wait(PDL)
    best = tl.load(likeliest + row * RUNS * C + place, run < RUNS, other=_LOWEST)
    if TURNS > 0:
        best = largest_of_runs(best, _BITS, TURNS)
    column = (best & _LOW_WORD) ^ _LAST
    known = column < columns
    probs = _filtered(_value(best), known, heat, most, mass, least, C)
    ids = tl.where(known, column, 0)
    if MAPPED:
        ids = tl.load(vocabulary + ids)
    to = row
    if DRAW:
        position = tl.load(consumed + slot) + 1 + step
        seed = tl.load(seeds + slot)
        token = tl.max(ids, 0)
        by_match = MODE == 1
        if MODE == 2:
            by_match = tl.load(match + slot) != 0
        if by_match:
            race = races(ids, probs, seed, position)
            token = tl.sum(winner(ids[None, :], race[None, :]), 0)
        else:
            token = token_at_mass(ids, probs, uniform(seed, _DRAFT, position * _STRIDE))
        count = tl.minimum(tl.load(limits + slot), depth)
        if STAGED:
            given = tl.load(staged_offered + lane)
            count = tl.maximum(count, given)
            if step < given:
                token = tl.load(staged + lane * stride + step)
                probs = tl.where(rank == 0, 1.0, 0.0)
                ids = tl.where(rank == 0, token, ids)
        tl.store(tokens + lane * depth + step, token)
        tl.store(said + lane, token)
        if step == 0:
            tl.store(offered + lane, count)
        to = lane * depth + step
    tl.store(probs_out + to * C + rank, probs)
    tl.store(ids_out + to * C + rank, ids)
