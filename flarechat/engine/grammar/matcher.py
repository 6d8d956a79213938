"""Follows one answer through a constraint.

Owns what is legal at a place in the text. Where the bytes that come next are certain, only the
token that they are encoded as is legal; elsewhere every token whose bytes may stand there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flarechat.errors import ConstraintError

if TYPE_CHECKING:
    from llguidance import LLMatcher

_MISFIT = "doesn't satisfy the grammar"


class Matcher:
    """One place in a text under a constraint; `columns` is how many logits a row has.

    Never asked from two threads. A ConstraintError says that the constraint grew too large to be
    followed.
    """

    def __init__(self, inner: LLMatcher, columns: int) -> None:
        self._inner, self._columns = inner, columns

    def copy(self) -> Matcher:
        """Another matcher at this place."""
        return Matcher(self._inner.deep_copy(), self._columns)

    @property
    def stopped(self) -> bool:
        """Whether the text is whole and nothing can follow it."""
        return bool(self._inner.is_stopped()) and not self._fault

    @property
    def accepting(self) -> bool:
        """Whether the text is whole, though more may follow."""
        return bool(self._inner.is_accepting())

    @property
    def state(self) -> str:
        """The place in words: whole, may end here, or goes on."""
        if self.stopped:
            return "whole"
        return "may end here" if self.accepting else "goes on"

    def mask(self) -> bytes:
        """The legal tokens of a text that has not stopped: token i is bit i % 8 of byte i // 8, in
        ceil(columns / 8) bytes."""
        bits: bytes = self._inner.compute_bitmask()
        self._require_sound()
        return bits[: (self._columns + 7) // 8]

    def allows(self, token: int) -> bool:
        """Whether the token's bit is set in `mask`, for less."""
        if not 0 <= token < self._columns or self._inner.is_stopped():
            return False
        forced = self._inner.compute_ff_tokens()
        legal = forced[0] == token if forced else self._inner.validate_tokens([token]) == 1
        self._require_sound()
        return bool(legal)

    def legal(self, tokens: Iterable[int]) -> int:
        """How many of the tokens, from the first, are legal one behind the other."""
        ahead, count = self.copy(), 0
        for token in tokens:
            if not ahead.allows(token):
                break
            count += 1
            ahead.advance((token,))
        return count

    def fits(self, tokens: Sequence[int]) -> bool:
        """Whether the bytes of all these tokens may stand here, however they are cut."""
        return bool(self._inner.validate_tokens(list(tokens)) == len(tokens))

    def advance(self, tokens: Sequence[int]) -> None:
        """Go on behind these tokens, which fit here."""
        if not self._inner.consume_tokens(list(tokens)):
            if _MISFIT not in self._inner.get_error():
                self._require_sound()
            raise ValueError(f"tokens {list(tokens)} do not fit here")

    def forced(self, limit: int) -> list[int]:
        """Up to `limit` tokens that are legal one behind the other, each alone: what is certain.

        The last bytes of a run that is certain are no token of it where what follows them may
        change how they are encoded.
        """
        if limit < 1 or self._inner.is_stopped():
            return []
        run = self._inner.compute_ff_tokens()[:limit]
        self._require_sound()
        return list(run)

    @property
    def _fault(self) -> str:
        """Why the library cannot go on, or ""; not that nothing can follow."""
        fault = self._inner.get_error()
        return str(fault) if fault and self._inner.stop_reason() != "NoExtension" else ""

    def _require_sound(self) -> None:
        if fault := self._fault:
            raise ConstraintError(
                f"The constraint cannot be followed any further: {first_line(fault)}.",
                "Give a simpler one, with fewer alternatives and smaller bounds.",
            )


def first_line(fault: str) -> str:
    """What the library says, without its dump."""
    lines = fault.strip().splitlines() or ["no reason is known"]
    return lines[0].rstrip(" .:")
