"""Finds stop strings in text as it comes. Owns the text that might still become one."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Releases text up to the first stop string and holds back what may begin one.

    The stop that is complete first wins, of several complete at one character the longest, so
    that an answer ends with the token that completes a stop and never later. What is found does
    not depend on how the text was cut: matching goes character by character, each stop with its
    own Knuth-Morris-Pratt automaton. At most len(longest stop) - 1 characters are held back.
    `hit` is the stop string found.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in dict.fromkeys(stops) if stop]
        self._failures = [_failures(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string hit. Nothing follows a hit."""
        if not self._stops:
            return text, None
        if self.hit is not None:
            return "", None
        for place, character in enumerate(text, start=1):
            self.hit = self._step(character)
            if self.hit is not None:
                whole, self._held = self._held + text[:place], ""
                return whole.removesuffix(self.hit), self.hit
        self._held += text
        safe = len(self._held) - max(self._matched)
        shown, self._held = self._held[:safe], self._held[safe:]
        return shown, None

    def flush(self) -> str:
        """The text has ended: what was held back is no stop."""
        text, self._held = self._held, ""
        return text

    def _step(self, character: str) -> str | None:
        """Read one character; the longest stop it completes, if any."""
        complete: list[str] = []
        for index, stop in enumerate(self._stops):
            matched, failures = self._matched[index], self._failures[index]
            while matched and stop[matched] != character:
                matched = failures[matched - 1]
            matched += stop[matched] == character
            self._matched[index] = matched
            if matched == len(stop):
                complete.append(stop)
        return max(complete, key=len, default=None)


def _failures(stop: str) -> list[int]:
    """For every prefix the length of its longest proper prefix that is also its suffix."""
    failures, matched = [0] * len(stop), 0
    for index in range(1, len(stop)):
        while matched and stop[index] != stop[matched]:
            matched = failures[matched - 1]
        matched += stop[index] == stop[matched]
        failures[index] = matched
    return failures
