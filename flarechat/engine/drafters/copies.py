"""The copy drafter: what followed the last tokens before is offered again, as point masses.

Owns the staged drafts of every slot (columns of the staging block, which the page reads) and asks
its sources, the request's own context and the shared history, before each round. The longer key
wins, context before history at equal length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from flarechat.engine.drafters.context import ContextSource
from flarechat.engine.drafters.history import HistorySource
from flarechat.engine.drafters.index import KEY_LENGTHS, MAX_COPY, Copy
from flarechat.engine.offer import Offer
from flarechat.engine.proposal import Proposal
from flarechat.engine.staging import Staging
from flarechat.protocol import HistoryTotals

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from flarechat.engine.contracts import State
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes


class CopySource(Protocol):
    """Where copies come from; one file each."""

    name: str

    def open(self, slot: int, request: str, prompt: Sequence[int]) -> None: ...

    def find(self, slot: int, suffix: Sequence[int], limit: int) -> Copy | None: ...

    def commit(self, slot: int, tokens: Sequence[int]) -> None: ...

    def close(self, slot: int) -> None: ...


@dataclass(slots=True)
class _Looking:
    """A slot whose request may copy: the suffix to look up, and counts by source."""

    suffix: deque[int]
    lookups: dict[str, int] = field(default_factory=dict)
    hits: dict[tuple[str, int], int] = field(default_factory=dict)

    def totals(self, source: str) -> HistoryTotals:
        longest, shortest = KEY_LENGTHS
        return HistoryTotals(
            lookups=self.lookups.get(source, 0),
            hits8=self.hits.get((source, longest), 0),
            hits4=self.hits.get((source, shortest), 0),
        )


class CopyDrafter:
    """Drafts from `sources` for S slots."""

    always_absorbs = False

    def __init__(
        self, slots: int, device: torch.device, sources: Sequence[CopySource] | None = None,
        staging: Staging | None = None,
    ) -> None:  # fmt: skip
        self.sources = tuple(sources or (ContextSource(), HistorySource()))
        staging = staging or Staging(slots, device)
        self._tokens, self.tokens = staging.columns(MAX_COPY)
        self._offered, offered = staging.columns(1)
        self.offered = offered[:, 0]
        self._looking: dict[int, _Looking] = {}

    def open(
        self, slot: int, request: str, prompt: Sequence[int], *, restored: int, history: bool,
        mtp: bool,
    ) -> None:  # fmt: skip
        """Start looking for copies, or not at all: then the answer is not kept either."""
        self.close(slot)
        if not history:
            return
        self._looking[slot] = _Looking(deque(prompt, maxlen=max(KEY_LENGTHS)))
        for source in self.sources:
            source.open(slot, request, prompt)

    def stage(self, slot: int, limit: int) -> Offer:
        """Look up the slot's suffix in every source and stage the best copy."""
        looking = self._looking.get(slot)
        best: tuple[str, Copy] | None = None
        if looking is not None and limit > 0:
            best = self._best(slot, looking, limit)
        if best is None:
            self._offered[slot] = 0
            return Offer()
        name, copy = best
        count = len(copy.tokens)
        self._tokens[slot, :count] = copy.tokens
        self._offered[slot] = count
        return Offer(name, count, copy.match_length, copy.stream)

    def awaits(self, slot: int) -> bool:
        """Whether a copy is there to be offered: what is read next decides how it goes on."""
        looking = self._looking.get(slot)
        if looking is None:
            return False
        suffix = tuple(looking.suffix)
        return any(source.find(slot, suffix, 1) is not None for source in self.sources)

    def _best(self, slot: int, looking: _Looking, limit: int) -> tuple[str, Copy] | None:
        best: tuple[str, Copy] | None = None
        suffix = tuple(looking.suffix)
        for source in self.sources:
            looking.lookups[source.name] = looking.lookups.get(source.name, 0) + 1
            copy = source.find(slot, suffix, limit)
            if copy is None:
                continue
            key = (source.name, copy.match_length)
            looking.hits[key] = looking.hits.get(key, 0) + 1
            if best is None or copy.match_length > best[1].match_length:
                best = (source.name, copy)
        return best

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        """The staged copies, cut or padded to K."""
        depth = plan.draft_tokens
        tokens = self.tokens.index_select(0, lanes.index)[:, :depth]
        offered = self.offered.index_select(0, lanes.index).clamp_max(depth)
        return Proposal(tokens, offered)

    def absorb(
        self, lanes: Lanes, inputs: Tensor, hidden: Tensor, emitted: Tensor, plan: Plan
    ) -> None:
        """Copies come from tokens, not from hidden states."""

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Validated output: extend the suffix and every source."""
        looking = self._looking.get(slot)
        if looking is None:
            return
        looking.suffix.extend(tokens)
        for source in self.sources:
            source.commit(slot, tokens)

    def close(self, slot: int) -> tuple[HistoryTotals, HistoryTotals]:
        """The request ended: its look-ups of the history and of its own context."""
        self._offered[slot] = 0
        looking = self._looking.pop(slot, None)
        if looking is None:
            return HistoryTotals(), HistoryTotals()
        for source in self.sources:
            source.close(slot)
        return looking.totals("history"), looking.totals("context")

    def copied(self, source: int, target: int) -> None:
        """Copies are found by tokens, which `open` is told."""

    def states(self) -> Sequence[State]:
        """Staged drafts are not state: nothing has to survive a round."""
        return ()
