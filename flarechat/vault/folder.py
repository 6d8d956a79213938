"""The folder of the vault: which files are there, how they come, and which go first.

Several processes may do all of this on one folder at once: a file appears whole or not at all, and
one that vanished meanwhile is no error. When a file was last used is its time of change.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flarechat.errors import StorageError, reason_of
from flarechat.models.files import leftovers, megabytes, storage_error, sweep, written_whole
from flarechat.paths import made
from flarechat.vault.forest import Forest
from flarechat.vault.nodefile import SUFFIX, Damaged, Header, read_header, read_whole

# What stays free on the disk: a cache never takes the room that sessions need.
SPARED_BYTES = 256 << 20

_NAME = re.compile(r"([0-9a-f]{64})" + re.escape(SUFFIX))
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LATER_NS = 100
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: of which identity and node, both by their digests, its bytes, and when it was last
    used, in nanoseconds since 1970."""

    path: Path
    identity: str
    digest: str
    size: int
    used_ns: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a file, in words that fit behind its name and a colon."""

    path: Path
    what: str


class VaultFolder:
    """The files below `root`, which need not exist. Identities and nodes are named by their
    digests. Raises StorageError where the disk or its permissions are in the way."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # Looking.

    def place(self, identity: str, digest: str) -> Path:
        """Where a node's file is or would be."""
        if not (_DIGEST.fullmatch(identity) and _DIGEST.fullmatch(digest)):
            raise ValueError(f"{identity!r} and {digest!r} are no digests")
        return self.root / identity / (digest + SUFFIX)

    def entries(self, identity: str | None = None) -> list[Entry]:
        """Every node file, of one identity if one is given; alien names are passed over."""
        found = list[Entry]()
        for folder in self._folders(identity):
            for item in _scanned(folder):
                name = _NAME.fullmatch(item.name)
                with suppress(OSError):  # it may have vanished
                    if name and item.is_file(follow_symlinks=False):
                        now = item.stat(follow_symlinks=False)
                        path = folder / item.name
                        found.append(
                            Entry(path, folder.name, name[1], now.st_size, now.st_mtime_ns)
                        )
        return sorted(found, key=lambda entry: entry.path)

    def paths_of(self, identity: str | None, leaves: Iterable[str]) -> list[Header]:
        """Headers of these nodes and of all that they hang on, each once and parents before
        children. One that cannot be restored, or is not there, is left out. Without an identity
        nodes are looked for below every one."""
        folders, known = self._folders(identity), dict[Path, Header]()
        for leaf in leaves:
            for folder in folders:
                _go_up(self.place(folder.name, leaf), known)
        return list(known.values())

    def _folders(self, identity: str | None = None) -> list[Path]:
        names = [item.name for item in _scanned(self.root) if item.is_dir(follow_symlinks=False)]
        return [
            self.root / name
            for name in sorted(names)
            if _DIGEST.fullmatch(name) and identity in (None, name)
        ]

    # Coming.

    def write(self, identity: str, digest: str, data: bytes) -> Path:
        """Put a node's file in place, whole or not at all; it is not looked into."""
        path = self.place(identity, digest)
        for tries_left in reversed(range(_TRIES)):
            try:
                made(path.parent)
                self._require_room(path, len(data))
                with written_whole(path, mode=0o600) as file:
                    file.write(data)
                break
            except StorageError as error:
                # Another process may delete the empty folder just after we made it.
                if not tries_left or not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return path

    def _require_room(self, path: Path, size: int) -> None:
        try:
            free = shutil.disk_usage(self.root).free
        except OSError as error:
            raise storage_error(path, error) from error
        if free - size < SPARED_BYTES:
            raise StorageError(
                f"The disk is nearly full: {path} needs {megabytes(size)}, "
                f"{megabytes(free)} are free, and {megabytes(SPARED_BYTES)} are to stay so.",
                "Free space, or delete kept prefixes with `flarechat cache clear`.",
            )

    def touch(self, paths: Iterable[Path]) -> None:
        """These were used just now, given from a node to what it hangs on, which never counts as
        used before it. What cannot be touched is passed over: it only goes earlier."""
        now = time.time_ns()
        for steps, path in enumerate(paths):
            later = now + steps * _LATER_NS
            with suppress(OSError):
                os.utime(path, ns=(later, later))

    # Going.

    def drop(self, paths: Iterable[Path]) -> int:
        """Delete these files, and the folders that are empty then; how many bytes that freed."""
        freed, folders = 0, set[Path]()
        for path in paths:
            folders.add(path.parent)
            freed += _deleted(path)
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()
        return freed

    def clear(self, identity: str | None = None) -> int:
        """Delete all nodes, of one identity if one is given; how many bytes that freed."""
        for folder in self._folders(identity):
            sweep(folder)
        freed = self.drop(entry.path for entry in self.entries(identity))
        for folder in self._folders(identity):
            with suppress(OSError):
                folder.rmdir()
        return freed

    def trim(self, budget: int) -> int:
        """Where files take more than `budget` bytes, delete down to nine tenths of it; how many
        bytes that freed. What cannot be used goes first, then nodes that nothing hangs on, those
        used longest ago before others."""
        for folder in self._folders():
            sweep(folder)
        entries = {entry.path: entry for entry in self.entries()}
        if sum(entry.size for entry in entries.values()) <= budget:
            return 0
        forest, damaged = _judged(entries, read_header)
        going, spared = [*damaged, *forest.lost()], set[Path]()
        left = sum(entries[path].size for path in forest.sound)
        for path in forest.leaving({path: entry.used_ns for path, entry in entries.items()}):
            if left <= budget * 9 // 10:
                break
            if path in spared or _used_since(entries[path]):
                spared.add(forest.above(path))
                continue
            going.append(path)
            left -= entries[path].size
        return self.drop(going)

    # Judging.

    def verify(self) -> list[Finding]:
        """What is wrong with which file: every byte of each is read. Without these files, the
        others are sound."""
        entries = {entry.path: entry for entry in self.entries()}
        forest, damaged = _judged(entries, lambda path: read_whole(path)[0])
        findings = [Finding(path, what) for path, what in damaged.items()]
        findings += [Finding(path, "what it hangs on is missing") for path in forest.lost()]
        for folder in self._folders():
            findings += [Finding(part, "a write that was cut off") for part in leftovers(folder)]
        return sorted(findings, key=lambda finding: finding.path)


def _judged(
    paths: Iterable[Path], read: Callable[[Path], Header]
) -> tuple[Forest, dict[Path, str]]:  # fmt: skip
    """How those that can be read hang together, and what is wrong with the others. Those that
    vanished are neither."""
    headers, damaged = dict[Path, Header](), dict[Path, str]()
    for path in paths:
        try:
            headers[path] = read(path)
        except Damaged as error:
            if os.path.lexists(path):
                damaged[path] = error.reason
    return Forest(headers, lambda path: path not in damaged and os.path.exists(path)), damaged


def _go_up(path: Path, known: dict[Path, Header]) -> None:
    """Add a node and all that it hangs on to those known, if all are there."""
    ways, above = dict[Path, Header](), path
    while above not in known:
        try:
            header = ways[above] = read_header(above)
        except Damaged:
            return
        if header.first:
            break
        above = above.with_name(header.parent + SUFFIX)
    down = list(reversed(ways.items()))
    length = len(known[above].tokens) if above in known else 0
    for _, header in down:
        if header.offset > length:
            return
        length = len(header.tokens)
    known.update(down)


def _scanned(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError(
            f"The folder {folder} cannot be read: {reason_of(error)}.", "Check its permissions."
        ) from error


def _deleted(path: Path) -> int:
    """Delete a file; the bytes it had, 0 if it was gone."""
    try:
        size = path.lstat().st_size
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise StorageError(
            f"{path} cannot be deleted: {reason_of(error)}.", "Check the permissions of its folder."
        ) from error
    return size


def _used_since(entry: Entry) -> bool:
    """Whether a file was used after it was listed; one that is gone was not."""
    with suppress(OSError):
        return entry.path.stat().st_mtime_ns != entry.used_ns
    return False
