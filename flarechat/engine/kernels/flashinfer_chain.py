"""FlashInfer's chain sampler in place of our own: the same draws, from laws spread out densely.

Owns how a round is put to it: one call a lane, as a row's stream depends on its place in a call,
with seeds and offsets that stay on the device. Lanes by match are left to our own kernels.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flarechat.engine.kernels import chain, draws
from flarechat.engine.kernels.draws import key_of
from flarechat.engine.kernels.filter import Chain
from flarechat.engine.kernels.launch import begin, options, wait

if TYPE_CHECKING:
    from flarechat.engine.proposal import Proposal
    from flarechat.engine.sampling import TargetLaw
    from flarechat.engine.slot import Lanes


def sampling() -> Any:
    """FlashInfer's module; imported here only, for it takes seconds."""
    from flashinfer import sampling as module

    return module


@functools.cache
def works(device: torch.device) -> bool:
    """Whether it is there and one call of each sampler goes well; the first may compile it."""
    try:
        one = torch.ones(1, 1, 4, device=device) / 4
        number = torch.zeros(1, dtype=torch.int64, device=device)
        token = torch.zeros(1, 1, dtype=torch.int32, device=device)
        sampling().sampling_from_probs(one[0], seed=number, offset=number)
        counts = torch.zeros(2, 1, dtype=torch.int32, device=device)
        sampling().chain_speculative_sampling(
            one, token, one.repeat(1, 2, 1), *counts, seed=number, offset=number
        )
        torch.cuda.synchronize(device)
    except Exception:  # whatever a missing compiler, driver or package brings about
        return False
    return True


def accept(
    law: TargetLaw, proposal: Proposal, lanes: Lanes, acceptance: str
) -> tuple[Tensor, Tensor]:
    """As `chain.accept`; so is a round without drafts, which is no chain."""
    if acceptance == "match" or not proposal.draft_tokens:
        return chain.accept(law, proposal, lanes, acceptance)
    tokens, accepted = _chained(law, proposal, lanes)
    if acceptance == "ratio":
        return tokens, accepted
    matched, confirmed = chain.accept(law, proposal, lanes, "match")
    by_match = lanes.match()
    tokens = torch.where(by_match[:, None], matched, tokens)
    return tokens, torch.where(by_match, confirmed, accepted)


def _chained(law: TargetLaw, proposal: Proposal, lanes: Lanes) -> tuple[Tensor, Tensor]:
    assert law.ids is not None
    columns, valid = _columns(lanes), proposal.valid()
    p = _spread(law.probs, law.ids, columns)
    # What was not offered is a token that no law has, and can neither be kept nor taken from p.
    drafts = torch.where(valid, proposal.tokens, columns - 1)
    points = q = _spread(valid[..., None].float(), drafts[..., None], columns)
    if proposal.probs is not None:
        assert proposal.ids is not None
        q = _spread(proposal.probs * valid[..., None], proposal.ids, columns)
    if (untested := proposal.untested()) is not None:
        # What is all of p, and nothing of q, passes the test of any number.
        p[:, :-1] = torch.where(untested[..., None], points, p[:, :-1])
        q = q * ~untested[..., None]
    seeds, offsets = streams(lanes, draws.ACCEPT, 1, draws.ACCEPT_STRIDE)
    narrow, counts = drafts.int(), torch.zeros(2, len(lanes), dtype=torch.int32, device=p.device)
    said = []
    for lane in range(len(lanes)):
        one = slice(lane, lane + 1)
        said.append(
            sampling().chain_speculative_sampling(
                q[one], narrow[one], p[one], counts[0, one], counts[1, one],
                seed=seeds[one], offset=offsets[one],
            )[0]
        )  # fmt: skip
    # The other count goes on past the first draft that was not kept.
    tokens, accepted = torch.cat(said).long(), counts[1].long()
    # Where nothing is left of the law it draws no token; the likeliest is as good as any.
    return torch.where(tokens < 0, law.ids[..., 0], tokens), accepted


class FlashInferChain(Chain):
    """Drafts by ratio are drawn by FlashInfer, from the laws of our own kernels."""

    def draw(self, step: int, logits: Tensor, penalties: bool, vocabulary: Tensor | None) -> Tensor:
        """As `Chain.draw`."""
        own = super().draw(step, logits, penalties, vocabulary)
        if self.acceptance == "match":
            return own
        theirs = sample(self.probs[:, step], self.ids[:, step], self.lanes, step)[:, None]
        if self.acceptance == "mixed":
            theirs = torch.where(self.lanes.match()[:, None], own, theirs)
        self.tokens[:, step : step + 1] = theirs
        return theirs


def sample(probs: Tensor, ids: Tensor, lanes: Lanes, step: int) -> Tensor:
    """int64 [B]: draft `step` of each lane, from its law [B, C]."""
    spread = _spread(probs[:, None], ids[:, None], _columns(lanes))
    seeds, offsets = streams(lanes, draws.DRAFT, step + 1, draws.DRAFT_STRIDE)
    drawn = [
        sampling().sampling_from_probs(spread[lane], seed=seeds[one], offset=offsets[one])
        for lane in range(len(lanes))
        for one in [slice(lane, lane + 1)]
    ]
    return torch.cat(drawn).long()


def _columns(lanes: Lanes) -> int:
    """The vocabulary and at least one column more, in wholes of four, as it reads them."""
    return (lanes.pool.vocabulary // 4 + 1) * 4


def _spread(probs: Tensor, ids: Tensor, columns: int) -> Tensor:
    """Laws [B, R, C] over all columns: float32 [B, R, columns]."""
    out = torch.zeros(*probs.shape[:2], columns, device=probs.device)
    return out.scatter_add_(2, ids, probs)


def streams(lanes: Lanes, domain: int, ahead: int, stride: int) -> tuple[Tensor, Tensor]:
    """Keys and first draws of the streams of tokens `ahead` of the consumed: int64 [B] each."""
    pool = lanes.pool
    keys, firsts = torch.empty_like(lanes.index), torch.empty_like(lanes.index)
    _streams[(len(lanes),)](
        lanes.index, pool.seed, pool.consumed, keys, firsts, ahead, stride,
        DOMAIN=domain, num_warps=1, **options(keys),
    )  # fmt: skip
    return keys, firsts


@triton.jit  # type: ignore[untyped-decorator]
def _streams(  # type: ignore[no-untyped-def]
    index, seeds, consumed, keys, firsts, ahead, stride, DOMAIN: tl.constexpr, PDL: tl.constexpr
):
    begin(PDL)
    lane = tl.program_id(0)
    slot = tl.load(index + lane)
    low, high = key_of(tl.load(seeds + slot), DOMAIN)
    wait(PDL)
    tl.store(keys + lane, low.to(tl.int64) + (high.to(tl.int64) << 32))
    tl.store(firsts + lane, (tl.load(consumed + slot) + ahead) * stride)
