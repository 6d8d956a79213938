"""Which files of a vault can be used, and what is wrong with the others.

Reads files and deletes none. What cannot be read for the moment is not judged: nothing is known
against it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flarechat.models.files import leftovers
from flarechat.vault.forest import Forest
from flarechat.vault.nodefile import SUFFIX, Damaged, Header, Unreadable, read_header

LOST, LEFTOVER = "what it hangs on is missing", "leftover, harmless"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a file, in words that fit behind its name and a colon. What is `harmless`
    spoils nothing, and what is not `mendable` is left to the user."""

    path: Path
    what: str
    harmless: bool = False
    mendable: bool = True


@dataclass(frozen=True, slots=True)
class Judged:
    """How those that can be used hang together; why others are damaged or could not be read."""

    forest: Forest
    damaged: dict[Path, str]
    unread: dict[Path, str]

    def findings(self) -> list[Finding]:
        """What is wrong with which file. Without these, the others are sound."""
        found = [Finding(path, what) for path, what in self.damaged.items()]
        found += [Finding(path, LOST) for path in self.forest.lost()]
        return found + [Finding(path, what, mendable=False) for path, what in self.unread.items()]


def judged(paths: Iterable[Path], read: Callable[[Path], Header]) -> Judged:
    """Judge these files by what `read` says of them. Those that vanished are left out."""
    headers = dict[Path, Header]()
    damaged, unread = dict[Path, str](), dict[Path, str]()
    for path in paths:
        try:
            headers[path] = read(path)
        except Unreadable as error:
            if os.path.lexists(path):
                unread[path] = error.reason
        except Damaged as error:
            if os.path.lexists(path):
                damaged[path] = error.reason
    forest = Forest(headers, lambda path: path not in damaged and os.path.exists(path))
    return Judged(forest, damaged, unread)


def odd(path: Path) -> Finding | None:
    """What is wrong with something that has a node's name, or an identity's, and is no file or no
    folder; None if it is gone. A folder is never deleted."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None
    if stat.S_ISDIR(mode):
        return Finding(path, "it is a folder, no snapshot; move it away", mendable=False)
    wanted = "file" if path.name.endswith(SUFFIX) else "folder"
    return Finding(
        path, f"it is a link, no {wanted}" if stat.S_ISLNK(mode) else f"it is no {wanted}"
    )


def left_over(folder: Path) -> list[Finding]:
    """What writes that were cut off left in a folder: nobody reads it."""
    return [Finding(part, LEFTOVER, harmless=True) for part in leftovers(folder)]


def upwards(paths: Iterable[Path]) -> dict[Path, Header | None]:
    """These files and all that they hang on, as far as they are there, each with what it says of
    itself, None where that cannot be read."""
    found, waiting = dict[Path, Header | None](), list(paths)
    while waiting:
        path = waiting.pop()
        if path in found or not os.path.lexists(path):
            continue
        try:
            header = found[path] = read_header(path)
        except Damaged:
            found[path] = None
            continue
        if not header.first:
            waiting.append(header.above(path))
    return found


def go_up(path: Path, known: dict[Path, Header]) -> None:
    """Add a node and all that it hangs on to those known, if it can be restored from them."""
    ways, above = dict[Path, Header](), path
    while above not in known:
        try:
            header = ways[above] = read_header(above)
        except Damaged:
            return
        if header.first:
            break
        above = header.above(above)
    down = list(reversed(ways.items()))
    length = len(known[above].tokens) if above in known else 0
    for _, header in down:
        if header.offset > length:
            return
        length = len(header.tokens)
    known.update(down)


def hanging(paths: Iterable[Path], gone: set[Path]) -> Iterator[Path]:
    """Of these files those that hang on what is `gone`, over any number of steps."""
    children: dict[Path, list[Path]] = {}
    for path in paths:
        if (above := _above(path)) is not None:
            children.setdefault(above, []).append(path)
    found = list(gone)
    for path in found:
        found += children.get(path, [])
        yield from children.get(path, [])


def children_first(paths: Iterable[Path]) -> list[Path]:
    """These files in an order in which none goes before what hangs on it."""
    above = {path: _above(path) for path in paths}
    depths = dict[Path | None, int]()
    for path in above:
        steps, step = list[Path](), path
        while step in above and step not in depths:
            steps.append(step)
            step = above[step] or Path()
        for each in reversed(steps):
            depths[each] = depths.get(above[each], 0) + 1
    return sorted(above, key=lambda path: -depths[path])


def _above(path: Path) -> Path | None:
    """The file of what a node hangs on, None where its own cannot be read."""
    try:
        return read_header(path).above(path)
    except Damaged:
        return None
