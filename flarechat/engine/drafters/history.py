"""History: copies from what the loaded model generated before, in any conversation.

Owns one ring of the last 65,536 committed generated tokens, shared by all sessions until the
model unloads. A prompt, a restored prefix, a rejected draft or a failed round never enters it;
the prompt is used to look things up, not to be found.
"""

from __future__ import annotations

from collections.abc import Sequence

from flarechat.engine.drafters.index import Copy, CopyIndex

HISTORY_TOKENS = 65_536


class HistorySource:
    """Continuations from the shared ring."""

    name = "history"

    def __init__(self, capacity: int = HISTORY_TOKENS) -> None:
        self.index = CopyIndex(capacity)
        self._requests: dict[int, str] = {}

    def open(self, slot: int, request: str, prompt: Sequence[int]) -> None:
        """A response begins; its prompt is left out."""
        self._requests[slot] = request

    def find(self, slot: int, suffix: Sequence[int], limit: int) -> Copy | None:
        """What followed `suffix` the last time the model wrote it."""
        return self.index.find(suffix, limit)

    def onward(self, slot: int, copy: Copy, kept: int) -> tuple[int, Copy] | None:
        """How a copy goes on after `kept` of its tokens, within the response it comes from."""
        return self.index.onward(copy, kept)

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Validated output of the response."""
        self.index.append(self._requests[slot], tokens)

    def close(self, slot: int) -> None:
        """The response ended; the ring keeps it."""
        self.index.close(self._requests.pop(slot))
