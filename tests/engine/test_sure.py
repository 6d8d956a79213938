"""Sure drafts: kept without a test, and what follows them has the law that it has without them.

The target is the table of `test_accept`. Lanes say one free token, then so many forced ones as the
lane's number asks for, then free ones again: the law of the free ones can be enumerated.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from flarechat.engine import kernels
from flarechat.engine.accept import EXHAUSTED, RUNNING, STOPPED, accept, accept_match
from flarechat.engine.frame import LaneRecord, read
from flarechat.engine.plan import LawShape, Plan
from flarechat.engine.proposal import Proposal
from flarechat.engine.round import play_round
from flarechat.engine.sampling import TargetLaw, target_law
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.protocol import Sampling
from tests.engine.requests import CASES
from tests.engine.statistics import chi_square_p
from tests.engine.steps import require_sure_drafts_kept
from tests.engine.test_accept import CPU, FILTERED, PENALISED, PROMPT, LawDrafter, TableTarget, V
from tests.engine.test_sampling import expected_law as law_by_transformers

FORCED = [5, 5, 1, 4, 0, 3, 2]
FREE, LANES = 3, 9_000


def forced_of(lane: int, k: int) -> int:
    """How many tokens are forced on a lane behind its first."""
    return (0, (k + 1) // 2, k)[lane % 3]


class ForcedDrafter(LawDrafter):
    """Behind the first token the forced ones, sure; all other drafts from laws of its own, or, of
    `points`, fixed ones."""

    def __init__(self, target: TableTarget, lanes: int, k: int, *, points: bool) -> None:
        super().__init__(target)
        self.counts = torch.tensor([forced_of(lane, k) for lane in range(lanes)])
        self.points = points

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        generated, k = lanes.generated(), plan.draft_tokens
        own = super().propose(lanes, plan)
        sure = torch.where(generated == 1, self.counts[lanes.index], 0)
        forced = torch.arange(k) < sure[:, None]
        drafts = torch.where(forced, torch.tensor(FORCED[:k]), own.tokens)
        offered = torch.where(generated == 0, 0, k)
        if self.points:
            return Proposal(drafts, offered, sure=sure)
        assert own.probs is not None
        alone = torch.nn.functional.one_hot(drafts, V).float()
        return Proposal(
            drafts, offered, torch.where(forced[..., None], alone, own.probs), sure=sure
        )


def opened(sampling: Sampling, lanes: int) -> Lanes:
    pool = SlotPool(lanes, 64, V, CPU)
    pool.pending.fill_(PROMPT[-1])
    pool.prompt_seen[:, PROMPT] = True
    pool.consumed.fill_(len(PROMPT) - 1)
    pool.budget.fill_(60)
    pool.finish.fill_(RUNNING)
    pool.seed.copy_(torch.arange(lanes) * 7919 + 1)
    pool.match.copy_(torch.arange(lanes) % 2 == 0)
    for name, column in pool.filters.items():
        column.fill_(getattr(sampling, name))
    return Lanes(pool, range(lanes))


def plan_of(k: int, sampling: Sampling, acceptance: str) -> Plan:
    return Plan(k, 64, LawShape.of([sampling], V), acceptance)


def said(
    k: int, sampling: Sampling, acceptance: str, *, points: bool, lanes_count: int = LANES
) -> list[list[int]]:
    """Each lane's tokens, at least its forced ones and FREE more."""
    target, lanes = TableTarget(), opened(sampling, lanes_count)
    drafter = ForcedDrafter(target, lanes_count, k, points=points)
    texts: list[list[int]] = [[] for _ in lanes.slots]
    while any(len(text) < forced_of(n, k) + FREE for n, text in enumerate(texts)):
        records = read(play_round(target, drafter, lanes, plan_of(k, sampling, acceptance)))  # type: ignore[arg-type]
        for n, (text, record) in enumerate(zip(texts, records, strict=True)):
            assert len(text) != 1 or record.accepted >= forced_of(n, k)
            text += record.tokens
    return texts


def exact(sampling: Sampling, forced: int) -> Tensor:
    """P(free tokens), float64 [V ** FREE], by enumeration."""
    target, law = TableTarget(), torch.zeros(V**FREE, dtype=torch.float64)
    for place, tokens in enumerate(itertools.product(range(V), repeat=FREE)):
        chance, text = 1.0, list[int]()
        for token in tokens:
            row = law_by_transformers(target.table[(PROMPT + text)[-1]], sampling, PROMPT, text, V)
            chance *= float(row[token])
            text += [token] if text else [token, *FORCED[:forced]]
        law[place] = chance
    return law


@pytest.mark.parametrize(
    ("k", "sampling", "acceptance", "points"),
    [
        (1, FILTERED, "ratio", False),
        (3, PENALISED, "mixed", False),
        (4, FILTERED, "match", True),
        (7, PENALISED, "ratio", True),
    ],
)
def test_what_follows_sure_drafts_has_exactly_the_targets_law(
    k: int, sampling: Sampling, acceptance: str, points: bool
) -> None:
    texts = said(k, sampling, acceptance, points=points)
    for kind in range(3):
        forced, mine = forced_of(kind, k), texts[kind::3]
        assert all(text[1 : 1 + forced] == FORCED[:forced] for text in mine)
        free = torch.tensor([[text[0], *text[1 + forced : forced + FREE]] for text in mine])
        code = (free * torch.tensor([V * V, V, 1])).sum(1)
        counts = torch.bincount(code, minlength=V**FREE)

        assert chi_square_p(counts, exact(sampling, forced) * len(mine)) > 1e-3


@pytest.mark.parametrize("k", range(1, 8))
def test_match_says_with_sure_drafts_what_a_loop_over_the_masked_law_says(k: int) -> None:
    lanes_count = 60
    texts = said(k, PENALISED, "match", points=k % 2 == 0, lanes_count=lanes_count)
    target, lanes = TableTarget(), opened(PENALISED, lanes_count)
    nothing, one = Proposal.empty(lanes_count, CPU), torch.ones(lanes_count, dtype=torch.int64)
    counts = torch.tensor([forced_of(lane, k) for lane in range(lanes_count)])
    rows = []
    for place in range(k + FREE):
        logits = target.table[lanes.pending()[:, None]]
        law = target_law(logits, lanes, nothing.tokens, plan_of(0, PENALISED, "match").law)
        token, _ = accept_match(law, nothing, lanes)
        if 1 <= place <= k:
            token = torch.where((place <= counts)[:, None], FORCED[place - 1], token)
        lanes.advance(token, one, one * RUNNING)
        rows.append(token)

    for text, expected in zip(texts, torch.cat(rows, 1).tolist(), strict=True):
        shared = min(len(text), len(expected))
        assert expected[:shared] == text[:shared]


@pytest.mark.parametrize("acceptance", ["ratio", "match", "mixed"])
@pytest.mark.parametrize("kind", [*CASES, "whole vocabulary"])
@pytest.mark.parametrize("drafts", [1, 4, 7])
def test_a_sure_draft_is_kept_as_if_nothing_else_could_stand_there(
    drafts: int, kind: str, acceptance: str
) -> None:
    def whole(law: TargetLaw, proposal: Proposal, lanes: Lanes, how: str) -> tuple[Tensor, Tensor]:
        assert law.ids is not None
        rows = law.probs.new_zeros(*law.probs.shape[:2], lanes.pool.vocabulary)
        dense = TargetLaw(rows.scatter_(2, law.ids, law.probs), None)
        return accept(dense, proposal, lanes, how)

    with kernels.in_torch():
        if kind in CASES:
            require_sure_drafts_kept(accept, drafts, kind, acceptance)
        else:
            require_sure_drafts_kept(whole, drafts, "laws", acceptance)


def first_round(k: int, sure: int, *, budget: int = 60, eos: int = -1) -> list[LaneRecord]:
    """Three lanes at the start of an answer; only the middle one has sure drafts."""
    target, lanes = TableTarget(), opened(FILTERED, 3)
    lanes.pool.budget.fill_(budget)
    lanes.pool.eos[:, 0] = eos

    class Once(LawDrafter):
        def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
            tokens = torch.tensor([FORCED[:k]] * 3)
            return Proposal(tokens, torch.tensor([0, k, 0]), sure=torch.tensor([7, sure, 7]))

    plan = plan_of(k, FILTERED, "mixed")
    return read(play_round(target, Once(target), lanes, plan))  # type: ignore[arg-type]


def test_a_budget_ends_an_answer_within_sure_drafts() -> None:
    first, record, last = first_round(7, 7, budget=3)

    assert (7, 3, EXHAUSTED) == (record.accepted, record.emitted, record.finish)
    assert FORCED[:3] == list(record.tokens)
    assert (0, 1, 0, 1) == (first.accepted, first.emitted, last.accepted, last.emitted)


def test_an_end_of_sequence_ends_an_answer_within_sure_drafts() -> None:
    record = first_round(6, 5, eos=FORCED[3])[1]

    assert (4, STOPPED) == (record.emitted, record.finish)
    assert FORCED[:4] == list(record.tokens)


def test_no_more_is_sure_than_is_offered() -> None:
    for record in first_round(4, 9)[::2]:
        assert (0, 1) == (record.accepted, record.emitted)
    assert 4 == first_round(4, 9)[1].accepted
