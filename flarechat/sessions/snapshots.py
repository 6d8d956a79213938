"""Which snapshots on disk sessions need: those that their lines name, and what these hang on.

A session's file is only searched for names, so that damaged lines and answers that were continued
count too. Knows nothing of what snapshots hold.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Set
from pathlib import Path
from typing import NamedTuple

from flarechat import paths
from flarechat.errors import StorageError
from flarechat.vault.folder import VaultFolder
from flarechat.vault.judging import upwards

_NAMED = re.compile(rb'"snapshot"\s*:\s*"([0-9a-f]{64})"')
_LISTS = re.compile(rb'"snapshots"\s*:\s*\[([0-9a-f",\s]*)\]')
_DIGEST = re.compile(rb'"([0-9a-f]{64})"')


class Dropped(NamedTuple):
    """What became of snapshots when a session was deleted: how many are gone, and how many are left
    with words behind those that any session needs."""

    gone: int
    left: int

    @property
    def notice(self) -> str:
        """What to say of those that are left, "" for none."""
        if not self.left:
            return ""
        some = "A snapshot stays" if self.left == 1 else f"{self.left} snapshots stay"
        return (
            f"{some}, with words that no chat has any more, as others need what it begins with;"
            " `flarechat cache clear` deletes all."
        )


def named(*sessions: Path) -> set[str]:
    """The digests that these sessions' files name; none of a file that cannot be read."""
    found = set[bytes]()
    for path in sessions:
        try:
            data = path.read_bytes()
        except OSError:
            continue
        found.update(_NAMED.findall(data))
        found.update(digest for few in _LISTS.findall(data) for digest in _DIGEST.findall(few))
    return {digest.decode() for digest in found}


def files_of(folder: VaultFolder, digests: Set[str]) -> set[Path]:
    """The files of these snapshots and of what they hang on, as far as they are there."""
    return set(_used(folder, digests))


def drop_unneeded(sessions: Collection[Path]) -> Dropped:
    """Delete every snapshot that none of these sessions, which are all, needs. What an answer under
    way has left goes too, and is computed anew."""
    try:
        folder = VaultFolder(paths.snapshots_dir())
    except StorageError:
        return Dropped(0, 0)
    folder.sweep()
    there = {entry.path for entry in folder.entries()}
    if not there:
        return Dropped(0, 0)
    needed = _used(folder, named(*sessions))
    folder.drop_with_late(there - needed.keys(), there)
    return Dropped(len(there - needed.keys()), sum(needed.values()))


def _used(folder: VaultFolder, digests: Set[str]) -> dict[Path, bool]:
    """The files of these snapshots and of what they hang on, as far as they are there, each with
    whether it has tokens behind those of any of these."""
    ends = {entry.path for entry in folder.entries() if entry.digest in digests}
    headers = upwards(ends)
    used = dict.fromkeys(headers, 0)
    for path, header in headers.items():
        if header is not None and not header.first:
            above = header.above(path)
            used[above] = max(used.get(above, 0), header.offset)
    return {
        path: path not in ends and header is not None and used[path] < len(header.tokens)
        for path, header in headers.items()
    }
