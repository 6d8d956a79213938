"""How the nodes of a vault hang together: which are lost, and in which order they may leave.

Knows what files say and touches none. A forest has trees of every identity.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from flarechat.vault.nodefile import Header


class Forest:
    """What the files of nodes say; those that something can be restored from are `sound`. Of one
    that a node hangs on and that is not among them, `there` says whether it exists all the same: it
    may have come while the others were looked up."""

    def __init__(self, headers: Mapping[Path, Header], there: Callable[[Path], bool]) -> None:
        self.headers = headers
        self._children: dict[Path, list[Path]] = {}
        for path in headers:
            self._children.setdefault(self.above(path), []).append(path)
        self.sound = self._reached(
            path
            for path, header in headers.items()
            if header.first or (self.above(path) not in headers and there(self.above(path)))
        )

    def above(self, path: Path) -> Path:
        """The file of what a node hangs on; that of the first nodes never exists."""
        return self.headers[path].above(path)

    def lost(self) -> list[Path]:
        """Nodes that nothing can be restored from: what they hang on is not there."""
        return [path for path in self.headers if path not in self.sound]

    def leaving(self, used: Mapping[Path, int]) -> Iterator[Path]:
        """All that are sound, in the order in which they should leave: of those that nothing
        hangs on any more, the one whose time of use is the longest past."""
        below = {path: len(self._children_of(path)) for path in self.sound}
        leaves = [(used[path], path) for path, count in below.items() if not count]
        heapq.heapify(leaves)
        while leaves:
            _, path = heapq.heappop(leaves)
            yield path
            above = self.above(path)
            if above in below:
                below[above] -= 1
                if not below[above]:
                    heapq.heappush(leaves, (used[above], above))

    def _reached(self, first: Iterator[Path]) -> set[Path]:
        """These and all that can be restored behind them."""
        found = list(first)
        for path in found:
            found += self._children_of(path)
        return set(found)

    def _children_of(self, path: Path) -> list[Path]:
        length = len(self.headers[path].tokens)
        return [c for c in self._children.get(path, ()) if self.headers[c].offset <= length]
