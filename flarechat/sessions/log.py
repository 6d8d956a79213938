"""One append-only JSONL file on disk: how its lines are written and how they are read back.

Owns the bytes: a line is one object and one write, a torn or alien line stays where it is, and a
line that did not fit the disk waits in memory until it does. Knows no turn and no conversation.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarechat.errors import SessionError, StorageError

FORMAT = "flarechat-session"
VERSION = 1
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Line:
    """One line behind the first: its number in the file and its object; None when alien."""

    number: int
    record: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Log:
    """A file as read: its first line, the others, and whether the last one was cut off."""

    header: dict[str, Any]
    lines: tuple[Line, ...]
    torn: bool


def read_log(path: Path) -> Log:
    """Read a whole file. Only a first line that is not ours, or newer, is refused."""
    return parsed(bytes_of(path), path)


def parsed(data: bytes, path: Path) -> Log:
    """The log that these bytes of the file `path` are, refused as `read_log` does."""
    first, *rest = data.split(b"\n")
    header = _header(path, _object(first))
    lines = tuple(
        Line(number, _object(raw)) for number, raw in enumerate(rest, start=2) if raw.strip()
    )
    torn = bool(lines) and bool(rest[-1].strip()) and lines[-1].record is None
    return Log(header, lines, torn)


def read_header(path: Path) -> dict[str, Any]:
    """Read a file's first line only."""
    try:
        with path.open("rb") as file:
            return _header(path, _object(file.readline()))
    except OSError as error:
        raise _unreadable(path, error) from error


def read_id(path: Path) -> str:
    """The id in a file's first line, of whatever version; "" where it has none that can be read."""
    try:
        with path.open("rb") as file:
            first = _object(file.readline())
    except FileNotFoundError as error:
        raise _unreadable(path, error) from error
    except OSError:
        return ""
    found = first.get("id") if first else None
    return str(found) if is_id(found) else ""


def bytes_of(path: Path) -> bytes:
    """A whole file as it is."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> SessionError:
    return SessionError(
        f"The session file {path} cannot be read: {error.strerror}.",
        "`flarechat sessions list` shows the sessions that are there.",
    )


def _object(raw: bytes) -> dict[str, Any] | None:
    """The object of one line, or None: not JSON, not UTF-8, not an object, nested too deep."""
    try:
        value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _header(path: Path, header: dict[str, Any] | None) -> dict[str, Any]:
    if header is None or header.get("format") != FORMAT:
        raise SessionError(
            f"{path}, line 1, is not the start of a flarechat session.",
            "The file was left as it is; restore its first line or move it to another folder.",
        )
    version = header.get("version")
    if version != VERSION:
        raise SessionError(
            f"{path}, line 1, has session format {version}; this flarechat reads {VERSION}.",
            "The file was left as it is; open it with a newer flarechat.",
        )
    session_id = header.get("id")
    if not is_id(session_id):
        raise SessionError(
            f"{path}, line 1, has no usable session id.",
            'The file was left as it is; give its first line an "id" of letters and digits.',
        )
    return header


def is_id(value: Any) -> bool:
    """Whether a value can be the id of a session."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


class LogWriter:
    """Appends lines to one file. The caller holds the session's lock."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            self._fd = os.open(path, flags | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        except FileExistsError:
            raise SessionError(
                f"The session file {path} is there already.", "Choose another name."
            ) from None
        except OSError as error:
            raise _unwritable(path, error) from error
        self.path = path
        self._waiting: deque[bytes] = deque()
        self._torn = _ends_torn(self._fd)

    def wait_for(self, record: Mapping[str, Any]) -> None:
        """Put one line before the next that is appended."""
        self._waiting.append(_encoded(record))

    @property
    def waits(self) -> bool:
        """Whether a line has not been written."""
        return bool(self._waiting)

    def append(
        self, record: Mapping[str, Any], *, durable: bool = False, droppable: bool = False
    ) -> None:
        """Write one line behind those that wait, flushed, and with `durable` synced to the disk.

        Raises StorageError when the disk refuses; the line then waits for the next append,
        unless it is `droppable`.
        """
        self.wait_for(record)
        try:
            self._write_waiting()
            if durable:
                os.fsync(self._fd)
        except OSError as error:
            if droppable and self._waiting:
                self._waiting.pop()
            raise _unwritable(self.path, error) from error

    def close(self) -> None:
        """Try once more to write what waits, then let go; a file without a line is removed."""
        try:
            self._write_waiting()
        except OSError as error:
            raise _unwritable(self.path, error) from error
        finally:
            empty = os.fstat(self._fd).st_size == 0
            os.close(self._fd)
            if empty:
                self.path.unlink(missing_ok=True)

    def _write_waiting(self) -> None:
        while self._waiting:
            line = (b"\n" if self._torn else b"") + self._waiting[0]
            size = os.fstat(self._fd).st_size
            if os.write(self._fd, line) < len(line):
                os.ftruncate(self._fd, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._torn = False
            self._waiting.popleft()


def _encoded(record: Mapping[str, Any]) -> bytes:
    """One line; readable UTF-8, or escapes where a lone surrogate has no encoding."""
    try:
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        return f"{text}\n".encode()
    except UnicodeEncodeError:
        return f"{json.dumps(record, separators=(',', ':'))}\n".encode()


def _ends_torn(fd: int) -> bool:
    """Whether the file's last line lacks its line break, so that the next must bring one."""
    size = os.fstat(fd).st_size
    if size == 0:
        return False
    os.lseek(fd, size - 1, os.SEEK_SET)
    return os.read(fd, 1) != b"\n"


def _unwritable(path: Path, error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"There is no space left for the session file {path}.",
            "Free some; what was written before is kept and the rest is written when it fits.",
        )
    return StorageError(
        f"The session file {path} cannot be written: {error.strerror}.",
        "Check the folder's permissions; what was written before is kept.",
    )
