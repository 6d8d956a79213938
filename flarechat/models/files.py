"""Files and folders that appear whole or not at all, and locks that die with their owner.

Knows nothing about models. A half-written file is named `.NAME.XXXX.part`; its writer holds a
lock on it, so whoever writes there next can tell a dead leftover from work under way.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from flarechat.errors import StorageError

_LOCK = ".lock"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def storage_error(
    path: Path, error: OSError, elsewhere: str = "set FLARECHAT_HOME to a folder"
) -> StorageError:
    """The sentence for a file that cannot be written, and how one writes `elsewhere`."""
    if error.errno in _FULL:
        return StorageError(
            f"The disk is full: {path} cannot be written.",
            f"Free space, or {elsewhere} on another disk.",
        )
    return StorageError(
        f"{path} cannot be written: {error.strerror or error}.",
        f"Check the permissions, or {elsewhere} you may write to.",
    )


def require_space(folder: Path, size: int, what: str) -> None:
    """Refuse early when `size` bytes for `what` do not fit on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise StorageError(
            f"The disk is full: {what} needs {megabytes(size)} in {folder} "
            f"and {megabytes(free)} are free.",
            "Free space, or set FLARECHAT_HOME to a folder on another disk.",
        )


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e6:,.0f} MB"


@contextmanager
def written_whole(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that becomes `path` when the block ends well and vanishes when it does not. It is
    made with `mode`, of which the umask takes its part."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        sweep(path.parent)
        part, file = _open_part(path, mode)
    except OSError as error:
        raise storage_error(path, error) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def folder_whole(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends well and vanishes when it does
    not. Nothing but an empty folder may be at `path`.
    """
    path = path.absolute()
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        _require_empty(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep_folders(path)
        part.mkdir()
        lock = part.joinpath(_LOCK).open("xb")
    except OSError as error:
        raise storage_error(path, error, "give a folder") from error
    try:
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield part
            part.joinpath(_LOCK).unlink()
            os.replace(part, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise storage_error(path, error, "give a folder") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _require_empty(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StorageError(
            f"{path} is not an empty folder.", "Give a new one; nothing is ever written over."
        )


def _sweep_folders(path: Path) -> None:
    """Delete the folders that writers of `path` that died left behind."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError), part.joinpath(_LOCK).open("rb") as lock:
            if _try_lock(lock):
                shutil.rmtree(part, ignore_errors=True)


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`; call `waiting` a few times a second until it is free."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = path.open("ab")
    except OSError as error:
        raise storage_error(path, error) from error
    with file:
        while not _try_lock(file):
            waiting()
            time.sleep(0.2)
        yield


def sweep(folder: Path) -> None:
    """Delete what writers that died left in `folder`."""
    for part in leftovers(folder):
        with suppress(OSError):
            part.unlink(missing_ok=True)


def leftovers(folder: Path) -> Iterator[Path]:
    """What writers that died left in `folder`, each locked until the next is asked for."""
    for part in folder.glob(".*.part"):
        with suppress(OSError), part.open("rb") as file:
            if _try_lock(file):
                yield part


def _open_part(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    while True:
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        file = open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode))
        fcntl.flock(file, fcntl.LOCK_EX)
        # A sweeper may have taken the file between its creation and its lock.
        if os.fstat(file.fileno()).st_nlink:
            return part, file
        file.close()


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
