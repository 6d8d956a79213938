"""What the list says of every session, kept between lists in one file of the cache folder.

A session is read again when its file has changed; one that cannot be read is tried every time.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarechat import paths
from flarechat.errors import SessionError, StorageError
from flarechat.sessions import following, names
from flarechat.sessions.session import Session

FILE = "list.cache"
_VERSION = b"flarechat-list-1"

_Entry = tuple[following.Stamp, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One line of the list. `problem` says why a file could not be read, else it is empty."""

    name: str
    path: Path
    changed: float
    bytes: int
    id: str = ""
    title: str = ""
    turns: int = 0
    model: str = ""
    created: float = 0.0
    problem: str = ""


def listed() -> list[SessionInfo]:
    """Every session file, the last changed first; one that cannot be read is named, not hidden."""
    folder, file = paths.sessions_dir(), following.place(FILE)
    known = _kept(file)
    now: dict[str, _Entry] = {}
    infos, read, total = [], 0, 0
    for name, stat in following.files_of(folder):
        total += stat.st_size
        sure = following.settled(stat)
        stamp, said = known.get(name, ([], {}))
        path = folder / (name + names.SUFFIX)
        if stamp != following.stamp(stat):
            said = _said(path)
            read += stat.st_size
        if sure and "problem" not in said:
            now[name] = (following.stamp(stat), said)
        infos.append(
            SessionInfo(name=name, path=path, changed=stat.st_mtime, bytes=stat.st_size, **said)
        )
    if file and (known.keys() - now.keys() or read * 20 > total):
        following.keep(file, _VERSION, json.dumps(now).encode())
    return sorted(infos, key=lambda info: (-info.changed, info.name))


def follow() -> None:
    """Take what was deleted out of the file, where there is one."""
    file = following.place(FILE)
    if file and file.exists():
        with contextlib.suppress(StorageError):
            listed()


def problems() -> list[str]:
    """What is wrong with what is kept, in words that fit behind the file's name and a colon. Where
    it is behind the sessions it is right, as it follows them.
    """
    file, folder = following.place(FILE), paths.sessions_dir()
    if file is None:
        return []
    if following.torn(file, _VERSION):
        return ["it is torn"]
    now, known = dict(following.files_of(folder)), _kept(file)
    return [
        f"it has something else of {name} than the session"
        for name, (stamp, said) in known.items()
        if name in now and stamp == following.stamp(now[name])
        if json.dumps(said) != json.dumps(_said(folder / (name + names.SUFFIX)))
    ]


def remake() -> None:
    """Make what is kept anew."""
    if file := following.place(FILE):
        following.drop(file)
        listed()


def _kept(file: Path | None) -> dict[str, _Entry]:
    body = following.kept(file, _VERSION) if file else None
    return json.loads(body) if body else {}


def _said(path: Path) -> dict[str, Any]:
    """What a file says, as the fields of its line in the list."""
    try:
        session = Session(path)
    except SessionError as error:
        return {"problem": error.message}
    return {
        "id": session.id,
        "title": session.title,
        "turns": len(session.tree.path()),
        "model": str(session.tree.model.get("name", "")),
        "created": _seconds(session.header.get("created")),
    }


def _seconds(value: Any) -> float:
    with contextlib.suppress(OverflowError):
        return float(value) if isinstance(value, int | float) else 0.0
    return 0.0
