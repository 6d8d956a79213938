"""No drafts: every round is one plain step of the same page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flarechat.engine.offer import Offer
from flarechat.engine.proposal import Proposal
from flarechat.protocol import HistoryTotals

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from flarechat.engine.contracts import State
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes
    from flarechat.engine.staging import Staging


class NoDrafter:
    """Answers every verb with nothing."""

    always_absorbs = False

    def __init__(self, slots: int, device: torch.device, *, staging: Staging | None = None) -> None:
        """Takes what every drafter takes and needs none of it."""

    def open(
        self, slot: int, request: str, prompt: Sequence[int], *, restored: int, history: bool,
        mtp: bool,
    ) -> None:  # fmt: skip
        """Nothing to prepare."""

    def stage(
        self, slot: int, limit: int, copied: int = 0, *, forced: Sequence[int] = (),
        legal: Callable[[Sequence[int]], int] | None = None,
    ) -> Offer:  # fmt: skip
        """Never has a draft, forced or not."""
        return Offer()

    def awaits(self, slot: int, copied: int = 0) -> bool:
        """Nothing depends on what is read next."""
        return False

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        """K = 0 drafts."""
        return Proposal.empty(len(lanes), lanes.index.device)

    def absorb(
        self, lanes: Lanes, inputs: Tensor, hidden: Tensor, emitted: Tensor, plan: Plan
    ) -> None:
        """Nothing to learn."""

    def amend(self, lanes: Lanes, hidden: Tensor, kept: Tensor, plan: Plan) -> None:
        """As `absorb`."""

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Nothing to keep."""

    def close(self, slot: int) -> tuple[HistoryTotals, HistoryTotals]:
        """No look-ups were made."""
        return HistoryTotals(), HistoryTotals()

    def copied(self, source: int, target: int) -> None:
        """It keeps nothing of a slot."""

    def reliable(self, slot: int, rows: int) -> bool:
        """It has no rows that could be missing."""
        return True

    def restored(self, slot: int, rows: int) -> None:
        """It keeps nothing of a slot."""

    def states(self) -> Sequence[State]:
        """None."""
        return ()
