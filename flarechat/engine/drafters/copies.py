"""The copy drafter: what followed the last tokens before is offered again, as point masses.

Owns the staged drafts of every slot (columns of the staging block, which the page reads) and asks
its sources, the request's own context and the shared history, before each round. The longer key
wins, context before history at equal length. Tokens that a grammar forces are staged before a copy,
as sure drafts, and it is looked up as if they had been said:

    … a b c │ f f │ d e …    said, forced, and what followed b c f f before

A copy may be staged to go on from one that is under way, before anyone knows how that ends. The
page then offers it only to a lane that stands where the copy under way, kept whole, leaves it:

    stream    … a b c d │ e f g h i j k │ l │ m n o p q r s │ t …
              key found   under way       expected   staged behind it
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from flarechat.engine.drafters.context import ContextSource
from flarechat.engine.drafters.history import HistorySource
from flarechat.engine.drafters.index import KEY_LENGTHS, MAX_COPY, Copy
from flarechat.engine.offer import Offer
from flarechat.engine.proposal import Proposal
from flarechat.engine.staging import Staging
from flarechat.protocol import HistoryTotals

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.contracts import State
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes


class CopySource(Protocol):
    """Where copies come from; one file each."""

    name: str

    def open(self, slot: int, request: str, prompt: Sequence[int]) -> None: ...

    def find(self, slot: int, suffix: Sequence[int], limit: int) -> Copy | None: ...

    def onward(self, slot: int, copy: Copy, kept: int) -> tuple[int, Copy] | None: ...

    def commit(self, slot: int, tokens: Sequence[int]) -> None: ...

    def close(self, slot: int) -> None: ...


# Where a lane stands, in one number: tokens consumed in the upper half, the pending one below.
_STAND = 1 << 32


@dataclass(slots=True)
class _Staged:
    """A copy, the (consumed, pending) of the lane that it is meant for, and whether that is only
    expected, `ahead` of what was read."""

    source: CopySource
    copy: Copy
    stand: tuple[int, int]
    ahead: bool = False


@dataclass(slots=True)
class _Looking:
    """A slot whose request may copy: the suffix to look up, how many tokens are known in all,
    what is staged, and counts by source."""

    suffix: deque[int]
    known: int
    staged: _Staged | None = None
    lookups: dict[str, int] = field(default_factory=dict)
    hits: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def stand(self) -> tuple[int, int]:
        """Tokens consumed and the pending one, as far as rounds were read."""
        return self.known - 1, self.suffix[-1]

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
        self.sources: tuple[CopySource, ...] = tuple(sources or (ContextSource(), HistorySource()))
        staging = staging or Staging(slots, device)
        self._tokens, self.tokens = staging.columns(MAX_COPY)
        # Drafts of a lane wherever it stands, drafts where it is expected, how many of them are
        # sure, and where it is expected.
        self._counts, counts = staging.columns(4)
        self.anywhere, self.there, self.sure, self.expected = counts.unbind(1)
        self._looking: dict[int, _Looking] = {}

    def open(
        self, slot: int, request: str, prompt: Sequence[int], *, restored: int, history: bool,
        mtp: bool,
    ) -> None:  # fmt: skip
        """Start looking for copies, or not at all: then the answer is not kept either."""
        self.close(slot)
        if not history:
            return
        longest = max(KEY_LENGTHS)
        self._looking[slot] = _Looking(deque(prompt[-longest:], maxlen=longest), len(prompt))
        for source in self.sources:
            source.open(slot, request, prompt)

    def stage(
        self, slot: int, limit: int, copied: int = 0, *, forced: Sequence[int] = (),
        legal: Callable[[Sequence[int]], int] | None = None,
    ) -> Offer:  # fmt: skip
        """Stage what goes on from the copies under way, if it does; else what is forced, then the
        best copy of what followed in any source, as far as it is legal."""
        assert not (forced and copied), "nothing is forced behind a round under way"
        limit = min(limit, MAX_COPY)
        sure = tuple(forced)[: max(limit, 0)]
        looking, staged, room = self._looking.get(slot), None, limit - len(sure)
        if looking is not None and room > 0:
            staged = self._onward(slot, looking, copied) or self._best(slot, looking, room, sure)
        if looking is None or staged is None:
            self._put(slot, sure, len(sure))
            return Offer(count=len(sure), forced=len(sure))
        looking.staged, copy = staged, staged.copy
        found = kept = copy.tokens[:room]
        if legal is not None:
            kept = found[: max(legal((*sure, *found)) - len(sure), 0)]
        self._put(slot, (*sure, *kept), len(sure), staged)
        removed = len(found) - len(kept)
        if not kept:
            return Offer(count=len(sure), forced=len(sure), removed=removed)
        return Offer(
            staged.source.name, len(sure) + len(kept), copy.match_length, copy.stream,
            expects=staged.stand if staged.ahead else None, forced=len(sure), removed=removed,
        )  # fmt: skip

    def _put(
        self, slot: int, drafts: Sequence[int], sure: int, staged: _Staged | None = None
    ) -> None:
        """Write down a slot's drafts, for where the copy among them was `staged` for."""
        count, counts = len(drafts), self._counts[slot]
        self._tokens[slot, :count] = drafts
        counts[0], counts[1], counts[2] = count, count, sure
        if staged is not None and staged.ahead:
            consumed, pending = staged.stand
            counts[0], counts[3] = 0, consumed * _STAND + pending

    def awaits(self, slot: int, copied: int = 0) -> bool:
        """Whether a copy is there to be offered that does not go on from those under way: what is
        read next decides how it does."""
        looking = self._looking.get(slot)
        if looking is None or self._onward(slot, looking, copied) is not None:
            return False
        suffix = tuple(looking.suffix)
        return any(source.find(slot, suffix, 1) is not None for source in self.sources)

    def _onward(self, slot: int, looking: _Looking, copied: int) -> _Staged | None:
        """What follows the `copied` drafts under way and one token more, where they are of the
        copy staged last, and the lane did stand where that was meant for.

        If the stream has not half as many, nothing: a short round saves less time than it takes.
        """
        staged = looking.staged
        if not copied or staged is None or staged.stand != looking.stand:
            return None
        onward = staged.source.onward(slot, staged.copy, copied)
        if onward is None or 2 * len(onward[1].tokens) < copied:
            return None
        consumed, (expected, copy) = looking.known - 1, onward
        return _Staged(staged.source, copy, (consumed + copied + 1, expected), ahead=True)

    def _best(
        self, slot: int, looking: _Looking, limit: int, sure: tuple[int, ...]
    ) -> _Staged | None:
        """The best copy that a look-up finds of what follows `sure` tokens; it counts."""
        best: _Staged | None = None
        suffix = (*looking.suffix, *sure)
        for source in self.sources:
            looking.lookups[source.name] = looking.lookups.get(source.name, 0) + 1
            copy = source.find(slot, suffix, limit)
            if copy is None:
                continue
            key = (source.name, copy.match_length)
            looking.hits[key] = looking.hits.get(key, 0) + 1
            if best is None or copy.match_length > best.copy.match_length:
                best = _Staged(source, copy, looking.stand)
        return best

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        """The staged copies, cut or padded to K. Those staged to go on from others are offered
        where the round before left the lane as was expected, and nowhere else."""
        depth, pool = plan.draft_tokens, lanes.pool
        tokens = self.tokens.index_select(0, lanes.index)[:, :depth]
        stands = torch.add(pool.pending, pool.consumed, alpha=_STAND)  # [S]
        offered = torch.where(stands == self.expected, self.there, self.anywhere)
        offered = offered.index_select(0, lanes.index).clamp_max(depth)
        return Proposal(tokens, offered, sure=self.sure.index_select(0, lanes.index))

    def absorb(
        self, lanes: Lanes, inputs: Tensor, hidden: Tensor, emitted: Tensor, plan: Plan
    ) -> None:
        """Copies come from tokens, not from hidden states."""

    def amend(self, lanes: Lanes, hidden: Tensor, kept: Tensor, plan: Plan) -> None:
        """As `absorb`."""

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Validated output: extend the suffix and every source."""
        looking = self._looking.get(slot)
        if looking is None:
            return
        looking.suffix.extend(tokens)
        looking.known += len(tokens)
        for source in self.sources:
            source.commit(slot, tokens)

    def close(self, slot: int) -> tuple[HistoryTotals, HistoryTotals]:
        """The request ended: its look-ups of the history and of its own context."""
        self._counts[slot, :3] = 0
        looking = self._looking.pop(slot, None)
        if looking is None:
            return HistoryTotals(), HistoryTotals()
        for source in self.sources:
            source.close(slot)
        return looking.totals("history"), looking.totals("context")

    def copied(self, source: int, target: int) -> None:
        """Copies are found by tokens, which `open` is told."""

    def reliable(self, slot: int, rows: int) -> bool:
        """It has no rows that could be missing."""
        return True

    def restored(self, slot: int, rows: int) -> None:
        """As `copied`."""

    def states(self) -> Sequence[State]:
        """Staged drafts are not state: nothing has to survive a round."""
        return ()
