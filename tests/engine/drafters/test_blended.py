"""The blended drafter: which of its two is asked for what, with both of them scripted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from flarechat.engine.drafters import blend
from flarechat.engine.offer import DRAFTING, Offer
from flarechat.engine.plan import Plan
from flarechat.engine.proposal import Proposal
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.protocol import HistoryTotals

CPU = torch.device("cpu")
FORCED = (31, 32)
OPENED: dict[str, Any] = {"restored": 3, "history": True, "mtp": False}


class Scripted:
    """A drafter that offers what it is told to and writes down what it was asked for."""

    def __init__(self, name: str, offer: Offer, tokens: Sequence[int], asked: list[str]) -> None:
        self.name, self.offer, self.tokens, self.asked = name, offer, list(tokens), asked

    def open(self, slot: int, request: str, prompt: Sequence[int], **given: Any) -> None:
        self.asked.append(f"{self.name}.open {slot} {request} {list(prompt)} {given}")

    def stage(self, slot: int, limit: int, copied: int = 0, **judged: Any) -> Offer:
        self.asked.append(f"{self.name}.stage {slot} {limit} {copied}")
        if self.name == "copies":
            assert {"forced": FORCED, "legal": len} == judged or not any(judged.values())
        return self.offer

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        self.asked.append(f"{self.name}.propose")
        row = (self.tokens + [0] * plan.draft_tokens)[: plan.draft_tokens]
        offered = torch.full((len(lanes),), min(len(self.tokens), plan.draft_tokens))
        return Proposal(torch.tensor([row] * len(lanes)), offered)

    def extend(self, lanes: Lanes, plan: Plan, staged: Proposal) -> Proposal:
        self.asked.append(f"{self.name}.extend")
        own = self.propose(lanes, plan)
        depth = torch.arange(plan.draft_tokens)
        tokens = torch.where(depth < staged.offered[:, None], staged.tokens, own.tokens)
        return Proposal(tokens, torch.maximum(staged.offered, own.offered))

    def absorb(
        self, lanes: Lanes, inputs: Tensor, hidden: Tensor, emitted: Tensor, plan: Plan
    ) -> None:
        self.asked.append(f"{self.name}.absorb {plan.absorb}")

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        self.asked.append(f"{self.name}.commit {slot} {list(tokens)}")

    def close(self, slot: int) -> tuple[HistoryTotals, HistoryTotals]:
        self.asked.append(f"{self.name}.close {slot}")
        return HistoryTotals(lookups=len(self.tokens)), HistoryTotals(lookups=9)

    def states(self) -> Sequence[Any]:
        return (f"{self.name} state",)


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def blended(asked: list[str]) -> Any:
    copies = Scripted("copies", Offer("history", 2, 8, "turn"), [11, 12], asked)
    return blend(copies, Scripted("chain", Offer(learned=4), [21, 22, 23, 24], asked))


LANES = Lanes(SlotPool(1, 16, 32, CPU), (0,))


@pytest.mark.parametrize(
    ("drafting", "tokens", "work"),
    [
        ("none", [], []),
        ("copies", [11, 12], ["copies.propose"]),
        ("mtp", [21, 22, 23, 24], ["chain.propose"]),
        ("both", [11, 12, 23, 24], ["copies.propose", "chain.extend", "chain.propose"]),
    ],
)
def test_a_plan_is_drafted_in_its_way_and_no_other(
    blended: Any, asked: list[str], drafting: str, tokens: list[int], work: list[str]
) -> None:
    plan = Plan(4 if drafting != "none" else 0, 16, drafting=drafting)
    proposal = blended.propose(LANES, plan)

    assert tokens == proposal.tokens[0, : proposal.offered[0]].tolist()
    assert plan.draft_tokens == proposal.draft_tokens
    assert work == asked


@pytest.mark.parametrize("drafting", DRAFTING)
@pytest.mark.parametrize("draft_tokens", range(1, 8))
def test_what_is_offered_is_what_the_offer_said(
    blended: Any, drafting: str, draft_tokens: int
) -> None:
    offer = blended.stage(0, 7)
    depth = draft_tokens if drafting != "none" else 0
    proposal = blended.propose(LANES, Plan(depth, 16, drafting=drafting))

    assert Offer("history", 2, 8, "turn", 4) == offer
    assert len(offer.sources(drafting, depth)) == int(proposal.offered[0])


def test_every_other_verb_reaches_both(blended: Any, asked: list[str]) -> None:
    row = torch.zeros(1, 1, dtype=torch.int64)
    blended.open(0, "r", [5, 6], **OPENED)
    blended.stage(0, 6, 3, forced=FORCED, legal=len)
    blended.absorb(LANES, row, row, row[0], Plan(0, 16, absorb=False))
    blended.commit(0, [7])
    totals = blended.close(0)

    expected = [
        f"open 0 r [5, 6] {OPENED}",
        "stage 0 6 3",
        "absorb False",
        "commit 0 [7]",
        "close 0",
    ]
    for name in ("copies", "chain"):
        told = [line.removeprefix(f"{name}.") for line in asked if line.startswith(name)]
        assert expected == told
    assert (HistoryTotals(lookups=2), HistoryTotals(lookups=9)) == totals
    assert ("copies state", "chain state") == blended.states()
