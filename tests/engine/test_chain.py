"""The chain of `ratio` against FlashInfer's chain sampler in plain numbers, draw for draw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flarechat.engine import rng
from flarechat.engine.accept import accept_ratio
from flarechat.engine.proposal import Proposal
from flarechat.engine.sampling import TargetLaw
from flarechat.engine.slot import Lanes
from tests.engine.requests import lanes_of, law_of, near

V, LANES = 40, 300


def whole(law: TargetLaw | Proposal, rows: int) -> np.ndarray:
    """float32 [B, rows, V + 1]: a law of candidates over all tokens, and one that nobody has."""
    out = torch.zeros(LANES, rows, V + 1)
    if law.probs is None:
        assert isinstance(law, Proposal)
        return out.scatter_(2, law.tokens[..., None], 1.0).numpy()
    assert law.ids is not None
    return out.scatter_add_(2, law.ids, law.probs).numpy()


def chain(q: np.ndarray, drafts: list[int], p: np.ndarray, u: list[np.float32]) -> list[int]:
    """As `ChainSpeculativeSampling` of FlashInfer 0.6 does it for one row: its tokens."""
    draws, said = iter(u), list[int]()
    for row, draft in enumerate(drafts):
        if not next(draws) * q[row, draft] < p[row, draft]:
            break
        said.append(draft)
    place = len(said)
    for _ in drafts[place:]:
        next(draws)  # what it counts as accepted takes a draw for every draft that is left
    left = p[place].copy()
    if place < len(drafts):
        left = np.maximum(left - q[place], np.float32(0))
    if not left.any():
        left = p[place]
    mass, through = next(draws) * left.sum(dtype=np.float32), np.float32(0)
    for token in np.flatnonzero(left):
        through += left[token]
        if through > mass:
            break
    return [*said, int(token)]


def padded(proposal: Proposal) -> list[list[int]]:
    """Drafts that were not offered become a token that no law has."""
    return torch.where(proposal.valid(), proposal.tokens, V).tolist()


@pytest.mark.parametrize("kind", ["laws", "points", "whole vocabulary"])
@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
def test_drafts_are_kept_and_the_token_drawn_as_flashinfer_does(drafts: int, kind: str) -> None:
    lanes = lanes_of(LANES, V, seed=drafts)
    law = law_of(LANES, drafts + 1, 20, V, seed=10 + drafts)
    proposal = near(law, drafts, seed=20 + drafts)
    if kind == "points":
        proposal = replace(proposal, probs=None, ids=None)
    p, q = whole(law, drafts + 1), whole(proposal, drafts)
    q[~proposal.valid().numpy()] = 0
    if kind == "whole vocabulary":
        law = TargetLaw(torch.from_numpy(p[..., :V].copy()), None)
        proposal = replace(proposal, probs=torch.from_numpy(q[..., :V].copy()), ids=None)
    tokens, accepted = accept_ratio(law, proposal, lanes)
    u = streams(lanes, drafts)

    assert drafts == 0 or len(accepted.unique()) > 1
    for lane in range(LANES):
        kept = int(accepted[lane])
        expected = chain(q[lane], padded(proposal)[lane], p[lane], u[lane])
        assert expected == tokens[lane, : kept + 1].tolist(), lane


def streams(lanes: Lanes, drafts: int) -> list[list[np.float32]]:
    """The draws of each lane's round: sixteen to a position."""
    first = 16 * (lanes.consumed() + 1)
    return [list(row) for row in rng.uniforms(lanes.seed(), rng.ACCEPT, first, drafts + 2).numpy()]


def test_nothing_left_of_the_law_is_the_law_itself() -> None:
    """A draft refused where p equals q: rounding alone can bring it about."""
    lanes = lanes_of(LANES, V, seed=1)
    law = law_of(LANES, 2, 20, V, seed=2)
    assert law.ids is not None
    refused = torch.where(law.probs[:, :1] > 0, -1, law.ids[:, :1]).amax(-1)
    lone = refused >= 0
    proposal = Proposal(refused.clamp_min(0), torch.ones(LANES).long(), law.probs[:, :1],
                        law.ids[:, :1])  # fmt: skip
    tokens, accepted = accept_ratio(law, proposal, lanes)
    first = TargetLaw(law.probs[:, :1], law.ids[:, :1]).prob_of(tokens[:, :1])

    assert lone.sum() > LANES // 2
    assert not accepted[lone[:, 0]].any()
    assert (first[lone] > 0).all()


@pytest.mark.parametrize("candidates", [5, 64, 100])
def test_the_token_at_a_mass_is_found_in_the_order_of_ids(candidates: int) -> None:
    law = law_of(LANES, 1, candidates, 200, seed=candidates)
    assert law.ids is not None
    dense = torch.zeros(LANES, 1, 200).scatter_(2, law.ids, law.probs)
    order = law.ids.argsort(-1)
    rising = TargetLaw(law.probs.gather(2, order), law.ids.gather(2, order), rising=True)
    for mass in (1e-9, 0.01, 0.37, 0.5, 0.93, 0.999, 1.0, 2.0):
        at = torch.full((LANES, 1), mass)
        expected = TargetLaw(dense, None).token_at_mass(at)
        through = dense.double().cumsum(-1).gather(2, expected[..., None])[..., 0]
        own = dense.gather(2, expected[..., None])[..., 0].double()

        assert (own > 0).all()
        assert (through - own <= mass + 1e-6).all()
        assert mass >= 1 or (through >= mass - 1e-6).all()
        assert torch.equal(expected, law.token_at_mass(at))
        assert torch.equal(expected, rising.token_at_mass(at))
