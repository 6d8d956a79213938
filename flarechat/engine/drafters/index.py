"""Exact 8-token and 4-token indexes over decoded tokens, with links along each stream.

Owns a ring of tokens. Streams (one a response) may interleave in it; links keep a copy inside
the stream it began in. Knows no tensor and no request. All operations are O(1) a token, but those
on the beginning of a text, which is sorted once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flarechat.engine.drafters.keys import SortedKeys

KEY_LENGTHS = (8, 4)
MAX_COPY = 7


@dataclass(frozen=True, slots=True)
class Copy:
    """An observed continuation: its tokens, the key length that found it, and its stream.

    `place` is where in the ring it begins.
    """

    tokens: tuple[int, ...]
    match_length: int
    stream: str
    place: int = field(default=-1, compare=False)


@dataclass(slots=True)
class _Cell:
    """One token in the ring. `starts` lists the keys whose first token it is."""

    token: int
    stream: str
    following: int | None = None
    starts: list[tuple[int, tuple[int, ...], int]] = field(default_factory=list)


class CopyIndex:
    """The last `capacity` tokens (None: all), found by their last 8 or 4 predecessors.

    A key is in the index while all of its tokens and at least one continuation are in the ring;
    of several occurrences the most recent is found.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self._cells: dict[int, _Cell] = {}
        self._count = 0
        self._tails: dict[str, deque[int]] = {}
        # A key's only continuation, or all of them, the most recent last: where streams interleave,
        # that one's key can leave the ring before an older one's does.
        self._index: dict[int, dict[tuple[int, ...], int | list[int]]] = {
            n: {} for n in KEY_LENGTHS
        }

    def __len__(self) -> int:
        return len(self._cells)

    def append(self, stream: str, tokens: Sequence[int]) -> None:
        """Add committed tokens of a stream, after those it already has."""
        tail = self._tails.setdefault(stream, deque(maxlen=max(KEY_LENGTHS)))
        for token in tokens:
            self._append(stream, tail, token)

    def close(self, stream: str) -> None:
        """The stream gets no more tokens; its text stays to be copied."""
        self._tails.pop(stream, None)

    def find(self, suffix: Sequence[int], limit: int = MAX_COPY) -> Copy | None:
        """The most recent continuation of `suffix`'s last 8 tokens, else of its last 4."""
        for length in KEY_LENGTHS:
            found = self._index[length].get(tuple(suffix[-length:])) if limit > 0 else None
            if found is not None:
                at = found[-1] if isinstance(found, list) else found
                tokens = self._follow(at, min(limit, MAX_COPY))
                return Copy(tokens, length, self._cells[at].stream, at)
        return None

    def onward(self, copy: Copy, kept: int) -> tuple[int, Copy] | None:
        """What follows the first `kept` tokens of a copy in its stream: the next token, and the
        copy that goes on behind it. None where the ring has no two tokens more.

        Its key length is the longest that would find it, once all before it was said again.
        """
        at: int | None = copy.place
        for _ in range(kept):
            at = self._after(at)
        behind = self._after(at)
        if at is None or behind is None:
            return None
        tokens = self._follow(behind, MAX_COPY)
        length = _onward_length(copy, kept)
        return self._cells[at].token, Copy(tokens, length, copy.stream, behind)

    def _after(self, at: int | None) -> int | None:
        """The place that follows in the stream, if both are still in the ring."""
        cell = None if at is None else self._cells.get(at)
        return None if cell is None else cell.following

    def _append(self, stream: str, tail: deque[int], token: int) -> None:
        at = self._count
        self._count += 1
        if self.capacity is not None and at >= self.capacity:
            self._evict(at - self.capacity)
        self._cells[at] = _Cell(token, stream)
        if tail and tail[-1] in self._cells:
            self._cells[tail[-1]].following = at
        for length in KEY_LENGTHS:
            if len(tail) >= length and tail[-length] in self._cells:
                self._register(length, list(tail)[-length:], at)
        tail.append(at)

    def _register(self, length: int, places: Sequence[int], continuation: int) -> None:
        key = tuple(self._cells[place].token for place in places)
        keys = self._index[length]
        before = keys.get(key)
        if before is None:
            keys[key] = continuation
        elif isinstance(before, list):
            before.append(continuation)
        else:
            keys[key] = [before, continuation]
        self._cells[places[0]].starts.append((length, key, continuation))

    def _evict(self, oldest: int) -> None:
        for length, key, continuation in self._cells.pop(oldest).starts:
            held = self._index[length][key]
            if isinstance(held, list) and len(held) > 1:
                held.remove(continuation)
            else:
                del self._index[length][key]

    def _follow(self, at: int | None, limit: int) -> tuple[int, ...]:
        tokens: list[int] = []
        while at is not None and len(tokens) < limit:
            cell = self._cells[at]
            tokens.append(cell.token)
            at = cell.following
        return tuple(tokens)


class TextIndex:
    """One growing text of which nothing is lost, found as `CopyIndex` finds a stream.

    What it begins with, a long prompt, is sorted: it stands between a restored prefix and the first
    token. What is added later is looked up by key, and found first.
    """

    def __init__(self, beginning: Sequence[int] = ()) -> None:
        self._tokens = list(beginning)
        begun = np.fromiter(beginning, np.uint64, len(beginning))
        self._begun = {n: SortedKeys(begun, n) for n in KEY_LENGTHS}
        self._added: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in KEY_LENGTHS}

    def append(self, tokens: Sequence[int]) -> None:
        """Add committed tokens."""
        known = len(self._tokens)
        self._tokens += tokens
        for length, places in self._added.items():
            first = max(known - length, 0)
            text = self._tokens[first:]
            keys = zip(*(text[n:] for n in range(length)), strict=False)
            continuations = range(first + length, len(self._tokens))
            places.update(zip(keys, continuations, strict=False))

    def find(self, suffix: Sequence[int], limit: int = MAX_COPY) -> Copy | None:
        """The most recent continuation of `suffix`'s last 8 tokens, else of its last 4."""
        copy = None
        # Where the shorter key is not found, neither is the longer.
        for length in reversed(KEY_LENGTHS) if limit > 0 else ():
            key = tuple(suffix[-length:])
            at = self._added[length].get(key)
            at = self._begun[length].last(key) if at is None else at
            if at is None:
                break
            copy = Copy(self._from(at, min(limit, MAX_COPY)), length, "", at)
        return copy

    def onward(self, copy: Copy, kept: int) -> tuple[int, Copy] | None:
        """As of a `CopyIndex`."""
        at = copy.place + kept
        if at + 1 >= len(self._tokens):
            return None
        length, tokens = _onward_length(copy, kept), self._from(at + 1, MAX_COPY)
        return self._tokens[at], Copy(tokens, length, copy.stream, at + 1)

    def _from(self, at: int, limit: int) -> tuple[int, ...]:
        return tuple(self._tokens[at : at + limit])


def _onward_length(copy: Copy, kept: int) -> int:
    """The longest key that would find what follows `kept` tokens of a copy and one token more."""
    said = copy.match_length + kept + 1
    return next(length for length in KEY_LENGTHS if length <= said)
