"""The folder beside the sessions in which an import writes them before they have their names.

Owns that it goes with its import: deleted at the end, and by the next import where one was killed.
Whose lock can be taken is dead: the lock is held before the folder is made until it is gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flarechat import paths
from flarechat.errors import SessionError, StorageError
from flarechat.sessions import names
from flarechat.sessions.lock import SUFFIX, SessionLock

_PREFIX = "import-"


@contextmanager
def folder_aside() -> Iterator[Path]:
    """An empty folder on the disk of the sessions, until the block ends."""
    sessions = paths.sessions_dir()
    _sweep(sessions)
    name = _PREFIX + names.new_id()
    lock, folder = SessionLock(sessions, name, name), sessions / f".{name}"
    try:
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise StorageError(
                f"Nothing can be written to {sessions}: {error.strerror}.",
                "Free space or check the folder's permissions.",
            ) from error
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _sweep(sessions: Path) -> None:
    """Delete what imports that were killed left behind."""
    for name in {path.name.removesuffix(SUFFIX) for path in sessions.glob(f".{_PREFIX}*")}:
        with suppress(SessionError, StorageError):
            lock = SessionLock(sessions, name[1:], name)
            shutil.rmtree(sessions / name, ignore_errors=True)
            lock.release()
