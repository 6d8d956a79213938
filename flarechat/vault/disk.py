"""The disk below the vault: looking into a folder and deleting a file, where both may vanish."""

from __future__ import annotations

import os
from pathlib import Path

from flarechat.errors import StorageError, reason_of


def scanned(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing where there is none."""
    try:
        with os.scandir(folder) as items:
            return list(items)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError(
            f"The folder {folder} cannot be read: {reason_of(error)}.", "Check its permissions."
        ) from error


def deleted(path: Path) -> int:
    """Delete a file; the bytes it had, 0 if it was gone."""
    try:
        size = path.lstat().st_size
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise StorageError(
            f"{path} cannot be deleted: {reason_of(error)}.", "Check the permissions of its folder."
        ) from error
    return size
