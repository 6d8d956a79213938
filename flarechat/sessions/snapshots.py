"""Which snapshots on disk are a session's: those that its answers name, and what they hang on.

A session's file is only searched for names, so that damaged lines and answers that were continued
count too. Knows nothing of what snapshots hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from pathlib import Path

from flarechat import paths
from flarechat.errors import StorageError
from flarechat.vault.folder import VaultFolder
from flarechat.vault.nodefile import SUFFIX, Damaged, read_header

_NAMED = re.compile(rb'"snapshot"\s*:\s*"([0-9a-f]{64})"')


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
    there = [entry for entry in folder.entries() if entry.digest in digests]
    ways = folder.paths_of(None, {entry.digest for entry in there})
    above = {folder.place(header.identity.digest, header.digest) for header in ways}
    return above | {entry.path for entry in there}


def drop_only(digests: Set[str], others: Iterable[Path]) -> int:
    """Delete the snapshots of these digests and what they hang on, unless one of the `others`,
    which are sessions, needs it, and with each whatever hangs on it; how many these were."""
    try:
        folder = VaultFolder(paths.snapshots_dir())
    except StorageError:
        return 0
    own = files_of(folder, digests) if digests else set()
    going = own and own - files_of(folder, named(*others))
    if going:
        going |= _below(folder, going)
        folder.drop(going)
    return len(going)


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
