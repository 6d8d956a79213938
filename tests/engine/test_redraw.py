"""Redrawn tokens have the masked law: exact enumeration against many lanes of the real page.

As in test_accept the target is a table, and the law of the first tokens is enumerated by a plain
loop; which tokens are legal depends on the last one. What the page says illegally is redrawn and
the round amended, as the engine does it.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from flarechat.engine import rng
from flarechat.engine.drafters.none import NoDrafter
from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.frame import read
from flarechat.engine.plan import LawShape, Plan
from flarechat.engine.proposal import Proposal
from flarechat.engine.redraw import masked_law
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.errors import ConstraintError
from flarechat.protocol import Sampling
from tests.engine.statistics import chi_square_p
from tests.engine.test_accept import (
    CPU,
    FILTERED,
    PENALISED,
    PLAIN,
    PROMPT,
    LawDrafter,
    PointDrafter,
    TableTarget,
    V,
)
from tests.engine.test_sampling import expected_law as law_by_transformers

LANES, LENGTH = 800, 3
GREEDY = Sampling(temperature=0)
# After each token: what may follow. After 1 and 4 one token alone; after 0 what is unlikely.
LEGAL = torch.tensor(
    [[0, 1, 0, 1, 1, 0], [0, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 1],
     [1, 1, 1, 1, 1, 0], [0, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]]
).bool()  # fmt: skip


class Table(TableTarget):
    repair_ms = 0.0

    def amend(self, lanes: Lanes, inputs: Tensor, kept: Tensor, plan: Plan) -> None:
        """It has no state."""


class ForcedDrafter(NoDrafter):
    """The tokens that alone are legal, one behind the other; then copies that are not sure."""

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        last, tokens, sure = lanes.pending(), [], torch.ones(len(lanes), dtype=torch.bool)
        counts = torch.zeros(len(lanes), dtype=torch.int64)
        for _ in range(plan.draft_tokens):
            sure = sure & (LEGAL[last].sum(1) == 1)
            last = torch.where(sure, LEGAL[last].long().argmax(1), (last + 2) % V)
            counts += sure
            tokens.append(last)
        offered = torch.full((len(lanes),), plan.draft_tokens)
        return Proposal(torch.stack(tokens, 1), offered, sure=counts)


def bits(legal: Tensor) -> bytes:
    return np.packbits(legal.numpy(), bitorder="little").tobytes()


def masked(logits: Tensor, last: int, sampling: Sampling, said: list[int]) -> Tensor:
    """The law by transformers' processors, masked; without filters where they leave nothing."""
    law = law_by_transformers(logits, sampling, PROMPT, said, V).double() * LEGAL[last]
    if not law.sum():
        bare = replace(sampling, top_k=0, top_p=1.0, min_p=0.0)
        warm = replace(bare, temperature=1.0) if sampling.temperature == 0 else bare
        law = law_by_transformers(logits, warm, PROMPT, said, V).double() * LEGAL[last]
        if sampling.temperature == 0:
            law = torch.nn.functional.one_hot(law.argmax(), V).double()
    return law / law.sum()


def exact_law(target: Table, sampling: Sampling) -> Tensor:
    law = torch.zeros(V**LENGTH, dtype=torch.float64)
    for place, tokens in enumerate(itertools.product(range(V), repeat=LENGTH)):
        chance, said = 1.0, list[int]()
        for token in tokens:
            last = said[-1] if said else PROMPT[-1]
            chance *= float(masked(target.table[last], last, sampling, said)[token])
            said.append(token)
        law[place] = chance
    return law


def drafter_of(name: str, target: Table) -> NoDrafter:
    drafters = {
        "mtp": LawDrafter(target),
        "copies": PointDrafter(1, CPU),
        "none": NoDrafter(1, CPU),
    }
    return drafters.get(name, ForcedDrafter(1, CPU))


def play(
    target: Table, drafter: NoDrafter, sampling: Sampling, acceptance: str, draft_tokens: int,
    lanes_count: int = LANES,
) -> tuple[list[tuple[int, ...]], int]:  # fmt: skip
    """The first LENGTH tokens of many lanes, and how many were redrawn."""
    pool = SlotPool(lanes_count, 64, V, CPU)
    for slot in range(lanes_count):
        pool.open(
            slot, PROMPT, restored=len(PROMPT) - 1, sampling=sampling, seed=slot * 7919 + 1,
            match=acceptance == "match", budget=60, eos=(),
        )  # fmt: skip
        pool.start(slot)
    lanes, redraws = Lanes(pool, range(lanes_count)), 0
    executor = EagerExecutor(target, drafter)  # type: ignore[arg-type]
    plan = Plan(draft_tokens, 64, LawShape.of([sampling], V), acceptance, judged=True)
    said: list[list[int]] = [[] for _ in range(lanes_count)]
    while min(map(len, said)) < LENGTH:
        for slot, record in enumerate(read(executor.play(lanes, plan))):
            last, tokens = (said[slot] or PROMPT)[-1], record.tokens
            for row, token in enumerate(tokens):
                if not LEGAL[last, token]:
                    drawn = executor.redraw(slot, row, bits(LEGAL[last]))
                    tokens = executor.amend(slot, row + 1, drawn).tokens
                    redraws += 1
                    break
                last = token
            said[slot] += tokens
    return [tuple(tokens[:LENGTH]) for tokens in said], redraws


LAWS = {"plain": PLAIN, "filtered": FILTERED, "penalised": PENALISED}
CASES = [
    *itertools.product(("mtp", "copies", "forced"), ("filtered",), ("ratio", "match")),
    *itertools.product(("mtp", "copies"), ("penalised",), ("ratio",)),
    ("mtp", "plain", "ratio"),
    ("forced", "penalised", "match"),
    ("none", "penalised", "ratio"),
]


@pytest.mark.parametrize(("proposals", "law", "acceptance"), CASES)
def test_the_first_tokens_have_exactly_the_masked_law(
    proposals: str, law: str, acceptance: str
) -> None:
    sampling = LAWS[law]
    target = Table()
    depth = 0 if proposals == "none" else 3
    said, redraws = play(target, drafter_of(proposals, target), sampling, acceptance, depth)
    codes = torch.tensor(said) @ torch.tensor([V**p for p in reversed(range(LENGTH))])
    counts = torch.bincount(codes, minlength=V**LENGTH)

    assert redraws > LANES // 4
    assert chi_square_p(counts, exact_law(target, sampling) * LANES) > 1e-3


def test_a_wrong_law_is_noticed() -> None:
    target = Table()
    said, _ = play(target, LawDrafter(target), PLAIN, "ratio", 3)
    codes = torch.tensor(said) @ torch.tensor([V**p for p in reversed(range(LENGTH))])
    counts = torch.bincount(codes, minlength=V**LENGTH)
    warmer = exact_law(target, Sampling(temperature=1.6)) * LANES

    assert chi_square_p(counts, warmer) < 1e-3


def test_match_redraws_with_the_noise_of_the_place() -> None:
    target, last = Table(), PROMPT[-1]
    said, _ = play(target, NoDrafter(1, CPU), PLAIN, "match", 0, 50)
    seeds = torch.arange(50)[:, None] * 7919 + 1
    noise = rng.gumbel(seeds, rng.SAMPLE, torch.tensor(len(PROMPT)), torch.arange(V))
    expected = (masked(target.table[last], last, PLAIN, []).log() + noise).argmax(-1)

    assert expected.tolist() == [tokens[0] for tokens in said]


@pytest.mark.parametrize("sampling", [FILTERED, PENALISED, GREEDY], ids=["f", "p", "greedy"])
def test_match_says_the_same_at_every_width(sampling: Sampling) -> None:
    target = Table()
    alone, _ = play(target, NoDrafter(1, CPU), sampling, "match", 0, 60)

    assert len(set(alone)) > 1 or sampling is GREEDY
    for name, depth in itertools.product(("mtp", "copies", "forced"), (1, 2, 5, 7)):
        said, _ = play(target, drafter_of(name, target), sampling, "match", depth, 60)
        assert alone == said, (name, depth)


def test_the_likeliest_legal_token_at_temperature_zero() -> None:
    target = Table()
    last, expected = PROMPT[-1], list[int]()
    for _ in range(LENGTH):
        allowed = target.table[last].masked_fill(~LEGAL[last], -torch.inf)
        last = int(allowed.argmax())
        expected.append(last)

    for acceptance in ("ratio", "match"):
        said, redraws = play(target, LawDrafter(target), GREEDY, acceptance, 3, 4)
        assert {tuple(expected)} == set(said)
        assert redraws


@pytest.mark.parametrize("count", [2, 30], ids=["few legal", "most legal"])
def test_where_filters_leave_nothing_penalties_and_temperature_hold(count: int) -> None:
    columns, said = 40, [7, 9, 7]
    sampling = Sampling(
        temperature=0.7, top_k=3, repetition_penalty=1.5, presence_penalty=0.4,
        frequency_penalty=0.3,
    )  # fmt: skip
    logits = torch.randn(columns, generator=torch.Generator().manual_seed(3))
    legal = torch.zeros(columns, dtype=torch.bool)
    legal[logits.argsort()[:count]] = legal[9] = True
    logits[9] = -1.0
    pool = SlotPool(1, 64, columns, CPU)
    pool.open(0, PROMPT, sampling=sampling, seed=1, match=True, budget=9, eos=())
    pool.start(0)
    lanes, shape = Lanes(pool, (0,)), LawShape.of([sampling], columns)
    law = masked_law(logits[None, None], lanes, torch.tensor([said]), shape, legal.numpy())
    bare = replace(sampling, top_k=0)
    expected = law_by_transformers(logits, bare, PROMPT, said, columns).double() * legal

    drawn = torch.zeros(columns, dtype=torch.float64)
    drawn[law.candidates()[0, 0]] = law.probs[0, 0].double()
    assert torch.allclose(drawn, expected / expected.sum(), atol=1e-6)


def test_a_mask_without_a_token_is_an_error_in_words() -> None:
    target, pool = Table(), SlotPool(1, 64, V, CPU)
    pool.open(0, PROMPT, sampling=PLAIN, seed=1, match=True, budget=9, eos=())
    pool.start(0)
    executor = EagerExecutor(target, NoDrafter(1, CPU))  # type: ignore[arg-type]
    executor.play(Lanes(pool, (0,)), Plan(0, 64, judged=True))

    with pytest.raises(ConstraintError, match="leaves no token"):
        executor.redraw(0, 0, bytes(1))
