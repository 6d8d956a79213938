"""The blended drafter: copies, a learned chain, or copies that the chain continues.

Owns nothing but which of its two drafters a plan asks for. A round of copies costs no learned
work; what the learned drafter keeps is kept up in every round that absorbs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from flarechat.engine.contracts import Drafter
from flarechat.engine.offer import Offer
from flarechat.engine.proposal import Proposal
from flarechat.protocol import HistoryTotals

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.contracts import State
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes


class LearnedDrafter(Drafter, Protocol):
    """A drafter whose chain can go on from drafts that something else staged."""

    def extend(self, lanes: Lanes, plan: Plan, staged: Proposal) -> Proposal:
        """Page: the first `staged.offered` drafts of each lane, then the chain up to K."""


class BlendedDrafter:
    """Answers every verb by both of its drafters."""

    def __init__(self, copies: Drafter, learned: LearnedDrafter) -> None:
        self.copies, self.learned = copies, learned

    @property
    def always_absorbs(self) -> bool:
        """As the learned drafter does; copies keep no state of the target's."""
        return self.learned.always_absorbs

    def open(
        self, slot: int, request: str, prompt: Sequence[int], *, restored: int, history: bool,
        mtp: bool,
    ) -> None:  # fmt: skip
        """Both begin with the request; first the one that computes, which may fail."""
        for drafter in (self.learned, self.copies):
            drafter.open(slot, request, prompt, restored=restored, history=history, mtp=mtp)

    def stage(
        self, slot: int, limit: int, copied: int = 0, *, forced: Sequence[int] = (),
        legal: Callable[[Sequence[int]], int] | None = None,
    ) -> Offer:  # fmt: skip
        """What is forced, the copy that was found, and how deep the chain may go."""
        depth = self.learned.stage(slot, limit, copied).learned
        offer = self.copies.stage(slot, limit, copied, forced=forced, legal=legal)
        return replace(offer, learned=depth)

    def awaits(self, slot: int, copied: int = 0) -> bool:
        """If either does."""
        return self.copies.awaits(slot, copied) or self.learned.awaits(slot, copied)

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        """What the plan's way of drafting asks for."""
        if plan.drafting == "copies":
            return self.copies.propose(lanes, plan)
        if plan.drafting == "mtp":
            return self.learned.propose(lanes, plan)
        if plan.drafting == "both":
            return self.learned.extend(lanes, plan, self.copies.propose(lanes, plan))
        return Proposal.empty(len(lanes), lanes.index.device)

    def absorb(
        self, lanes: Lanes, inputs: Tensor, hidden: Tensor, emitted: Tensor, plan: Plan
    ) -> None:
        """Both see the true rows."""
        for drafter in (self.copies, self.learned):
            drafter.absorb(lanes, inputs, hidden, emitted, plan)

    def amend(self, lanes: Lanes, hidden: Tensor, kept: Tensor, plan: Plan) -> None:
        """Both are told."""
        for drafter in (self.copies, self.learned):
            drafter.amend(lanes, hidden, kept, plan)

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Both see the emitted tokens."""
        for drafter in (self.copies, self.learned):
            drafter.commit(slot, tokens)

    def close(self, slot: int) -> tuple[HistoryTotals, HistoryTotals]:
        """Both end; the look-ups are the copies'."""
        self.learned.close(slot)
        return self.copies.close(slot)

    def copied(self, source: int, target: int) -> None:
        """Both are told."""
        for drafter in (self.copies, self.learned):
            drafter.copied(source, target)

    def reliable(self, slot: int, rows: int) -> bool:
        """If those of both are."""
        return self.copies.reliable(slot, rows) and self.learned.reliable(slot, rows)

    def restored(self, slot: int, rows: int) -> None:
        """Both are told."""
        for drafter in (self.copies, self.learned):
            drafter.restored(slot, rows)

    def states(self) -> Sequence[State]:
        """The states of both."""
        return (*self.copies.states(), *self.learned.states())
