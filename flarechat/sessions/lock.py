"""Keeps two writers of one session apart. Owns the lock files; readers never need one.

The operating system holds the lock for the open file, so it goes with its process, however that
ends. The file's content, the holder's process id, only serves the message.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from flarechat.errors import SessionError, StorageError

if sys.platform == "win32":
    import msvcrt

    # Windows locks bytes and lets no one else read them: lock one far behind the process id.
    _LOCKED_BYTE = 1 << 20

    def _try_lock(fd: int) -> None:
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        os.lseek(fd, 0, os.SEEK_SET)

else:
    import fcntl

    def _try_lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


SUFFIX = ".lock"


class SessionLock:
    """The right to write one session, held from construction to `release`."""

    def __init__(self, folder: Path, session: str, name: str) -> None:
        """Take the lock of the session with this id; `name` is what the message calls it."""
        self._path = folder / f".{session}{SUFFIX}"
        self._fd: int | None = _locked_file(self._path, name)
        os.ftruncate(self._fd, 0)
        # A full disk must not refuse the lock: without the id only the message is poorer.
        with contextlib.suppress(OSError):
            os.write(self._fd, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let the session go; safe to call twice."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._fd)
        self._fd = None


def holder(folder: Path, session: str) -> str:
    """Who has the session with this id open for writing, in words; "" for nobody. Makes no file."""
    try:
        fd = os.open(folder / f".{session}{SUFFIX}", os.O_RDWR)
    except OSError:
        return ""
    try:
        _try_lock(fd)
    except OSError:
        return _holder(fd)
    finally:
        os.close(fd)
    return ""


def _locked_file(path: Path, name: str) -> int:
    """Open and lock `path`, again when its last holder removed it in between."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(
                f"The lock file {path} cannot be made: {error.strerror}.",
                "Free space or check the folder's permissions.",
            ) from error
        try:
            _try_lock(fd)
        except OSError:
            holder = _holder(fd)
            os.close(fd)
            raise SessionError(
                f"The session {name} is open in {holder}.",
                "Close it there, or begin another session.",
            ) from None
        if _is_same_file(fd, path):
            return fd
        os.close(fd)


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0) if hasattr(os, "pread") else os.read(fd, 32)
    digits = text.decode("ascii", "replace").strip()
    return f"process {digits}" if digits.isdigit() else "another process"


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
