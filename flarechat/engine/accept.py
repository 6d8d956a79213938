"""Which drafts the target keeps, and the token it adds. Pure laws over tensors.

`ratio` (Leviathan et al. 2023; Chen et al. 2023): accept draft d with min(1, p(d)/q(d)); on the
first rejection draw from the normalised max(p - q, 0); after the last draft draw from p. The
emitted tokens then have exactly the target's law. Draws are numbers of a Philox stream, so that
other samplers that number theirs alike decide alike.
`match`: accept d iff it equals what the target draws at that position; the text is then the same
at every width. Target and drafter draw by Gumbel-max with one noise, a function of (seed,
position, token), so that drafts still agree often (Daliri et al. 2024: at least (1-TV)/(1+TV)).
Either keeps drafts that are sure without looking at them; what follows is drawn as it always is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine import kernels, rng
from flarechat.engine.sampling import TargetLaw

if TYPE_CHECKING:
    from flarechat.engine.proposal import Proposal
    from flarechat.engine.slot import Lanes

# A lane's finish column: playing, ended by a terminal token, out of budget, not bound to a request.
RUNNING, STOPPED, EXHAUSTED, IDLE = 0, 1, 2, 3


def accept(
    law: TargetLaw, proposal: Proposal, lanes: Lanes, acceptance: str
) -> tuple[Tensor, Tensor]:
    """tokens int64 [B, W], accepted int64 [B].

    Rows before `accepted` hold the kept drafts, row `accepted` the target's own token
    (correction or bonus); later rows mean nothing.
    """
    steps = kernels.of_round(law.probs)
    if steps is not None and steps.fits(law, proposal):
        accepted: tuple[Tensor, Tensor] = steps.accept(law, proposal, lanes, acceptance)
        return accepted
    if acceptance == "match":
        return accept_match(law, proposal, lanes)
    if acceptance == "ratio":
        return accept_ratio(law, proposal, lanes)
    matched, ratioed = accept_match(law, proposal, lanes), accept_ratio(law, proposal, lanes)
    by_match = lanes.match()
    tokens = torch.where(by_match[:, None], matched[0], ratioed[0])
    return tokens, torch.where(by_match, matched[1], ratioed[1])


def accept_match(law: TargetLaw, proposal: Proposal, lanes: Lanes) -> tuple[Tensor, Tensor]:
    """The target's own draws, sure drafts in their place, and how many drafts they confirm."""
    depth = proposal.draft_tokens
    tokens = law.only() if law.certain else _sampled(law, lanes)
    if (untested := proposal.untested()) is not None:
        drafted = torch.where(untested, proposal.tokens, tokens[:, :depth])
        tokens = torch.cat([drafted, tokens[:, depth:]], dim=1)
    agreed = (proposal.tokens == tokens[:, :depth]) & proposal.valid()
    return tokens, _leading(agreed)


def _sampled(law: TargetLaw, lanes: Lanes) -> Tensor:
    """int64 [B, W]: the draws that `match` promises, each row's noise a function of its place."""
    positions = lanes.next_positions(law.probs.shape[1])[..., None]
    noise = rng.gumbel(lanes.seed()[:, None, None], rng.SAMPLE, positions, law.candidates())
    return law.draw(noise)


def accept_ratio(law: TargetLaw, proposal: Proposal, lanes: Lanes) -> tuple[Tensor, Tensor]:
    """Accepted drafts, then one draw from the residual (rejected) or from the law (all kept).

    Draft i is tested with draw i of the lane's round. The last draw is K where the target kept all
    K columns, and K + 1 otherwise: draws are taken as FlashInfer's chain sampler takes them.
    """
    depth = proposal.draft_tokens
    first = rng.ACCEPT_STRIDE * lanes.next_positions(1)[:, 0]
    u = rng.uniforms(lanes.seed(), rng.ACCEPT, first, depth + 2)
    kept = u[:, :depth] * proposal.prob_of_drafts() < law.prob_of(proposal.tokens)
    if (untested := proposal.untested()) is not None:
        kept = kept | untested
    accepted = _leading(kept & proposal.valid())

    own = law.row(accepted)
    rejected = (accepted < proposal.offered)[:, None, None]
    left = torch.where(rejected, _residual(own, proposal, accepted, lanes), own.probs)
    # Rounding can leave nothing where p equals q; there p itself is the limit of the residual.
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, own.probs)
    last = torch.where(accepted == depth, u[:, depth], u[:, depth + 1])[:, None]
    token = TargetLaw(left, own.ids, own.rising).token_at_mass(last * left.sum(-1))
    padded = torch.cat([proposal.tokens, torch.zeros_like(token)], dim=1)
    return padded.scatter(1, accepted[:, None], token), accepted


def _residual(own: TargetLaw, proposal: Proposal, accepted: Tensor, lanes: Lanes) -> Tensor:
    """max(p - q, 0) at row `accepted`: float32 [B, 1, C], not normalised."""
    if proposal.draft_tokens == 0:
        return own.probs
    row = accepted.clamp_max(proposal.draft_tokens - 1)
    q = proposal.law_at(row, lanes.pool.vocabulary)
    if q is None:
        copied = proposal.tokens.gather(1, row[:, None])[..., None]
        return torch.where(own.candidates() == copied, 0.0, own.probs)
    if own.ids is not None:
        q = q.gather(2, own.ids)
    return (own.probs - q).clamp_min(0)


def _leading(agreed: Tensor) -> Tensor:
    """Length of the leading run of True: bool [B, K] → int64 [B]."""
    return agreed.long().cumprod(1).sum(1)


def clip(tokens: Tensor, accepted: Tensor, lanes: Lanes) -> tuple[Tensor, Tensor]:
    """emitted int64 [B] and finish int64 [B]: cut at end-of-sequence and at the output budget.

    A terminal token is emitted and stays pending. A lane that had finished emits 0.
    """
    if (steps := kernels.of_round(tokens)) is not None:
        clipped: tuple[Tensor, Tensor] = steps.clip(tokens, accepted, lanes)
        return clipped
    width = tokens.shape[1]
    row = torch.arange(width, device=tokens.device)
    terminal = (tokens[..., None] == lanes.eos()[:, None]).any(-1)
    first_terminal = torch.where(terminal & (row <= accepted[:, None]), row, width).amin(1)
    finish, left = lanes.finish(), lanes.budget() - lanes.generated()
    emitted = torch.minimum(torch.minimum(accepted, first_terminal) + 1, left)
    stopped = torch.where(first_terminal < emitted, STOPPED, RUNNING)
    ended = torch.where((stopped == RUNNING) & (emitted == left), EXHAUSTED, stopped)
    live = finish == RUNNING
    return torch.where(live, emitted, 0), torch.where(live, ended, finish)
