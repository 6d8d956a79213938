"""Finds stop strings in what a model says. Owns the text that might still become one.

They are looked for in all text that tokens make, before it is told apart: in thinking and in calls
of tools as in the answer, and in the marks between them. Control tokens make no text.
"""

from __future__ import annotations

from collections.abc import Sequence

from flarechat.engine.text.finder import Finder


class StopMatcher:
    """Releases text up to the first stop string and holds back what may begin one.

    The stop that is complete first wins, of several complete at one character the longest, so
    that an answer ends with the token that completes a stop and never later. At most
    len(longest stop) - 1 characters are held back. `hit` is the stop string found. Raises
    ValueError for an empty one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._finder = Finder(stops)
        self.hit: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string hit. Nothing follows a hit."""
        if self.hit is not None:
            return "", None
        shown, self.hit, _ = self._finder.find(text)
        return shown, self.hit

    def hear(self, text: str) -> str:
        """Read text in which stops were none, as what was said before they were given. Only one
        that it ends inside of counts. The text that may be shown now.
        """
        return self._finder.hear(text)

    def flush(self) -> str:
        """The text has ended: what was held back is no stop."""
        return self._finder.flush()

    def copy(self) -> StopMatcher:
        """Another that has read the same, at the cost of no text."""
        other = object.__new__(StopMatcher)
        other._finder, other.hit = self._finder.copy(), self.hit
        return other
