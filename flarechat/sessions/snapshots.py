"""Which snapshots on disk are a session's: those that its answers name, and what they hang on.

A session's file is only searched for names, so that damaged lines and answers that were continued
count too. Knows nothing of what snapshots hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from pathlib import Path
from typing import NamedTuple

from flarechat import paths
from flarechat.errors import StorageError
from flarechat.vault.folder import VaultFolder
from flarechat.vault.nodefile import SUFFIX, Damaged, read_header

_NAMED = re.compile(rb'"snapshot"\s*:\s*"([0-9a-f]{64})"')


class Dropped(NamedTuple):
    """What became of a session's snapshots: how many are gone, and how many hold words of it and
    are left, because what another session needs hangs on them."""

    gone: int
    left: int

    @property
    def notice(self) -> str:
        """What to say of those that are left, "" for none."""
        if not self.left:
            return ""
        some = "A snapshot stays" if self.left == 1 else f"{self.left} snapshots stay"
        return (
            f"{some}, with words of it, as other sessions need what it begins with;"
            " `flarechat cache clear` deletes all."
        )


def named(*sessions: Path) -> set[str]:
    """The digests that these sessions' files name; none of a file that cannot be read."""
    found = set[str]()
    for path in sessions:
        try:
            found.update(digest.decode() for digest in _NAMED.findall(path.read_bytes()))
        except OSError:
            continue
    return found


def files_of(folder: VaultFolder, digests: Set[str]) -> set[Path]:
    """The files of these snapshots, as far as they are there, and of what they hang on."""
    return set(_used(folder, digests))


def drop_only(digests: Set[str], others: Iterable[Path]) -> Dropped:
    """Delete the snapshots of these digests and what they hang on, unless one of the `others`,
    which are sessions, needs it, and with each whatever hangs on it."""
    try:
        folder = VaultFolder(paths.snapshots_dir())
    except StorageError:
        return Dropped(0, 0)
    own = _used(folder, digests) if digests else {}
    needed = _used(folder, named(*others)) if own else {}
    going = own.keys() - needed.keys()
    if going:
        going |= _below(folder, going)
        folder.drop(going)
    return Dropped(len(going), sum(own[path] > needed[path] for path in own.keys() & needed.keys()))


def _used(folder: VaultFolder, digests: Set[str]) -> dict[Path, int]:
    """The files of these snapshots, as far as they are there, and of what they hang on, each with
    how many of its tokens stand before the end of one of these."""
    there = {entry.path: entry.digest for entry in folder.entries() if entry.digest in digests}
    used = dict.fromkeys(there, 0)
    for header in reversed(folder.paths_of(None, set(there.values()))):
        path = folder.place(header.identity.digest, header.digest)
        used[path] = max(used.get(path, 0), len(header.tokens) if path in there else 0)
        if not header.first:
            above = path.with_name(header.parent + SUFFIX)
            used[above] = max(used.get(above, 0), header.offset)
    return used


def _below(folder: VaultFolder, roots: Set[Path]) -> set[Path]:
    """What hangs on these files, over any number of steps."""
    children: dict[Path, list[Path]] = {}
    for entry in folder.entries():
        try:
            above = entry.path.with_name(read_header(entry.path).parent + SUFFIX)
        except Damaged:
            continue
        children.setdefault(above, []).append(entry.path)
    found = list(roots)
    for path in found:
        found += children.get(path, [])
    return set(found)
