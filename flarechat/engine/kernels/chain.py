"""Which drafts the target keeps and the token it adds, by ratio and by match, in one kernel.

Owns the chain of `accept.accept` over laws of few candidates. A program decides for one lane, by
the law its slot asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from flarechat.engine.kernels import draws
from flarechat.engine.kernels.draws import races, token_at_mass, uniform, winner
from flarechat.engine.kernels.launch import begin, options, wait

if TYPE_CHECKING:
    from flarechat.engine.proposal import Proposal
    from flarechat.engine.sampling import TargetLaw
    from flarechat.engine.slot import Lanes

MOST, WARPS = 64, 8
_ACCEPT: tl.constexpr = tl.constexpr(draws.ACCEPT)
_STRIDE: tl.constexpr = tl.constexpr(draws.ACCEPT_STRIDE)


def fits(law: TargetLaw, proposal: Proposal) -> bool:
    """Whether both laws are of few candidates, each with its id."""
    if law.ids is None or law.ids.shape[-1] > MOST:
        return False
    return proposal.probs is None or (proposal.ids is not None and proposal.ids.shape[-1] <= MOST)


def accept(
    law: TargetLaw, proposal: Proposal, lanes: Lanes, acceptance: str
) -> tuple[Tensor, Tensor]:
    """tokens int64 [B, W] and accepted int64 [B], as `accept.accept`, where the laws fit."""
    assert law.ids is not None
    lanes_count, width, candidates = law.probs.shape
    pool, drafts, q = lanes.pool, proposal.tokens, proposal.probs
    tokens = torch.empty(lanes_count, width, dtype=torch.int64, device=drafts.device)
    accepted = torch.empty(lanes_count, dtype=torch.int64, device=drafts.device)
    q_ids = proposal.ids if q is not None and proposal.ids is not None else law.ids
    sure = proposal.offered if proposal.sure is None else proposal.sure
    of_drafts = q.shape[-1] if q is not None else 1
    _accept[(lanes_count,)](
        law.probs.contiguous(), law.ids.contiguous(), drafts, proposal.offered, sure,
        (q if q is not None else law.probs).contiguous(), q_ids.contiguous(),
        lanes.index, pool.seed, pool.match, pool.consumed, tokens, accepted, drafts.stride(0),
        width - 1, int(proposal.sure is not None), DRAFTED=width > 1,
        ROWS=triton.next_power_of_2(max(width, 2)), FOUND=candidates,
        C=triton.next_power_of_2(candidates), Q_FOUND=of_drafts,
        Q=triton.next_power_of_2(of_drafts), POINTS=q is None, MODE=draws.MODES[acceptance],
        num_warps=WARPS, **options(drafts),
    )  # fmt: skip
    return tokens, accepted


@triton.jit  # type: ignore[untyped-decorator]
def _leading(agreed, rows, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Length of the leading run of True."""
    return tl.min(tl.where(agreed, ROWS, rows), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _matched(  # type: ignore[no-untyped-def]
    probs, ids, drafts, offered, untested, seed, first, rows, ROWS: tl.constexpr
):
    """The target's own draws [ROWS], sure drafts in their place, and how many they confirm."""
    race = races(ids, probs, seed, first + rows[:, None])
    own = tl.where(rows < untested, drafts, winner(ids, race))
    return own, _leading((own == drafts) & (rows < offered), rows, ROWS)


@triton.jit  # type: ignore[untyped-decorator]
def _residual(  # type: ignore[no-untyped-def]
    ids, probs, draft, q, q_ids, at, column, Q_FOUND: tl.constexpr, POINTS: tl.constexpr
):
    """max(p - q, 0) of one row's candidates [C]; `at` is where its q begins."""
    if POINTS:
        return tl.where(ids == draft, 0.0, probs)
    known = column < Q_FOUND
    q_of = tl.load(q + at + column, known, other=0.0)
    their = tl.load(q_ids + at + column, known, other=-1)
    same = ids[:, None] == their[None, :]
    return tl.maximum(probs - tl.sum(tl.where(same, q_of[None, :], 0.0), 1), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _ratioed(  # type: ignore[no-untyped-def]
    probs, ids, law, law_ids, start, drafts, offered, untested, q, q_ids, q_start, seed, first,
    rows, depth, DRAFTED: tl.constexpr, ROWS: tl.constexpr, FOUND: tl.constexpr, C: tl.constexpr,
    Q_FOUND: tl.constexpr, Q: tl.constexpr, POINTS: tl.constexpr,
):  # fmt: skip
    """Accepted drafts and the token after them; draws are numbered as `accept_ratio` says."""
    candidate, column = tl.arange(0, C), tl.arange(0, Q)
    of_target = tl.sum(tl.where(ids == drafts[:, None], probs, 0.0), 1)
    of_draft = tl.full((ROWS,), 1.0, tl.float32)
    if not POINTS:
        known = (rows[:, None] < depth) & (column[None, :] < Q_FOUND)
        at = q_start + rows[:, None] * Q_FOUND + column[None, :]
        same = tl.load(q_ids + at, known, other=-1) == drafts[:, None]
        of_draft = tl.sum(tl.where(same, tl.load(q + at, known, other=0.0), 0.0), 1)
    u = uniform(seed, _ACCEPT, first * _STRIDE + rows)
    kept = (u * of_draft < of_target) | (rows < untested)
    kept = kept & (rows < tl.minimum(offered, depth))
    accepted = _leading(kept, rows, ROWS)
    last = uniform(seed, _ACCEPT, first * _STRIDE + tl.where(accepted == depth, depth, depth + 1))
    at = start + accepted * FOUND + candidate
    own = tl.load(law + at, candidate < FOUND, other=0.0)
    own_ids = tl.load(law_ids + at, candidate < FOUND, other=-1)
    left = own
    if DRAFTED:
        draft = tl.sum(tl.where(rows == accepted, drafts, 0), 0)
        q_at = q_start + tl.minimum(accepted, depth - 1) * Q_FOUND
        less = _residual(own_ids, own, draft, q, q_ids, q_at, column, Q_FOUND, POINTS)
        left = tl.where(accepted < offered, less, own)
        left = tl.where(tl.sum(left, 0) > 0, left, own)
    return accepted, token_at_mass(own_ids, left, last * tl.sum(left, 0))


@triton.jit(do_not_specialize=["stride", "depth", "any_sure"])  # type: ignore[untyped-decorator]
def _accept(  # type: ignore[no-untyped-def]
    law, law_ids, drafts, offered_by_lane, sure_by_lane, q, q_ids, index, seeds, match, consumed,
    tokens, accepted_by_lane, stride, depth, any_sure, DRAFTED: tl.constexpr, ROWS: tl.constexpr,
    FOUND: tl.constexpr, C: tl.constexpr, Q_FOUND: tl.constexpr, Q: tl.constexpr,
    POINTS: tl.constexpr, MODE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One lane: kept drafts, then the target's own token; by match its own draws to the end."""
    begin(PDL)
    lane = tl.program_id(0).to(tl.int64)
    depth = depth if DRAFTED else 0
    rows, candidate = tl.arange(0, ROWS), tl.arange(0, C)
    start, q_start = lane * (depth + 1) * FOUND, lane * depth * Q_FOUND
    known = (rows[:, None] <= depth) & (candidate[None, :] < FOUND)
    at = start + rows[:, None] * FOUND + candidate[None, :]
    slot = tl.load(index + lane)
    seed, first = tl.load(seeds + slot), tl.load(consumed + slot) + 1
    wait(PDL)
    offered = tl.load(offered_by_lane + lane)
    untested = tl.minimum(tl.load(sure_by_lane + lane) * any_sure, offered)
    probs, ids = tl.load(law + at, known, other=0.0), tl.load(law_ids + at, known, other=-1)
    given = tl.load(drafts + lane * stride + rows, rows < depth, other=-2)
    accepted, said = offered, given
    by_match = MODE == 1
    if MODE == 2:
        by_match = tl.load(match + slot) != 0
    if by_match:
        said, accepted_rows = _matched(
            probs, ids, given, offered, untested, seed, first, rows, ROWS
        )  # fmt: skip
        accepted = accepted_rows.to(tl.int64)
    else:
        kept, token = _ratioed(
            probs, ids, law, law_ids, start, given, offered, untested, q, q_ids, q_start, seed,
            first, rows, depth, DRAFTED, ROWS, FOUND, C, Q_FOUND, Q, POINTS,
        )  # fmt: skip
        accepted = kept.to(tl.int64)
        said = tl.where(rows == accepted, token, tl.maximum(given, 0))
    tl.store(tokens + lane * (depth + 1) + rows, said, rows <= depth)
    tl.store(accepted_by_lane + lane, accepted)
