"""Finds stop strings in text as it comes. Owns the text that might still become one."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Releases text up to the first stop string and holds back what may begin one.

    `hit` is the stop string found, once it is certain.

    The stop that starts first wins, of several that start together the shortest. What is found
    does not depend on how the text was cut: matching goes character by character, each stop with
    its own Knuth-Morris-Pratt automaton. At most len(longest stop) - 1 characters are held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in dict.fromkeys(stops) if stop]
        self._failures = [_failures(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._released = self._read = 0
        self._found: tuple[int, str] | None = None
        self.hit: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string hit. Nothing follows a hit."""
        if not self._stops:
            return text, None
        if self.hit is not None:
            return "", None
        self._held += text
        for character in text:
            self._step(character)
            if self._found and self._earliest_open() >= self._found[0]:
                return self._finish()
        return self._release(self._read - max(self._matched)), None

    def flush(self) -> str:
        """The text has ended: the rest of it, up to a stop that was found but not yet certain."""
        if self.hit is None and self._found:
            return self._finish()[0]
        return self._release(self._read) if self.hit is None else ""

    def _step(self, character: str) -> None:
        """Read one character; note a completed stop that starts before the one noted."""
        self._read += 1
        for index, stop in enumerate(self._stops):
            matched, failures = self._matched[index], self._failures[index]
            while matched == len(stop) or (matched and stop[matched] != character):
                matched = failures[matched - 1]
            matched += stop[matched] == character
            self._matched[index] = matched
            start = self._read - len(stop)
            if matched == len(stop) and (self._found is None or start < self._found[0]):
                self._found = start, stop

    def _earliest_open(self) -> int:
        """Where the earliest begun and not completed stop starts."""
        unfinished = (
            matched
            for matched, stop in zip(self._matched, self._stops, strict=True)
            if matched < len(stop)
        )
        return self._read - max(unfinished, default=0)

    def _finish(self) -> tuple[str, str]:
        assert self._found is not None, "there is a stop to finish with"
        start, self.hit = self._found
        return self._release(start), self.hit

    def _release(self, upto: int) -> str:
        """Let go of the held text before the position `upto`."""
        count = upto - self._released
        text, self._held = self._held[:count], self._held[count:]
        self._released = upto
        return text


def _failures(stop: str) -> list[int]:
    """For every prefix the length of its longest proper prefix that is also its suffix."""
    failures, matched = [0] * len(stop), 0
    for index in range(1, len(stop)):
        while matched and stop[index] != stop[matched]:
            matched = failures[matched - 1]
        matched += stop[index] == stop[matched]
        failures[index] = matched
    return failures
