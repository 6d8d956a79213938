"""Which round every token of an answer came in: as it was played here, else as its letters tell.

Owns the rounds of the answers of this run, by answer. Knows no widget.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from flarechat.chat import Turn
from flarechat.protocol import RequestEvent, Round, Started, TokenLogprob
from flarechat.sessions.provenance import LETTERS

_TAILS = re.escape(LETTERS["correction"] + LETTERS["bonus"])
_ROUND = re.compile(f"[^{_TAILS}]*[{_TAILS}]|[^{_TAILS}]+")


class RoundOf(NamedTuple):
    """A round of an answer: its first token and how many it emitted.

    `offered` and `accepted` are None of a round that was played elsewhere: only its tokens are
    saved. `logprobs` are those of its tokens, empty where none were asked for.
    """

    first: int
    emitted: int
    offered: int | None = None
    accepted: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def end(self) -> int:
        """The token behind its last."""
        return self.first + self.emitted


class Played:
    """The rounds of every answer that was written in this run."""

    def __init__(self) -> None:
        self._rounds: dict[str, list[RoundOf]] = {}

    def note(self, turn: Turn, event: RequestEvent) -> None:
        """Take in one event of an answer, before the answer does."""
        rounds = self._rounds.setdefault(turn.id, [])
        if isinstance(event, Started):
            # What was let go when an answer was cut off is not of it any more; of other tokens,
            # as another model has them, nothing is.
            own = tuple(turn.tokens[: len(event.continued)]) == event.continued
            kept = len(event.continued) if own else 0
            self._rounds[turn.id] = [one for one in rounds if one.end <= kept]
        elif isinstance(event, Round):
            first, told = len(turn.tokens), (event.offered, event.accepted, event.logprobs)
            rounds.append(RoundOf(first, event.emitted, *told))

    def rounds(self, turn: Turn) -> list[RoundOf]:
        """All rounds of an answer in order, each of its tokens in one."""
        rounds: list[RoundOf] = []
        at = 0
        for known in self._rounds.get(turn.id, []):
            rounds += [*_told(turn.sources, at, known.first), known]
            at = known.end
        return rounds + _told(turn.sources, at, len(turn.sources))


def round_at(rounds: Sequence[RoundOf], token: int) -> int:
    """Which of the rounds, from 0, a token came in."""
    return bisect_right(rounds, token, key=lambda one: one.first) - 1


def _told(sources: str, first: int, end: int) -> list[RoundOf]:
    """The rounds of tokens `first` to `end` by their letters: each ends with a token of the
    model's own, but for the last.
    """
    found = _ROUND.finditer(sources, first, end)
    return [RoundOf(one.start(), one.end() - one.start()) for one in found]
