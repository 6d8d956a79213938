"""SHA-256 of large files, computed once a file and remembered, and what is kept under it.

Knows nothing of their content.
A file that was not touched (same path, size and time of change) is not read again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flarechat.errors import ModelError, StorageError
from flarechat.models.files import written_whole

CONVERTED_VERSION = 2

_CHUNK = 4 << 20


def digest(path: Path, cache: Path, progress: Callable[[int, int], None] | None = None) -> str:
    """The hex SHA-256 of `path`; `progress` counts bytes while it is read."""
    resolved = path.resolve()
    note, facts = _note_of(resolved, cache)
    known = _noted(note, facts)
    if known:
        return known
    value = _hash(resolved, facts["size"], progress)
    # Not remembering costs a second look at the file next time, nothing else.
    with suppress(StorageError), written_whole(note) as file:
        file.write(json.dumps({**facts, "sha256": value}).encode())
    return value


def remembered(path: Path, cache: Path) -> str:
    """The digest if it was computed before and the file was not touched since, else ""."""
    try:
        return _noted(*_note_of(path.resolve(), cache))
    except OSError:
        return ""


def converted_path(cache: Path, fingerprint: str, version: int = CONVERTED_VERSION) -> Path:
    """Where the converted form of the GGUF with this digest lies."""
    return cache / "converted" / f"{fingerprint}-v{version}.safetensors"


def outdated_paths(cache: Path, fingerprint: str) -> list[Path]:
    """Where earlier versions, which nothing reads any more, kept theirs."""
    return [converted_path(cache, fingerprint, old) for old in range(1, CONVERTED_VERSION)]


def _note_of(resolved: Path, cache: Path) -> tuple[Path, dict[str, Any]]:
    """Where the digest of a file is noted, and the facts under which the note holds."""
    stat = resolved.stat()
    facts = {"path": str(resolved), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    name = hashlib.sha256(str(resolved).encode()).hexdigest()[:32]
    return cache / "digests" / f"{name}.json", facts


def _noted(note: Path, facts: dict[str, Any]) -> str:
    try:
        noted = json.loads(note.read_text())
        value = noted.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ""
    return str(value) if noted == facts else ""


def _hash(path: Path, size: int, progress: Callable[[int, int], None] | None) -> str:
    hasher, done = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
                done += len(chunk)
                if progress:
                    progress(done, size)
    except OSError as error:
        raise ModelError(
            f"The model file {path} cannot be read: {error.strerror or error}.",
            "Check the path and its permissions, or give another file with --model.",
        ) from error
    return hasher.hexdigest()
