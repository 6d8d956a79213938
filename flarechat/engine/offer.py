"""Offer: what a lane could put to the target in a round, and the ways of drafting it.

Owns the words for those ways and what each makes of an offer. Knows no policy and no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# What drafts: nothing, staged copies, the MTP chain, or copies continued by the chain.
DRAFTING = ("none", "copies", "mtp", "both")
LEARNED = "mtp"
# The source, and the kind, of drafts that a grammar alone allows.
FORCED = "grammar"


@dataclass(frozen=True, slots=True)
class Offer:
    """A copy of `count` drafts of one source, and the depth to which an MTP chain may draft.

    The first `forced` of those drafts are no copies: a grammar allows nothing else there, and they
    are kept without a test. `removed` drafts of the copy were left out, as they may not stand.
    `match_length` is the key that found the copy, `origin` the request it was copied from. A copy
    that goes on from one that was not read yet `expects` the tokens consumed and the pending one
    that this would leave; where the lane stands elsewhere, the round offers it no copy.
    """

    source: str = "none"
    count: int = 0
    match_length: int = 0
    origin: str = ""
    learned: int = 0
    expects: tuple[int, int] | None = None
    forced: int = 0
    removed: int = 0

    def where(self, consumed: int, pending: int) -> Offer:
        """What it was where the lane really stood: without its copy, if that expected another
        place."""
        if self.expects in (None, (consumed, pending)):
            return self
        return replace(self, source="none", count=0, match_length=0, origin="", removed=0)

    @property
    def kind(self) -> str:
        """The class in which a copy's survival is tracked: source and key length."""
        return f"{self.source}{self.match_length or ''}"

    def copied(self, drafting: str, draft_tokens: int) -> int:
        """How many of K drafts are copies or forced; they come first."""
        return min(self.count, draft_tokens) if drafting in ("copies", "both") else 0

    def cut(self, drafting: str, draft_tokens: int) -> int:
        """How many drafts of a copy a round of K left out as they may not stand: none where it put
        up no copies, or did not come to where the copy was cut."""
        reached = drafting in ("copies", "both") and self.count <= draft_tokens
        return self.removed if reached else 0

    def drafted(self, drafting: str, draft_tokens: int) -> int:
        """How many drafts there are in all, of K at most."""
        copied = self.copied(drafting, draft_tokens)
        return max(copied, min(self.learned, draft_tokens)) if runs_chain(drafting) else copied

    def kinds(self, drafting: str, draft_tokens: int) -> tuple[str, ...]:
        """The survival class of each draft this lane would put to the target."""
        return self._each(self.kind, drafting, draft_tokens)

    def sources(self, drafting: str, draft_tokens: int) -> tuple[str, ...]:
        """The source of each draft this lane would put to the target."""
        return self._each(self.source, drafting, draft_tokens)

    def _each(self, copy: str, drafting: str, draft_tokens: int) -> tuple[str, ...]:
        copied = self.copied(drafting, draft_tokens)
        forced = min(self.forced, copied)
        learned = self.drafted(drafting, draft_tokens) - copied
        return (FORCED,) * forced + (copy,) * (copied - forced) + (LEARNED,) * learned


def runs_chain(drafting: str) -> bool:
    """Whether the MTP chain drafts in this way."""
    return drafting in ("mtp", "both")
