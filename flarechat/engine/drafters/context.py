"""Context: copies from the request's own tokens, prompt included.

Owns one private index a slot, gone with the request, so nothing leaks between sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

from flarechat.engine.drafters.index import Copy, TextIndex


class ContextSource:
    """Continuations from the prompt and the answer so far."""

    name = "context"

    def __init__(self) -> None:
        self._indexes: dict[int, TextIndex] = {}

    def open(self, slot: int, request: str, prompt: Sequence[int]) -> None:
        """A request begins: its whole prompt may be copied."""
        self._indexes[slot] = TextIndex(prompt)

    def find(self, slot: int, suffix: Sequence[int], limit: int) -> Copy | None:
        """What followed `suffix` earlier in this request."""
        return self._indexes[slot].find(suffix, limit)

    def onward(self, slot: int, copy: Copy, kept: int) -> tuple[int, Copy] | None:
        """How a copy goes on after `kept` of its tokens."""
        return self._indexes[slot].onward(copy, kept)

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """The answer grew."""
        self._indexes[slot].append(tokens)

    def close(self, slot: int) -> None:
        """Forget the request."""
        del self._indexes[slot]
