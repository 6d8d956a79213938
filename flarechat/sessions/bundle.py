"""One session as one portable file, `NAME.flarechat`: a zip of a manifest and the log.

    manifest.json   {"format": "flarechat-bundle", "version": 1,
                     "session": {"name", "id", "bytes", "sha256"}}
    session.jsonl   the session's file, byte for byte

Owns what a bundle may be. Nothing in one is believed before it is counted and hashed, and nothing
is unpacked to the disk: members are read by their names, up to a limit, so that no path, link or
bomb in it can do anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import stat
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flarechat.errors import SessionError
from flarechat.sessions.log import bytes_of
from flarechat.sessions.session import Session

FORMAT = "flarechat-bundle"
VERSION = 1
SUFFIX = ".flarechat"
MANIFEST, LOG = "manifest.json", "session.jsonl"
LIMITS = {MANIFEST: 1 << 16, LOG: 1 << 28}
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, KeyError, OverflowError, OSError),
)


def write(session: Session, out: IO[bytes]) -> None:
    """Write a session's bundle; the same session gives the same bytes."""
    log = bytes_of(session.path)
    if len(log) > LIMITS[LOG]:
        raise SessionError(
            f"{session.name} has {len(log)} bytes, and a bundle holds {LIMITS[LOG]}.",
            "Export it as jsonl.",
        )
    about = {"name": session.name, "id": session.id, "bytes": len(log), "sha256": _digest(log)}
    manifest = {"format": FORMAT, "version": VERSION, "session": about}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in ((MANIFEST, json.dumps(manifest, indent=2).encode()), (LOG, log)):
            member = zipfile.ZipInfo(name)
            member.external_attr = (stat.S_IFREG | 0o600) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(member, data)


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle whose list of members and manifest are sound."""

    path: Path
    name: str
    _zip: zipfile.ZipFile
    _about: dict[str, Any]

    def log(self) -> bytes:
        """The session's file, of the size and digest that the manifest says."""
        data = _member(self.path, self._zip, LOG, self._about["bytes"])
        if (len(data), _digest(data)) != (self._about["bytes"], self._about["sha256"]):
            raise _refused(self.path, f"{LOG} is not what its manifest says")
        return data


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """Open a bundle. Raises SessionError, with what is wrong, for any other file."""
    try:
        packed = zipfile.ZipFile(path)
    except _BROKEN as error:
        raise _refused(path, f"it cannot be unpacked ({_said(error)})") from error
    with packed:
        _check_members(path, packed.infolist())
        about = _manifest(path, packed)
        yield Bundle(path, about["name"], packed, about)


def _check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    for member in members:
        name = member.orig_filename
        if name not in LIMITS:
            raise _refused(path, f"it has a member {name!r}")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
            raise _refused(path, f"its member {name} is no plain file")
        if member.flag_bits & 1:
            raise _refused(path, f"its member {name} is encrypted")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _refused(path, f"its member {name} is neither stored nor deflated")
    found = sorted(member.orig_filename for member in members)
    if found != sorted(LIMITS):
        what = "twice" if len(set(found)) < len(found) else "not all"
        raise _refused(path, f"it has {what} of its members: {', '.join(found) or 'none'}")


def _manifest(path: Path, packed: zipfile.ZipFile) -> dict[str, Any]:
    """What the manifest says of the session."""
    try:
        manifest = json.loads(_member(path, packed, MANIFEST, LIMITS[MANIFEST]))
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"{MANIFEST} is no JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _refused(path, f"{MANIFEST} does not say {FORMAT}")
    if manifest.get("version") != VERSION:
        version = manifest.get("version")
        raise SessionError(
            f"{path} is a bundle of version {version!r}; this flarechat reads {VERSION}.",
            "Import it with a newer flarechat.",
        )
    about = manifest.get("session")
    kinds = {"name": str, "id": str, "bytes": int, "sha256": str}
    if not isinstance(about, dict) or any(type(about.get(k)) is not t for k, t in kinds.items()):
        raise _refused(path, f"{MANIFEST} does not say which session it is")
    if not 0 <= about["bytes"] <= LIMITS[LOG]:
        raise _refused(path, f"{MANIFEST} says that {LOG} has {about['bytes']} bytes")
    return about


def _member(path: Path, packed: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A member's bytes, counted while they are unpacked."""
    try:
        with packed.open(name) as file:
            data = file.read(limit + 1)
    except _BROKEN as error:
        raise _refused(path, f"{name} cannot be unpacked ({_said(error)})") from error
    if len(data) > limit:
        raise _refused(path, f"{name} has more than {limit} bytes")
    return data


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _said(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _refused(path: Path, what: str) -> SessionError:
    return SessionError(
        f"{path} is no bundle that can be imported: {what}.",
        "Nothing was imported. Take the files of another program's zip out of it first.",
    )
