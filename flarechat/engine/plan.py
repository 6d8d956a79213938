"""The plan: the static part of a round, and all that Python may branch on inside it.

Owns the shapes a round is played in. Knows no tensor and no request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flarechat.protocol import Sampling

# A multiple of the blocks in which attention sums over the cache: rows that a wider round sees
# past a narrower one's are whole blocks of zeros, so a row's result does not depend on the width.
EXTENT_STEP = 512

# A law of at most so many candidates is few: kernels make it, and it is drawn from unsorted.
CANDIDATES = 64

# How many lanes a round may have; those that no request plays are idle.
LANE_COUNTS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class LawShape:
    """What the target law of a round has to compute.

    `candidates` is the number of most likely tokens a row keeps: 1 is argmax, 0 the whole
    vocabulary. `ordered` says that the whole vocabulary must be sorted (top-p without top-k).
    """

    candidates: int = 0
    ordered: bool = False
    penalties: bool = False

    @property
    def few(self) -> bool:
        """Whether rows keep few candidates: no more than kernels look for."""
        return 0 < self.candidates <= CANDIDATES

    @classmethod
    def of(cls, samplings: Iterable[Sampling], vocabulary: int) -> LawShape:
        """The smallest shape that is exact for every one of `samplings`."""
        kept, ordered, penalties = 1, False, False
        for s in samplings:
            own = 1 if s.temperature == 0 else min(s.top_k or vocabulary, vocabulary)
            ordered |= s.temperature > 0 and (s.top_p < 1 or own < vocabulary)
            kept = max(kept, own)
            penalties |= s.repetition_penalty != 1 or bool(
                s.presence_penalty or s.frequency_penalty
            )
        whole = kept == vocabulary
        return cls(0 if whole else kept, ordered and whole, penalties)


@dataclass(frozen=True, slots=True)
class Plan:
    """One round's static part, or a prefill chunk's, whose T tokens are its width.

    `draft_tokens` is K; `extent` bounds the cache rows any lane can see (at least
    consumed + width; see `extent_for`); `acceptance` is ratio, match or mixed; `logprobs` is
    the number of alternatives to report beside each emitted token, 0 for no log-probabilities;
    `drafting` is one of offer.DRAFTING; `absorb` says whether the drafter's own state is kept up,
    as any request needs that uses MTP; `judged` says that a lane's round may be amended, for which
    states hold what it writes over and nothing else leads back to.
    """

    draft_tokens: int
    extent: int
    law: LawShape = field(default_factory=LawShape)
    acceptance: str = "ratio"
    logprobs: int = 0
    drafting: str = "none"
    absorb: bool = True
    judged: bool = False

    @property
    def width(self) -> int:
        """W = K + 1, the rows the target verifies."""
        return self.draft_tokens + 1


def extent_for(rows: int, capacity: int) -> int:
    """The bucket of cache rows that holds `rows`, never past `capacity`."""
    return min(-(-rows // EXTENT_STEP) * EXTENT_STEP, capacity)
