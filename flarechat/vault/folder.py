"""The folder of the vault: which files are there, how they come, and which go first.

Several processes may do all of this on one folder at once: a file appears whole or not at all, and
one that vanished meanwhile is no error. When a file was last used is its time of change.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flarechat.errors import StorageError
from flarechat.models.files import megabytes, storage_error, sweep, written_whole
from flarechat.paths import made
from flarechat.vault.disk import deleted, scanned
from flarechat.vault.judging import Finding, children_first, go_up, hanging, judged, left_over, odd
from flarechat.vault.nodefile import SUFFIX, Header, read_header, read_whole

__all__ = ["SPARED_BYTES", "Entry", "Finding", "VaultFolder"]

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
            for item in scanned(folder):
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
                go_up(self.place(folder.name, leaf), known)
        return list(known.values())

    def digests(self, identity: str) -> set[str]:
        """The nodes of an identity, by the names of their files alone."""
        names = (_NAME.fullmatch(item.name) for item in scanned(self.root / identity))
        return {name[1] for name in names if name}

    def _folders(self, identity: str | None = None) -> list[Path]:
        names = [item.name for item in scanned(self.root) if item.is_dir(follow_symlinks=False)]
        return [
            self.root / name
            for name in sorted(names)
            if _DIGEST.fullmatch(name) and identity in (None, name)
        ]

    # Coming.

    def write(
        self, identity: str, digest: str, data: bytes, behind: Collection[Path] = ()
    ) -> Path | None:
        """Put a node's file in place, whole or not at all; it is not looked into. None, and no
        file, where one of those that it hangs on, `behind` which it is, is not there."""
        path = self.place(identity, digest)
        for tries_left in reversed(range(_TRIES)):
            if not all(map(os.path.exists, behind)):
                return None
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
        if all(map(os.path.exists, behind)):
            return path
        self.drop([path])  # somebody deleted one meanwhile, and cannot have seen this one
        return None

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
            freed += deleted(path)
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()
        return freed

    def sweep(self) -> None:
        """Delete what writes that were cut off left behind."""
        for folder in self._folders():
            sweep(folder)

    def clear(self, identity: str | None = None) -> int:
        """Delete all nodes, of one identity if one is given; how many bytes that freed."""
        for folder in self._folders(identity):
            sweep(folder)
        freed = 0
        for _ in range(_TRIES):  # some may come meanwhile, behind what goes
            entries = self.entries(identity)
            freed += self.drop(children_first(entry.path for entry in entries))
            if not entries:
                break
        for folder in self._folders(identity):
            with suppress(OSError):
                folder.rmdir()
        return freed

    def trim(self, budget: int) -> int:
        """Where files take more than `budget` bytes, delete down to nine tenths of it; how many
        bytes that freed. What cannot be used goes first, then nodes that nothing hangs on, those
        used longest ago before others. What cannot be read now stays."""
        self.sweep()
        entries = {entry.path: entry for entry in self.entries()}
        if sum(entry.size for entry in entries.values()) <= budget:
            return 0
        found = judged(entries, read_header)
        forest, spared = found.forest, set[Path]()
        going = [*found.damaged, *forest.lost()]
        left = sum(entries[path].size for path in (*forest.sound, *found.unread))
        for path in forest.leaving({path: entry.used_ns for path, entry in entries.items()}):
            if left <= budget * 9 // 10:
                break
            if path in spared or _used_since(entries[path]):
                spared.add(forest.above(path))
                continue
            going.append(path)
            left -= entries[path].size
        return self.drop_with_late(going, entries.keys())

    def drop_with_late(self, going: Collection[Path], seen: Collection[Path]) -> int:
        """Delete these files, none before what hangs on it, and what came behind them since all
        that are `seen` were listed."""
        freed = self.drop(children_first(going))
        late = [entry.path for entry in self.entries() if entry.path not in seen]
        return freed + self.drop(hanging(late, set(going)))

    # Judging.

    def verify(self, only: Collection[Path] | None = None) -> list[Finding]:
        """What is wrong with which file, every byte of which is read: with those of all nodes, or
        with `only` these."""
        paths = [entry.path for entry in self.entries()] if only is None else sorted(only)
        findings = judged(paths, lambda path: read_whole(path)[0]).findings()
        if only is None:
            for folder in self._folders():
                findings += left_over(folder)
            findings += filter(None, map(odd, self._odd()))
        return sorted(findings, key=lambda finding: finding.path)

    def _odd(self) -> list[Path]:
        """What has the name of a node and is no file, or of an identity and is no folder."""
        folders = self._folders()
        found = [self.root / item.name for item in scanned(self.root)]
        wrong = [path for path in found if _DIGEST.fullmatch(path.name) and path not in folders]
        for folder in folders:
            for item in scanned(folder):
                if _NAME.fullmatch(item.name) and not item.is_file(follow_symlinks=False):
                    wrong.append(folder / item.name)
        return wrong


def _used_since(entry: Entry) -> bool:
    """Whether a file was used after it was listed; one that is gone was not."""
    with suppress(OSError):
        return entry.path.stat().st_mtime_ns != entry.used_ns
    return False
