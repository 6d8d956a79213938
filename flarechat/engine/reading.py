"""Reads snapshots' files ahead: those that will be asked for next, a few at a time, in threads.

Owns what was read and not asked for yet. A checksum costs more than reading, and leaves other
threads alone.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from flarechat.vault.nodefile import Header, read_whole

# Whole files are held, so that there are never more than so many. On two cores reading ahead took
# longer than one file after the other: there it is left out.
_MOST = min(8, (os.cpu_count() or 1) // 4)

_Read = tuple[Header, bytes]


class Reader:
    """Hands out files as `read_whole` does."""

    def __init__(self) -> None:
        self._next: deque[Path] = deque()
        self._begun: dict[Path, Future[_Read]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def expect(self, paths: Iterable[Path]) -> None:
        """These will be asked for in this order, and nothing else that was expected before."""
        for future in self._begun.values():
            future.cancel()
        self._begun.clear()
        self._next = deque(paths)
        self._begin()

    def read(self, path: Path) -> _Read:
        """A file's header and all its bytes. Raises what `read_whole` does."""
        future = self._begun.pop(path, None)
        self._begin()
        return read_whole(path) if future is None else future.result()

    def _begin(self) -> None:
        """Have files read, but never more than fit."""
        while self._next and len(self._begun) < _MOST:
            path = self._next.popleft()
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_MOST, "snapshot files")
            self._begun[path] = self._threads.submit(read_whole, path)
