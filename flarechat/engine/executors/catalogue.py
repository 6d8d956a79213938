"""The catalogue: every plan that is captured, and which of them stands for a plan of the player's.

Owns the canonical form: one law for the 64 likeliest tokens and one for the whole vocabulary,
either acceptance, all rows that a cache has, judged. Pure Python; knows no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flarechat.engine.offer import DRAFTING, runs_chain
from flarechat.engine.plan import LANE_COUNTS, LawShape, Plan
from flarechat.protocol import MAX_DRAFT_TOKENS

LIKELIEST = LawShape(64, penalties=True)
WHOLE = LawShape(0, ordered=True, penalties=True)
PREFILL_MOST = 256


@dataclass(frozen=True, slots=True)
class Captured:
    """A plan to capture for B lanes, a round's or, where `prefill`, a prompt piece's."""

    lanes: int
    plan: Plan
    prefill: bool = False

    @property
    def rows(self) -> int:
        """Rows that one pass of it has."""
        return self.lanes * self.plan.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """What is captured for up to `slots` lanes, rounds of at most `capacity` rows.

    `extent` is the rows of a cache that a round may see, `context` the tokens of a slot. A drafter
    with a chain is `learned`; one that `always_absorbs` has no plans that do not.
    """

    slots: int
    capacity: int
    context: int
    extent: int
    learned: bool
    always_absorbs: bool = False

    def rounds(self) -> list[Captured]:
        """Every round, those with most rows first."""
        made = [
            Captured(lanes, self._plan(depth, drafting, absorb, law))
            for lanes in LANE_COUNTS
            if lanes <= self.slots
            for drafting, depth in self._ways(lanes)
            for absorb in self._absorbing(runs_chain(drafting))
            for law in (LIKELIEST, WHOLE)
        ]
        return sorted(made, key=lambda captured: -captured.rows)

    def prefills(self) -> list[Captured]:
        """Every piece of a prompt, the longest first; one slot at a time."""
        return [
            Captured(1, self._plan(tokens - 1, "none", absorb, LIKELIEST), prefill=True)
            for tokens in sorted(self._lengths(), reverse=True)
            for absorb in self._absorbing(False)
        ]

    def all(self) -> list[Captured]:
        """Everything, the largest first, so that what comes after fits in what it left."""
        return sorted((*self.prefills(), *self.rounds()), key=lambda captured: -captured.rows)

    def round_for(self, lanes: int, plan: Plan) -> Captured:
        """What is captured for a round of `lanes` lanes by this plan."""
        drafting = plan.drafting if plan.draft_tokens else "none"
        likeliest = 0 < plan.law.candidates <= LIKELIEST.candidates
        law = LIKELIEST if likeliest else WHOLE
        absorb = self._absorb(plan.absorb or runs_chain(drafting))
        return Captured(lanes, self._plan(plan.draft_tokens, drafting, absorb, law))

    def prefill_for(self, tokens: int, plan: Plan) -> Captured:
        """What is captured for a piece of `tokens` tokens of a chunk with this plan."""
        own = self._plan(tokens - 1, "none", self._absorb(plan.absorb), LIKELIEST)
        return Captured(1, own, prefill=True)

    def pieces(self, tokens: int) -> list[int]:
        """The lengths that a chunk of so many tokens is played in, nothing padded."""
        pieces = []
        for length in sorted(self._lengths(), reverse=True):
            while tokens >= length:
                pieces.append(length)
                tokens -= length
        return pieces

    def _lengths(self) -> list[int]:
        most = min(PREFILL_MOST, self.context)
        return [1 << power for power in range(most.bit_length()) if 1 << power <= most]

    def _ways(self, lanes: int) -> Iterator[tuple[str, int]]:
        """Ways of drafting with how many drafts, within the capacity."""
        most = min(MAX_DRAFT_TOKENS, self.capacity // lanes - 1)
        if most >= 0:
            yield "none", 0
        for drafting in DRAFTING:
            if drafting != "none" and (self.learned or not runs_chain(drafting)):
                yield from ((drafting, depth) for depth in range(1, most + 1))

    def _absorbing(self, chain: bool) -> tuple[bool, ...]:
        """Whether draft state is kept up: both where requests decide, with a chain always."""
        if not self.learned:
            return (False,)
        return (True,) if chain or self.always_absorbs else (True, False)

    def _absorb(self, asked: bool) -> bool:
        return self.learned and (asked or self.always_absorbs)

    def _plan(self, draft_tokens: int, drafting: str, absorb: bool, law: LawShape) -> Plan:
        return Plan(draft_tokens, self.extent, law, "mixed", 0, drafting, absorb, judged=True)
