"""The words of all sessions in one table to search, kept between searches in one file.

The files of the sessions are the truth and the table follows them: before it is asked, every file
whose size, time or number has changed is read again. The file of the table is only a cache. It is
read whole, believed if its digest is right, and replaced whole; where it is missing, torn, of
another version or not writable, the same table is made in memory. So no process waits for another.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from flarechat import paths
from flarechat.errors import SessionError, StorageError
from flarechat.sessions import following, names
from flarechat.sessions.session import Session
from flarechat.textsafe import strip_controls, well_formed

FILE = "index.sqlite"
_VERSION = b"flarechat-index-2"
# A row's number is its file's, and its place in the file in the lowest bits.
PLACES = 24
_SCHEMA = """
PRAGMA secure_delete = ON;
CREATE TABLE files (
    number INTEGER PRIMARY KEY, name BLOB UNIQUE, mtime INTEGER, stamp TEXT, session TEXT,
    title TEXT
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
        now = dict(following.files_of(self._folder))
        known = {
            os.fsdecode(name): (number, json.loads(stamp))
            for number, name, stamp in self._table.execute("SELECT number, name, stamp FROM files")
        }
        gone = [name for name in known if name not in now]
        with self._table:
            for name in gone:
                self._take_out(known[name][0])
            for name, stat in now.items():
                number, seen = known.get(name, (None, []))
                if seen != following.stamp(stat):
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
        sure = following.settled(stat)
        called, rows = _said(self._folder, name)
        stamp = following.stamp(stat) if rows and sure else []
        cursor = self._table.execute(
            "INSERT INTO files (name, mtime, stamp, session, title) VALUES (?, ?, ?, ?, ?)",
            (os.fsencode(name), stat.st_mtime_ns, json.dumps(stamp), *called),
        )
        first = (cursor.lastrowid or 0) << PLACES
        self._table.executemany(
            "INSERT INTO texts (rowid, text, turn, role) VALUES (?, ?, ?, ?)",
            ((first + place, *row) for place, row in enumerate(rows)),
        )

    def _save(self) -> None:
        """Replace the file. A disk that refuses keeps none, least of all one with deleted words."""
        if self._file is None or not hasattr(self._table, "serialize"):
            return
        if following.keep(self._file, _VERSION, self._table.serialize()):
            self._unsaved = 0


def opened() -> Index:
    """This user's index; one a process."""
    return _opened(paths.sessions_dir(), following.place(FILE))


def follow() -> None:
    """Take what was deleted out of the file, where there is one."""
    file = following.place(FILE)
    if file and file.exists():
        with contextlib.suppress(StorageError), opened().refreshed():
            pass


@functools.lru_cache(maxsize=1)
def _opened(folder: Path, file: Path | None) -> Index:
    return Index(folder, file)


def problems() -> list[str]:
    """What is wrong with the file, in words that fit behind its name and a colon. Where it is
    behind the sessions it is right, as it follows them.
    """
    file = following.place(FILE)
    if file is None or not file.exists():
        return []
    if following.torn(file, _VERSION):
        return ["it is torn"]
    table = _loaded(file)
    if table is None:
        return []
    with contextlib.closing(table):
        try:
            table.execute("INSERT INTO texts (texts) VALUES ('integrity-check')")
            return [
                f"it has other words of {name} than the session"
                for name in _differing(table, paths.sessions_dir())
            ]
        except sqlite3.DatabaseError as error:
            return [f"its table is damaged: {error}"]


def _differing(table: sqlite3.Connection, folder: Path) -> Iterator[str]:
    """The sessions that have not changed since, and of which the table says something else."""
    now = dict(following.files_of(folder))
    files = table.execute("SELECT number, name, stamp, session, title FROM files").fetchall()
    for number, encoded, stamp, *called in files:
        name = os.fsdecode(encoded)
        if name in now and json.loads(stamp) == following.stamp(now[name]):
            rows = table.execute(
                "SELECT text, turn, role FROM texts WHERE rowid BETWEEN ? AND ? ORDER BY rowid",
                (number << PLACES, (number + 1 << PLACES) - 1),
            ).fetchall()
            if (tuple(called), rows) != _said(folder, name):
                yield name


def remake() -> None:
    """Make the file anew, where there is a place for it."""
    if file := following.place(FILE):
        following.drop(file)
        _opened.cache_clear()
        with opened().refreshed():
            pass


def _said(folder: Path, name: str) -> tuple[tuple[str, str], list[Row]]:
    """Id and title of a session, and text, turn and role of everything that can be found in it:
    every turn, then the name and title. Nothing of one that cannot be read.
    """
    try:
        session = Session(folder / (name + names.SUFFIX))
    except SessionError:
        return ("", ""), []
    given = session.tree.title
    called = f"{name}: {given}" if given else name
    turns = [(_clean(t.text), _clean(t.id), t.role) for t in session.tree.turns.values()]
    return (session.id, _clean(session.title)), [*turns, (_clean(called), "", "title")]


def _clean(text: str) -> str:
    return well_formed(strip_controls(text))


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
    body = following.kept(file, _VERSION) if file else None
    if body is None:
        return None
    table = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        table.deserialize(body)
        table.executescript("PRAGMA secure_delete = ON; SELECT count(*) FROM texts;")
    except (sqlite3.Error, AttributeError):
        table.close()
        return None
    return table
