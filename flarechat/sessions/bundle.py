"""One session as one portable file, `NAME.flarechat`: a zip of its log and, if asked for, state.

    manifest.json   what else there is, see `manifest`
    session.jsonl   the session's file, byte for byte
    state/IDENTITY/DIGEST.safetensors   a node's file of the vault, stored

Owns what a bundle may be. Nothing in one is believed before it is counted and hashed, and nothing
is unpacked to the disk: members are read by their names, up to a limit, so that no path, link or
bomb in it can do anything. What a node may be is for the vault to say.
"""

from __future__ import annotations

import contextlib
import re
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flarechat.errors import SessionError
from flarechat.sessions import manifest
from flarechat.sessions.log import bytes_of
from flarechat.sessions.manifest import LIMITS, LOG, MANIFEST, Manifest, StateEntry
from flarechat.sessions.session import Session
from flarechat.vault.nodefile import SUFFIX as NODE_SUFFIX
from flarechat.vault.nodefile import Damaged

SUFFIX = ".flarechat"
_STATE = re.compile(r"state/[0-9a-f]{64}/[0-9a-f]{64}" + re.escape(NODE_SUFFIX))
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, KeyError, OverflowError, OSError),
)


def write(
    session: Session, out: IO[bytes], nodes: Iterable[tuple[str, str, bytes]] = ()
) -> list[StateEntry]:
    """Write a session's bundle; the same session and nodes give the same bytes.

    `nodes` are (digest, identity's digest, file), parents first, and are asked for one at a time.
    Returns what was said of them.
    """
    log = bytes_of(session.path)
    if len(log) > LIMITS[LOG]:
        raise SessionError(
            f"{session.name} has {len(log)} bytes, and a bundle holds {LIMITS[LOG]}.",
            "Export it as jsonl.",
        )
    entries = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for digest, identity, data in nodes:
            entries.append(StateEntry.of(digest, identity, data))
            _put(packed, entries[-1].member, data, zipfile.ZIP_STORED)
        digest, state = manifest.sha256(log), tuple(entries)
        said = Manifest(session.name, session.id, len(log), digest, state)
        _put(packed, MANIFEST, said.written(), zipfile.ZIP_DEFLATED)
        _put(packed, LOG, log, zipfile.ZIP_DEFLATED)
    return entries


def _put(packed: zipfile.ZipFile, name: str, data: bytes, way: int) -> None:
    member = zipfile.ZipInfo(name)
    member.external_attr = (stat.S_IFREG | 0o600) << 16
    member.compress_type = way
    packed.writestr(member, data)


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle whose list of members and manifest are sound."""

    path: Path
    _zip: zipfile.ZipFile
    _manifest: Manifest

    @property
    def name(self) -> str:
        """What the session was called."""
        return self._manifest.name

    @property
    def state(self) -> tuple[StateEntry, ...]:
        """The nodes that go with it."""
        return self._manifest.state

    def log(self) -> bytes:
        """The session's file, of the size and digest that the manifest says."""
        try:
            return self._of_digest(LOG, self._manifest.size, self._manifest.sha256)
        except Damaged as error:
            raise _refused(self.path, f"{LOG} {error.reason}") from error

    def node(self, entry: StateEntry) -> bytes:
        """A node's file, of the size and digest that the manifest says; otherwise Damaged."""
        try:
            return self._of_digest(entry.member, entry.size, entry.sha256)
        except Damaged as error:
            raise Damaged(f"it {error.reason}") from error

    def _of_digest(self, name: str, size: int, digest: str) -> bytes:
        data = _member(self._zip, name, size)
        if (len(data), manifest.sha256(data)) != (size, digest):
            raise Damaged("is not what its manifest says")
        return data


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """Open a bundle. Raises SessionError, with what is wrong, for any other file."""
    try:
        packed = zipfile.ZipFile(path)
    except _BROKEN as error:
        raise _refused(path, f"it cannot be unpacked ({_said(error)})") from error
    with packed:
        nodes = _nodes(path, packed.infolist())
        said = _manifest_of(path, packed, len(nodes))
        named, there = Counter(entry.member for entry in said.state), Counter(nodes)
        if named != there:
            some = _some((named - there) + (there - named))
            raise _refused(path, f"{MANIFEST} and the members do not agree on {some}")
        yield Bundle(path, packed, said)


def _nodes(path: Path, members: list[zipfile.ZipInfo]) -> set[str]:
    """The members that are nodes of a zip's members, of which each is one that a bundle may have
    and none is missing."""
    for member in members:
        name, way = member.orig_filename, member.compress_type
        if name not in LIMITS and not _STATE.fullmatch(name):
            raise _refused(path, f"it has a member {name!r}")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
            raise _refused(path, f"its member {name} is no plain file")
        if member.flag_bits & 1:
            raise _refused(path, f"its member {name} is encrypted")
        if way not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _refused(path, f"its member {name} is neither stored nor deflated")
        if way != zipfile.ZIP_STORED and name not in LIMITS:
            raise _refused(path, f"its member {name} is not stored")
    found = Counter(member.orig_filename for member in members)
    if found.total() > len(found) or not found.keys() >= LIMITS.keys():
        what = "twice" if found.total() > len(found) else "not all"
        raise _refused(path, f"it has {what} of its members: {_some(found.elements())}")
    if len(found) > len(LIMITS) + manifest.NODES:
        raise _refused(path, f"it has state of more than {manifest.NODES} snapshots")
    return found.keys() - LIMITS.keys()


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:5]) + (", …" if len(found) > 5 else "") or "none"


def _manifest_of(path: Path, packed: zipfile.ZipFile, nodes: int) -> Manifest:
    """The manifest of a bundle with so many nodes."""
    try:
        limit = LIMITS[MANIFEST] + nodes * manifest.SAID_OF_NODE
        return Manifest.read(_member(packed, MANIFEST, limit))
    except Damaged as error:
        raise _refused(path, f"{MANIFEST} {error.reason}") from error
    except manifest.OtherVersion as error:
        raise SessionError(
            f"{path} is a bundle of version {error.args[0]!r}; this flarechat reads"
            f" {manifest.VERSION} and {manifest.WITH_STATE}.",
            "Import it with a newer flarechat.",
        ) from error


def _member(packed: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A member's bytes, counted while they are unpacked. Raises Damaged, the reason a predicate."""
    try:
        with packed.open(name) as file:
            data = file.read(limit + 1)
    except _BROKEN as error:
        raise Damaged(f"cannot be unpacked ({_said(error)})") from error
    if len(data) > limit:
        raise Damaged(f"has more than {limit} bytes")
    return data


def _said(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _refused(path: Path, what: str) -> SessionError:
    return SessionError(
        f"{path} is no bundle that can be imported: {what}.",
        "Nothing was imported. Take the files of another program's zip out of it first.",
    )
