"""What every set of a round's small steps owes the torch code, whoever computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flarechat.engine import accept as laws
from flarechat.engine import rng
from flarechat.engine.frame import HEADER, pack
from flarechat.engine.proposal import Proposal
from flarechat.engine.sampling import TargetLaw
from flarechat.engine.slot import Lanes
from tests.engine.requests import (
    LANES,
    V,
    case,
    generator,
    lanes_of,
    require_law,
    require_same,
    stable_law,
)

Accept = Callable[[TargetLaw, Proposal, Lanes, str], tuple[Tensor, Tensor]]


def require_drawn_as_the_torch_chain_draws(
    begin: Callable[[Lanes, Tensor, Proposal | None, int], Any], acceptance: str, staged: bool
) -> None:
    """`begin(lanes, depth, staged drafts, steps)` is the chain that draws."""
    count, columns, steps = 24, 90, 3
    lanes = lanes_of(count, 300, seed=11)
    draw = generator(12)
    vocabulary = torch.arange(2, 300, 3)[:columns]
    copied = Proposal(
        # As they are staged: the first columns of wider rows.
        torch.randint(0, 300, (count, 7), generator=draw)[:, :steps],
        torch.randint(0, steps + 1, (count,), generator=draw),
    )
    depth = torch.randint(0, 6, (lanes.pool.slots,), generator=draw)
    drawn = begin(lanes, depth, copied if staged else None, steps)
    forced = copied.valid() if staged else torch.zeros(count, steps, dtype=torch.bool)
    by_match = lanes.match() if acceptance == "mixed" else torch.tensor(acceptance == "match")
    for step in range(steps):
        logits = 2 * torch.randn(count, 1, columns, generator=draw)
        token = drawn.draw(step, logits, True, vocabulary)
        law = TargetLaw(*stable_law(logits, lanes, drawn.tokens[:, :step], True, step, vocabulary))
        place, seed = lanes.positions(1, step + 1), lanes.seed()
        u = rng.uniforms(seed, rng.DRAFT, 4 * place[:, 0], 1)
        noise = rng.gumbel(seed[:, None, None], rng.SAMPLE, place[..., None], law.candidates())
        own = torch.where(by_match[..., None], law.draw(noise), law.token_at_mass(u))
        expected = torch.where(forced[:, step, None], copied.tokens[:, step, None], own)

        assert torch.equal(expected, token)
        assert torch.equal(token[:, 0], drawn.tokens[:, step])
        points = forced[:, step]
        require_law(
            (drawn.probs[~points, step], drawn.ids[~points, step]),
            law.probs[~points, 0], law.candidates()[~points, 0],
        )  # fmt: skip
        kept = Proposal(drawn.tokens, drawn.offered, drawn.probs, drawn.ids)
        at = kept.law_at(torch.full((count,), step), 300)
        assert at is not None
        alone = torch.nn.functional.one_hot(copied.tokens[:, step], 300).float()
        assert torch.equal(alone[points], at[points, 0])
    most = depth[lanes.index].clamp_max(steps)
    assert torch.equal(torch.maximum(most, copied.offered * staged), drawn.offered)


def require_decided_as_by_the_torch_code(
    accept: Accept, drafts: int, kind: str, acceptance: str
) -> None:
    lanes, law, proposal = case(drafts, kind)
    theirs = laws.accept(law, proposal, lanes, acceptance)

    assert drafts < 3 or len(theirs[1].unique()) > (1 if kind == "points" else 2)
    require_same(accept(law, proposal, lanes, acceptance), theirs)


def require_sure_drafts_kept(accept: Accept, drafts: int, kind: str, acceptance: str) -> None:
    """Where a draft is sure, all is as if nothing but that draft could stand there: the target's
    law a point, and the drafter's too."""
    lanes, law, proposal = case(drafts, kind)
    assert law.ids is not None
    sure = torch.randint(0, drafts + 2, (LANES,), generator=generator(drafts))
    untested = torch.arange(drafts) < torch.minimum(sure, proposal.offered)[:, None]

    def pointed(probs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        probs, ids = probs.clone(), ids.clone()
        probs[:, :drafts][untested] = torch.eye(1, probs.shape[-1])
        ids[:, :drafts, 0][untested] = proposal.tokens[untested]
        return probs, ids

    alone = proposal
    if proposal.probs is not None and proposal.ids is not None:
        q, q_ids = pointed(proposal.probs, proposal.ids)
        alone = replace(proposal, probs=q, ids=q_ids)
    expected = laws.accept(TargetLaw(*pointed(law.probs, law.ids)), alone, lanes, acceptance)
    tokens, accepted = accept(law, replace(proposal, sure=sure), lanes, acceptance)

    assert (accepted >= torch.minimum(sure, proposal.offered)).all()
    assert drafts < 3 or len(accepted.unique()) > 2 < len(sure.unique())
    require_same((tokens, accepted), expected)


def require_drawn_from_the_law_where_a_draft_leaves_nothing(accept: Accept) -> None:
    lanes, law, _ = case(1, "points")
    assert law.ids is not None
    missing = torch.full((LANES, 1), V)
    same = Proposal(missing, torch.ones(LANES).long(), law.probs[:, :1], law.ids[:, :1])
    tokens, accepted = accept(law, same, lanes, "ratio")

    assert not accepted.any()
    assert (TargetLaw(law.probs[:, :1], law.ids[:, :1]).prob_of(tokens[:, :1]) > 0).all()


def require_committed_as_by_the_torch_code(steps: Any) -> None:
    """`steps` has clip, advance and pack. Lanes that have ended are among them, and tokens that
    stand twice in a row."""
    lanes, other = lanes_of(LANES, 5, seed=3), lanes_of(LANES, 5, seed=3)
    tokens = torch.randint(0, 5, (LANES, 5), generator=generator(1))
    accepted = torch.randint(0, 5, (LANES,), generator=generator(2))
    emitted, finish = laws.clip(tokens, accepted, lanes)
    own = steps.clip(tokens, accepted, lanes)
    lanes.advance(tokens, emitted, finish)
    steps.advance(other, tokens, *own)
    record = pack(lanes, accepted + 1, accepted, emitted, finish, tokens)

    assert torch.equal(emitted, own[0]) and torch.equal(finish, own[1])
    assert 4 == len(finish.unique()) and 5 < len(emitted.unique()) + 1
    for name, value in lanes.pool.tensors().items():
        assert torch.equal(value, other.pool.tensors()[name]), name
    packed = steps.pack(other, accepted + 1, accepted, emitted, finish, tokens, HEADER)
    assert torch.equal(record, packed)


def require_inputs_as_of_the_torch_code(steps: Any, drafts: int) -> None:
    lanes = lanes_of(4, 50, seed=1)
    staged = torch.randint(0, 50, (4, 7), generator=generator(2))[:, :drafts]

    assert torch.equal(lanes.inputs(staged), steps.inputs(lanes, staged))
