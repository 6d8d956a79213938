"""Runs of tokens in one text, found by sorting: a long prompt is indexed in a few array operations.

Owns the hash of a run. Two runs may share it, so that what is found is always compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = (1 << 64) - 1
_BASE, _MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9  # odd, their bits evenly mixed
# A sorted number is a hash above the place behind its run.
_PLACE = (1 << 24) - 1


class SortedKeys:
    """All runs of `length` tokens (a power of two) of a text that one token more follows.

    The text has fewer than 2 ** 24 tokens and is not changed any more. Making this takes
    O(n log n), finding a run O(log n).
    """

    def __init__(self, tokens: NDArray[np.uint64], length: int) -> None:
        assert len(tokens) <= _PLACE, "places have 24 bits"
        self._tokens, self._length = tokens, length
        hashes, run = tokens, 1
        while run < length:
            hashes = hashes[:-run] * np.uint64(pow(_BASE, run, 1 << 64)) + hashes[run:]
            run *= 2
        places = np.arange(length, len(tokens), dtype=np.uint64)
        self._sorted = np.sort(_mixed(hashes[: len(places)]) & np.uint64(_WORD - _PLACE) | places)

    def last(self, run: Sequence[int]) -> int | None:
        """The place behind the last such run; None if there is none, or it has another length."""
        if len(run) != self._length or not self._sorted.size:
            return None
        polynomial = 0
        for token in run:
            polynomial = (polynomial * _BASE + token) & _WORD
        most = (polynomial ^ polynomial >> 32) * _MIX & _WORD | _PLACE
        for at in range(int(self._sorted.searchsorted(np.uint64(most), side="right")) - 1, -1, -1):
            found = int(self._sorted[at])
            if found | _PLACE != most:
                return None
            place = found & _PLACE
            if self._tokens[place - self._length : place].tolist() == list(run):
                return place
        return None


def _mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes whose upper bits depend on all of theirs."""
    return (hashes ^ hashes >> np.uint64(32)) * np.uint64(_MIX)
