"""The words of all sessions in one table to search, kept between searches in one file.

The files of the sessions are the truth and the table follows them: before it is asked, every file
whose size, time or number has changed is read again. The file of the table is only a cache. It is
read whole, believed if its digest is right, and replaced whole; where it is missing, torn, of
another version or not writable, the same table is made in memory. So no process waits for another.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from flarechat import paths
from flarechat.errors import SessionError, StorageError
from flarechat.sessions import names
from flarechat.sessions.session import Session
from flarechat.textsafe import strip_controls, well_formed

FILE = "index.sqlite"
_VERSION = b"flarechat-index-1"
_TAIL = len(_VERSION) + 16
# A row's number is its file's, and its place in the file in the lowest bits.
PLACES = 24
# Clocks of file systems are coarse: a file changed this recently may change again unseen.
_UNSURE_NS = 100_000_000
_SCHEMA = """
PRAGMA secure_delete = ON;
CREATE TABLE files (
    number INTEGER PRIMARY KEY, name BLOB UNIQUE, size INTEGER, mtime INTEGER, inode INTEGER,
    sure INTEGER, session TEXT, title TEXT
);
CREATE VIRTUAL TABLE texts USING fts5 (
    text, turn UNINDEXED, role UNINDEXED, tokenize = "unicode61 remove_diacritics 2",
    prefix = "1 2"
);
"""

Row = tuple[str, str, str]


class Index:
    """The table over one folder of sessions, current after `refresh`. Threads may share it."""

    def __init__(self, folder: Path, file: Path | None) -> None:
        """`file` is where it is kept, None for nowhere."""
        self._folder, self._file = folder, file
        self._lock = threading.Lock()
        self._unsaved = 0
        self._table = _loaded(file) or _empty()
        weakref.finalize(self, self._table.close)

    @contextlib.contextmanager
    def refreshed(self) -> Iterator[sqlite3.Connection]:
        """The table, as true as the files are now, for one thread at a time."""
        with self._lock:
            self._refresh()
            yield self._table

    def _refresh(self) -> None:
        """Read again what has changed, take out what has gone, and keep what that has brought."""
        now = dict(_files_of(self._folder))
        known = {
            os.fsdecode(name): (number, (size, mtime, inode) if sure else ())
            for number, name, size, mtime, inode, sure in self._table.execute(
                "SELECT number, name, size, mtime, inode, sure FROM files"
            )
        }
        gone = [name for name in known if name not in now]
        with self._table:
            for name in gone:
                self._take_out(known[name][0])
            for name, stat in now.items():
                number, seen = known.get(name, (None, ()))
                if seen != (stat.st_size, stat.st_mtime_ns, stat.st_ino):
                    if number is not None:
                        self._take_out(number)
                    self._put_in(name, stat)
                    self._unsaved += stat.st_size
            if gone:
                # Merging drops the words of deleted rows for good.
                self._table.execute("INSERT INTO texts (texts) VALUES ('optimize')")
        if gone or self._unsaved * 20 > sum(stat.st_size for stat in now.values()):
            self._save()

    def _take_out(self, number: int) -> None:
        first = number << PLACES
        last = first + (1 << PLACES) - 1
        self._table.execute("DELETE FROM texts WHERE rowid BETWEEN ? AND ?", (first, last))
        self._table.execute("DELETE FROM files WHERE number = ?", (number,))

    def _put_in(self, name: str, stat: os.stat_result) -> None:
        try:
            session = Session(self._folder / (name + names.SUFFIX))
            called, rows = (session.id, session.title), _rows(session)
        except SessionError:
            called, rows = ("", ""), []
        sure = bool(rows) and time.time_ns() - stat.st_mtime_ns > _UNSURE_NS
        cursor = self._table.execute(
            "INSERT INTO files (name, size, mtime, inode, sure, session, title)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(os.fsencode(name), stat.st_size, stat.st_mtime_ns, stat.st_ino, sure),
                *map(_clean, called),
            ),
        )
        first = (cursor.lastrowid or 0) << PLACES
        self._table.executemany(
            "INSERT INTO texts (rowid, text, turn, role) VALUES (?, ?, ?, ?)",
            ((first + place, *map(_clean, row)) for place, row in enumerate(rows)),
        )

    def _save(self) -> None:
        """Replace the file. A disk that refuses keeps none, least of all one with deleted words."""
        if self._file is None or not hasattr(self._table, "serialize"):
            return
        body = self._table.serialize()
        part = self._file.with_suffix(".part")
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(fd, "wb") as out:
                out.write(body + _VERSION + _digest(body))
            os.replace(part, self._file)
            self._unsaved = 0
        except OSError:
            for file in (part, self._file):
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)


def opened() -> Index:
    """This user's index; one a process."""
    try:
        file = paths.cache_dir() / FILE
    except StorageError:
        return _opened(paths.sessions_dir(), None)
    return _opened(paths.sessions_dir(), file)


def follow() -> None:
    """Take what was deleted out of the file, where there is one."""
    with contextlib.suppress(StorageError):
        if (paths.cache_dir() / FILE).exists():
            with opened().refreshed():
                pass


@functools.lru_cache(maxsize=1)
def _opened(folder: Path, file: Path | None) -> Index:
    return Index(folder, file)


def _files_of(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Name and stat of every session file; one that goes meanwhile is left out."""
    try:
        entries = os.scandir(folder)
    except OSError as error:
        raise StorageError(
            f"The folder {folder} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    with entries:
        for entry in entries:
            if entry.name.endswith(names.SUFFIX):
                with contextlib.suppress(OSError):
                    yield entry.name.removesuffix(names.SUFFIX), entry.stat()


def _rows(session: Session) -> list[Row]:
    """Text, turn and role of everything that can be found: every turn, then the name and title."""
    given = session.tree.title
    called = f"{session.name}: {given}" if given else session.name
    turns = [(turn.text, turn.id, turn.role) for turn in session.tree.turns.values()]
    return [*turns, (called, "", "title")]


def _clean(text: str) -> str:
    return well_formed(strip_controls(text))


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def _empty() -> sqlite3.Connection:
    table = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        table.executescript(_SCHEMA)
    except sqlite3.OperationalError as error:
        table.close()
        raise StorageError(
            f"Sessions cannot be searched with this Python's SQLite: {error}.",
            "Use a Python whose SQLite has FTS5.",
        ) from error
    return table


def _loaded(file: Path | None) -> sqlite3.Connection | None:
    """The table as it was kept; None where there is none that can be believed."""
    try:
        kept = file.read_bytes() if file else b""
    except OSError:
        return None
    body = kept[:-_TAIL]
    if kept[-_TAIL:] != _VERSION + _digest(body):
        return None
    table = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        table.deserialize(body)
        table.executescript("PRAGMA secure_delete = ON; SELECT count(*) FROM texts;")
    except (sqlite3.Error, AttributeError):
        table.close()
        return None
    return table
