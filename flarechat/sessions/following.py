"""How a cache follows the folder of sessions: what tells that a file has changed, and how the file
that a cache is kept in is read, believed and replaced.

The sessions are the truth. A cache's file is read whole, believed if its digest is right, and
replaced whole, so that no process waits for another and any of it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from flarechat import paths
from flarechat.errors import StorageError
from flarechat.sessions import names

# Clocks of file systems are coarse: a file changed this recently may change again unseen.
_UNSURE_NS = 100_000_000
_DIGEST_BYTES = 16

# A list, as JSON has no other: size, time of the content and of the file's own data, number.
Stamp = list[int]


def files_of(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
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


def stamp(stat: os.stat_result) -> Stamp:
    """What is another as soon as a file has changed, or may be read by others than before."""
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def settled(stat: os.stat_result) -> bool:
    """Whether a change from now on would show in the stamp."""
    return time.time_ns() - stat.st_mtime_ns > _UNSURE_NS


def place(name: str) -> Path | None:
    """Where the cache of this name is kept; None where there is no folder for it."""
    try:
        return paths.cache_dir() / name
    except StorageError:
        return None


def kept(file: Path, version: bytes) -> bytes | None:
    """What `keep` put into a file under this version; None where that cannot be believed."""
    try:
        body, under = _opened(file, version)
    except OSError:
        return None
    return body if under == version else None


def torn(file: Path, version: bytes) -> bool:
    """Whether a cache's file is neither missing nor whole, under this version or another."""
    try:
        _, under = _opened(file, version)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return under.rstrip(b"0123456789") != version.rstrip(b"0123456789")


def keep(file: Path, version: bytes, body: bytes) -> bool:
    """Replace a cache's file. A disk that refuses keeps none, least of all one with deleted words;
    whether it is kept.
    """
    part = file.with_suffix(".part")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as out:
            out.write(body + version + _digest(body))
        os.replace(part, file)
    except OSError:
        drop(part)
        drop(file)
        return False
    return True


def drop(file: Path) -> None:
    """Delete a cache's file, where that can be."""
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)


def _opened(file: Path, version: bytes) -> tuple[bytes, bytes]:
    """The body of a file and the version it is kept under, b"" where the digest is wrong."""
    data = file.read_bytes()
    tail = len(version) + _DIGEST_BYTES
    body, under = data[:-tail], data[-tail:-_DIGEST_BYTES]
    return body, under if data[-_DIGEST_BYTES:] == _digest(body) else b""


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
