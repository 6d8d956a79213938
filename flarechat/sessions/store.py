"""The folder of sessions: listing, finding by name, making and removing. Needs no lock to read."""

from __future__ import annotations

import difflib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flarechat import paths
from flarechat.errors import SessionError, StorageError
from flarechat.sessions import following, listing, names
from flarechat.sessions.listing import SessionInfo, listed
from flarechat.sessions.lock import SessionLock
from flarechat.sessions.log import read_header, read_id
from flarechat.sessions.session import Session, SessionWriter
from flarechat.textsafe import strip_controls

if TYPE_CHECKING:
    from flarechat.sessions.snapshots import Dropped

__all__ = [
    "SessionInfo",
    "create",
    "exists",
    "files",
    "find",
    "ids",
    "latest",
    "listed",
    "place",
    "remove",
    "rename",
    "retitle",
]


def find(name: str) -> Path:
    """The file of a session by name, id, or a prefix of one of them that fits no other."""
    there = {path.name.removesuffix(names.SUFFIX): path for path in files()}
    if name in there:
        return there[name]
    ids = {key: _id(path) for key, path in there.items()}
    exact = [key for key in there if ids[key] == name]
    found = exact or [key for key in there if name and _starts(name, key, ids[key])]
    if len(found) == 1:
        return there[found[0]]
    if found:
        some = ", ".join(sorted(found)[:5]) + (", …" if len(found) > 5 else "")
        raise SessionError(f"{name!r} fits {len(found)} sessions.", f"Choose one: {some}.")
    near = difflib.get_close_matches(name, there, n=1)
    raise SessionError(
        f"There is no session {name!r}.",
        f"Did you mean {near[0]}?" if near else "`flarechat sessions list` shows all of them.",
    )


def exists(name: str) -> bool:
    """Whether a session has exactly this name."""
    return _path(names.safe_name(name)).exists()


def latest() -> Path:
    """The file of the session that was changed last."""
    stats = dict(following.files_of(paths.sessions_dir()))
    for name in sorted(stats, key=lambda name: (-stats[name].st_mtime, name)):
        try:
            return Session(_path(name)).path
        except SessionError:
            continue
    raise SessionError("There is no session to continue.", "Begin one with `flarechat`.")


def create(name: str | None, first_message: str, header: dict[str, Any]) -> SessionWriter:
    """Begin a session's file: under `name`, or one made from the first message. Never overwrites.

    `header` gets the name that was taken.
    """
    if name is not None:
        header["name"] = names.safe_name(name)
        return SessionWriter.create(_path(name), header)
    stem = names.slug(first_message)
    for number in itertools.count(1):
        header["name"] = names.numbered(stem, number)
        path = _path(header["name"])
        if not path.exists():
            try:
                return SessionWriter.create(path, header)
            except SessionError:
                # Someone took the name in between.
                if not path.exists():
                    raise
    raise AssertionError("numbers do not end")


def remove(path: Path) -> Dropped:
    """Delete a session's file, unless someone is writing it, and all snapshots on disk that no
    session needs that is left. A damaged file that does not say whose it is has no lock and goes as
    well.
    """
    # sqlite3 and the vault are only loaded where something is looked up or taken out.
    from flarechat.sessions import index, snapshots

    name, session = path.name.removesuffix(names.SUFFIX), read_id(path)
    lock = SessionLock(path.parent, session, name) if session else None
    try:
        path.unlink()
    except OSError as error:
        raise StorageError(
            f"The session file {path} cannot be removed: {error.strerror}.",
            "Check the folder's permissions.",
        ) from error
    finally:
        if lock:
            lock.release()
    index.follow()
    listing.follow()
    return snapshots.drop_unneeded(files())


def rename(path: Path, name: str) -> Path:
    """Give a session another name, unless someone is writing it. Never overwrites."""
    names.safe_name(name)
    lock = SessionLock(path.parent, str(read_header(path)["id"]), path.name[: -len(names.SUFFIX)])
    try:
        return place(path, name)
    finally:
        lock.release()


def retitle(path: Path, title: str) -> None:
    """Give a session another title, "" for that of its first words, unless it is being written."""
    writer, session = SessionWriter.open(path)
    try:
        writer.title(names.title(strip_controls(title)), session.tree.head)
    finally:
        writer.close()


def place(file: Path, name: str, *, numbered: bool = False) -> Path:
    """Move a whole file into the folder, under `name` or, where that is taken and `numbered`
    allows it, under one with a number. Never overwrites.
    """
    for number in itertools.count(1):
        path = _path(names.numbered(name, number))
        try:
            # Whoever makes the empty file owns the name, on every system.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            if numbered:
                continue
            raise SessionError(
                f"There is a session {name!r} already.", "Choose another name."
            ) from None
        except OSError as error:
            raise _immovable(path, error) from error
        try:
            os.replace(file, path)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _immovable(path, error) from error
        return path
    raise AssertionError("numbers do not end")


def ids() -> dict[str, str]:
    """The name of every session that can be read, by its id."""
    return {found: path.name[: -len(names.SUFFIX)] for path in files() if (found := _id(path))}


def _immovable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"The session file {path} cannot be made: {error.strerror}.",
        "Free space or check the folder's permissions.",
    )


def _starts(prefix: str, *texts: str) -> bool:
    return any(text.startswith(prefix) for text in texts)


def _path(name: str) -> Path:
    return paths.sessions_dir() / (name + names.SUFFIX)


def files() -> list[Path]:
    """Every session file, by name."""
    return sorted(paths.sessions_dir().glob("*" + names.SUFFIX))


def _id(path: Path) -> str:
    try:
        return str(read_header(path)["id"])
    except SessionError:
        return ""
