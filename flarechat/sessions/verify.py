"""Whether what is saved is sound: the sessions, what is kept of them to list and search them, and
the snapshots on disk.

Everything is only read, but by `mend`, which never touches a session: a line that is not understood
does no harm to the others, and only the user knows what it was to be.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flarechat import paths
from flarechat.errors import SessionError, StorageError
from flarechat.sessions import index, listing, lock, names, snapshots, store
from flarechat.sessions.log import Line, Log, read_id, read_log
from flarechat.sessions.turns import EVENTS, TurnTree
from flarechat.textsafe import strip_controls
from flarechat.vault.folder import Finding, VaultFolder

# A line that is being written is whole a moment later.
_TRIES, _MOMENT_S = 3, 0.05


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a line of a session, or with all of it where `line` is None."""

    line: int | None
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A session's file: how many turns it gives, who has it open ("" for nobody), its faults."""

    name: str
    path: Path
    id: str
    turns: int
    open_in: str
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was looked at and what is wrong. `kept` is about what serves lists and searches;
    `mended` are the findings that `mend` has done away with."""

    sessions: tuple[Checked, ...]
    kept: tuple[Finding, ...]
    snapshots: int
    vault: tuple[Finding, ...]
    mended: tuple[Finding, ...] = ()

    @property
    def faults(self) -> int:
        """How many things are wrong, or were before they were mended; what is harmless is not."""
        told = (*self.kept, *self.vault, *self.mended)
        found = sum(not finding.harmless for finding in told)
        return found + sum(len(checked.faults) for checked in self.sessions)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong any more."""
        return self.faults == sum(not finding.harmless for finding in self.mended)


def verify(name: str | None = None) -> Report:
    """Look at everything, or at the session of this name and the snapshots that are its own."""
    path = None if name is None else store.find(name)
    count, findings = _snapshots(path)
    return Report(
        sessions=tuple(map(check, [path] if path else store.files())),
        kept=() if path else _kept(),
        snapshots=count,
        vault=tuple(findings),
    )


def _snapshots(session: Path | None) -> tuple[int, list[Finding]]:
    """How many snapshots were looked at, all or those of this session, and what is wrong."""
    try:
        vault = VaultFolder(paths.snapshots_dir())
    except StorageError as error:
        root = paths.cache_dir() / "snapshots"
        what = error.message if root.is_dir() else "it is no folder; move it away"
        return 0, [Finding(root, what, mendable=False)]
    if session is None:
        return len(vault.entries()), vault.verify()
    own = snapshots.files_of(vault, snapshots.named(session))
    return len(own), vault.verify(own)


def mend(report: Report) -> Report:
    """Delete the snapshots in which something is wrong and what is left over, and make anew what
    serves lists and searches where something is wrong with that; what is left then."""
    mendable = tuple(finding for finding in report.vault if finding.mendable)
    if mendable:
        VaultFolder(paths.snapshots_dir()).drop(finding.path for finding in mendable)
    if report.kept:
        index.remake()
        listing.remake()
    left = _kept() if report.kept else ()
    gone = tuple(finding for finding in report.kept if finding not in left)
    stay = tuple(finding for finding in report.vault if not finding.mendable)
    return replace(report, kept=left, vault=stay, mended=(*gone, *mendable))


def check(path: Path) -> Checked:
    """Read a session's file line by line."""
    name = path.name.removesuffix(names.SUFFIX)
    tree, faults = TurnTree(), list[Fault]()
    try:
        log = _settled(path)
        faults += _faults(tree, log)
    except SessionError as error:
        faults.append(Fault(None, error.message))
    found = _id(path)
    return Checked(
        name=name,
        path=path,
        id=found,
        turns=len(tree.turns),
        open_in=lock.holder(path.parent, found) if found else "",
        faults=tuple(faults),
    )


def _settled(path: Path) -> Log:
    """A file as read when nobody was just writing its last line."""
    for _ in range(_TRIES - 1):
        log = read_log(path)
        if not log.torn or not lock.holder(path.parent, str(log.header["id"])):
            return log
        time.sleep(_MOMENT_S)
    return read_log(path)


def _faults(tree: TurnTree, log: Log) -> Iterator[Fault]:
    for line in log.lines:
        torn = log.torn and line is log.lines[-1]
        lost = line.record is not None and _is_lost(tree, line.record)
        if tree.replay([line]):
            yield Fault(line.number, _why(line, torn=torn))
        elif lost:
            yield Fault(line.number, "the turn before it is missing; it is put behind the last one")


def _is_lost(tree: TurnTree, record: dict[str, Any]) -> bool:
    """Whether an event begins a turn behind one that is not there."""
    turn, parent = record.get("id"), record.get("parent")
    if record.get("type") not in ("user", "partial", "assistant") or not isinstance(turn, str):
        return False
    known = parent is None or (isinstance(parent, str) and parent in tree.turns)
    return turn not in tree.turns and not known


def _why(line: Line, *, torn: bool) -> str:
    """Why a line is left out."""
    if line.record is None:
        return "it was cut off" if torn else "it is no JSON object"
    kind = line.record.get("type")
    if not isinstance(kind, str) or kind not in EVENTS:
        return f"events of type {strip_controls(str(kind))[:40]!r} are not known"
    return f"this {kind} does not fit what stands before it, or lacks something"


def _id(path: Path) -> str:
    try:
        return read_id(path)
    except SessionError:
        return ""


def _kept() -> tuple[Finding, ...]:
    """What is wrong with what serves lists and searches."""
    found = [(listing.FILE, what) for what in listing.problems()]
    found += [(index.FILE, what) for what in index.problems()]
    return tuple(Finding(paths.cache_dir() / file, what) for file, what in found)
