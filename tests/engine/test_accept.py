"""Acceptance keeps the target's law: exact enumeration against many lanes of the real page.

The target is a table (logits of the next token by the last one), so the law of the first tokens
can be enumerated by a plain loop, penalties and filters included. Thousands of lanes, each with
its own seed, play the page; their first tokens are counted.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from flarechat.engine import rng
from flarechat.engine.drafters.none import NoDrafter
from flarechat.engine.frame import read
from flarechat.engine.plan import LawShape, Plan
from flarechat.engine.proposal import Proposal
from flarechat.engine.round import play_round
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.protocol import Sampling
from tests.engine.statistics import chi_square_p
from tests.engine.test_sampling import expected_law as law_by_transformers

V, LANES, LENGTH = 6, 20_000, 3
CPU = torch.device("cpu")
PROMPT = [2, 0]
PLAIN = Sampling()
FILTERED = Sampling(temperature=0.9, top_k=5, top_p=0.92, min_p=0.03)
PENALISED = Sampling(
    temperature=1.2, top_p=0.95, repetition_penalty=1.3, presence_penalty=0.3,
    frequency_penalty=0.2,
)  # fmt: skip


class TableTarget:
    """Logits of row i are a table's row for input i; it has no state."""

    vocabulary = V

    def __init__(self) -> None:
        self.table = 1.3 * torch.randn(V, V, generator=torch.Generator().manual_seed(3))

    def verify(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        return inputs[..., None].float(), self.table[inputs]

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        pass


class LawDrafter(NoDrafter):
    """MTP-like: draws each draft from a law of its own, blurred from the target's."""

    def __init__(self, target: TableTarget, *, coupled: bool = False) -> None:
        self.laws = torch.softmax(target.table.roll(1, 0) * 0.5 + target.table * 0.4, -1)
        self.domain = rng.SAMPLE if coupled else rng.DRAFT

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        last, tokens, laws = lanes.pending(), [], []
        for depth in range(plan.draft_tokens):
            q = self.laws[last]
            position = lanes.next_positions(plan.width)[:, depth : depth + 1]
            noise = rng.gumbel(lanes.seed()[:, None], self.domain, position, torch.arange(V))
            last = (q.log() + noise).argmax(-1)
            tokens.append(last)
            laws.append(q)
        offered = torch.full((len(lanes),), plan.draft_tokens)
        return Proposal(torch.stack(tokens, 1), offered, torch.stack(laws, 1))


class PointDrafter(NoDrafter):
    """Copy-like: fixed tokens with point-mass laws, fewer on every third lane."""

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        tokens = (lanes.pending()[:, None] + torch.arange(1, plan.draft_tokens + 1)) % V
        return Proposal(tokens, torch.where(lanes.index % 3 == 0, 1, plan.draft_tokens))


def exact_law(target: TableTarget, sampling: Sampling) -> Tensor:
    """P(first LENGTH tokens), float [V ** LENGTH], by enumeration."""
    law = torch.zeros(V**LENGTH, dtype=torch.float64)
    for place, tokens in enumerate(itertools.product(range(V), repeat=LENGTH)):
        chance, said = 1.0, []
        for token in tokens:
            last = said[-1] if said else PROMPT[-1]
            row = law_by_transformers(target.table[last], sampling, PROMPT, said, V)
            chance *= float(row[token])
            said.append(token)
        law[place] = chance
    return law


def play(
    target: TableTarget, drafter: NoDrafter, sampling: Sampling, acceptance: str,
    draft_tokens: int, lanes_count: int = LANES,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Counts of the first LENGTH tokens over many lanes, and accepted counts of round one."""
    pool = SlotPool(lanes_count, 64, V, CPU)
    pool.pending.fill_(PROMPT[-1])
    pool.prompt_seen[:, PROMPT] = True
    pool.consumed.fill_(len(PROMPT) - 1)
    pool.budget.fill_(60)
    pool.finish.fill_(0)
    pool.seed.copy_(torch.arange(lanes_count) * 7919 + 1)
    for name, column in pool.filters.items():
        column.fill_(getattr(sampling, name))
    lanes = Lanes(pool, range(lanes_count))
    plan = Plan(draft_tokens, 64, LawShape.of([sampling], V), acceptance)
    said: list[list[int]] = [[] for _ in range(lanes_count)]
    first: Tensor | None = None
    while min(map(len, said)) < LENGTH:
        records = read(play_round(target, drafter, lanes, plan))  # type: ignore[arg-type]
        for tokens, record in zip(said, records, strict=True):
            tokens.extend(record.tokens)
        if first is None:
            first = torch.tensor([record.accepted for record in records])
    assert first is not None
    weights = torch.tensor([V**p for p in reversed(range(LENGTH))])
    code = (torch.tensor([tokens[:LENGTH] for tokens in said]) * weights).sum(1)
    return torch.bincount(code, minlength=V**LENGTH), first


@pytest.mark.parametrize("acceptance", ["ratio", "match"])
@pytest.mark.parametrize("proposals", ["mtp-like", "point-mass", "none"])
@pytest.mark.parametrize(
    "sampling", [PLAIN, FILTERED, PENALISED], ids=["plain", "filtered", "penalised"]
)
def test_the_first_tokens_have_exactly_the_targets_law(
    sampling: Sampling, proposals: str, acceptance: str
) -> None:
    target = TableTarget()
    drafters = {"mtp-like": LawDrafter(target), "point-mass": PointDrafter(1, CPU)}
    depth = 0 if proposals == "none" else 3
    drafter = drafters.get(proposals, NoDrafter(1, CPU))
    counts, accepted = play(target, drafter, sampling, acceptance, depth)
    expected = exact_law(target, sampling) * LANES

    assert chi_square_p(counts, expected) > 1e-3
    assert depth == 0 or 0 < float(accepted.float().mean()) < depth


def test_a_wrong_law_is_noticed() -> None:
    target = TableTarget()
    counts, _ = play(target, LawDrafter(target), PLAIN, "ratio", 3)
    warmer = exact_law(target, Sampling(temperature=1.1)) * LANES

    assert chi_square_p(counts, warmer) < 1e-6


def test_ratio_accepts_the_first_draft_with_the_sum_of_minima() -> None:
    target = TableTarget()
    drafter = LawDrafter(target)
    _, accepted = play(target, drafter, PLAIN, "ratio", 1)
    p = target.table[PROMPT[-1]].softmax(-1)
    rate = float(torch.minimum(p, drafter.laws[PROMPT[-1]]).sum())

    assert abs(rate - float((accepted >= 1).float().mean())) < 4 * (0.25 / LANES) ** 0.5


def test_shared_noise_keeps_the_promised_agreement() -> None:
    """Daliri et al. 2024: Gumbel-coupled draws agree with at least (1 - TV) / (1 + TV)."""
    target = TableTarget()
    coupled, independent = LawDrafter(target, coupled=True), LawDrafter(target)
    p, q = target.table[PROMPT[-1]].softmax(-1), coupled.laws[PROMPT[-1]]
    tv = 0.5 * float((p - q).abs().sum())
    agreed = float((play(target, coupled, PLAIN, "match", 1)[1] >= 1).float().mean())
    by_chance = float((play(target, independent, PLAIN, "match", 1)[1] >= 1).float().mean())

    assert (1 - tv) / (1 + tv) - 0.01 < agreed
    assert by_chance < agreed


def test_match_says_the_same_at_every_width() -> None:
    target = TableTarget()
    alone = play(target, NoDrafter(1, CPU), FILTERED, "match", 0, 500)[0]

    for depth in range(1, 8):
        assert torch.equal(
            alone, play(target, LawDrafter(target), FILTERED, "match", depth, 500)[0]
        )
        assert torch.equal(
            alone, play(target, PointDrafter(1, CPU), FILTERED, "match", depth, 500)[0]
        )
