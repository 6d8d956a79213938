"""The kernels of acceptance and commit against the torch code, draw for draw."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flarechat.engine import accept as laws
from flarechat.engine import kernels
from flarechat.engine.kernels import chain, commit
from flarechat.engine.sampling import TargetLaw
from tests.engine.kernels.slots import poison as poison
from tests.engine.kernels.slots import references as references
from tests.engine.requests import CASES, LANES, V, case, require_same
from tests.engine.steps import (
    require_committed_as_by_the_torch_code,
    require_decided_as_by_the_torch_code,
    require_drawn_from_the_law_where_a_draft_leaves_nothing,
    require_inputs_as_of_the_torch_code,
    require_sure_drafts_kept,
)


@pytest.mark.parametrize("acceptance", ["ratio", "match", "mixed"])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
def test_a_lane_decides_as_the_torch_code_does(
    drafts: int, kind: str, acceptance: str, poison: None
) -> None:
    require_decided_as_by_the_torch_code(chain.accept, drafts, kind, acceptance)


@pytest.mark.parametrize(
    ("drafts", "kind", "acceptance"), [(1, "points", "match"), (7, "laws", "mixed")]
)
def test_sure_drafts_are_kept_and_the_rest_decided_as_ever(
    drafts: int, kind: str, acceptance: str, poison: None
) -> None:
    require_sure_drafts_kept(chain.accept, drafts, kind, acceptance)


def test_points_of_a_greedy_law_are_kept_as_long_as_they_are_right() -> None:
    lanes, law, proposal = case(3, "points")
    assert law.ids is not None
    sure = torch.zeros_like(law.probs)
    sure[..., 0] = 1
    law = TargetLaw(sure, law.ids)
    right = torch.arange(LANES) % 4
    best = law.ids[:, :3, 0]
    wrong = torch.arange(3) >= right[:, None]
    drafts = torch.where(wrong, (best + 1) % V, best)
    tokens, accepted = chain.accept(
        law, replace(proposal, tokens=drafts, offered=torch.full((LANES,), 3)), lanes, "mixed"
    )

    assert torch.equal(right, accepted)
    assert torch.equal(law.ids[torch.arange(LANES), right, 0], tokens[torch.arange(LANES), right])


def test_what_a_draft_leaves_nothing_of_is_drawn_from_the_law() -> None:
    require_drawn_from_the_law_where_a_draft_leaves_nothing(chain.accept)


@pytest.mark.parametrize("acceptance", ["ratio", "match", "mixed"])
def test_laws_of_the_whole_vocabulary_are_left_to_the_torch_code(acceptance: str) -> None:
    lanes, law, proposal = case(3, "laws")
    assert law.ids is not None and proposal.probs is not None and proposal.ids is not None
    dense = TargetLaw(torch.zeros(LANES, 4, V).scatter_(2, law.ids, law.probs), None)
    q = torch.zeros(LANES, 3, V).scatter_(2, proposal.ids, proposal.probs)
    whole = replace(proposal, probs=q, ids=None)
    assert not chain.fits(dense, whole) and not chain.fits(law, whole)
    with kernels.interpreted():
        by_few = laws.accept(law, proposal, lanes, acceptance)
        for pair in ((dense, whole), (dense, proposal), (law, whole)):
            require_same(laws.accept(*pair, lanes, acceptance), by_few)


def test_emitted_tokens_are_clipped_counted_and_packed_as_the_torch_code_does(
    poison: None,
) -> None:
    require_committed_as_by_the_torch_code(commit)


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_a_round_reads_the_pending_token_and_its_drafts(drafts: int) -> None:
    require_inputs_as_of_the_torch_code(commit, drafts)
