"""What a bundle's manifest says: whose session it is, and which state goes with it.

    {"format": "flarechat-bundle", "version": 1 or, with state, 2,
     "session": {"name", "id", "bytes", "sha256"},
     "state": [{"digest", "identity", "bytes", "sha256"}]}

`state` has parents first. Owns the fields and their limits. Knows no zip.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, TypeGuard

from flarechat.vault.nodefile import SUFFIX as NODE_SUFFIX
from flarechat.vault.nodefile import Damaged

FORMAT = "flarechat-bundle"
VERSION, WITH_STATE = 1, 2
MANIFEST, LOG = "manifest.json", "session.jsonl"
LIMITS = {MANIFEST: 1 << 16, LOG: 1 << 28}
# Nodes of one bundle, the bytes of each and of all, and those that a manifest needs for each.
NODES, NODE_BYTES, STATE_BYTES, SAID_OF_NODE = 4096, 1 << 30, 16 << 30, 512

_SIZED: dict[str, type] = {"bytes": int, "sha256": str}


class OtherVersion(Exception):
    """A manifest of a version that is not read; its only argument is that version."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """What a manifest says of one node: its digest, its identity's, and of its file how many bytes
    it has and their SHA-256."""

    digest: str
    identity: str
    size: int
    sha256: str

    @property
    def member(self) -> str:
        """The name of the node's member."""
        return f"state/{self.identity}/{self.digest}{NODE_SUFFIX}"

    @classmethod
    def of(cls, digest: str, identity: str, data: bytes) -> StateEntry:
        """The entry of a node's file with this content."""
        return cls(digest, identity, len(data), sha256(data))

    def said(self) -> dict[str, Any]:
        """The entry as a manifest has it."""
        fields = {"digest": self.digest, "identity": self.identity}
        return fields | {"bytes": self.size, "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The session's name and id, the bytes of its file and their SHA-256; its state."""

    name: str
    id: str
    size: int
    sha256: str
    state: tuple[StateEntry, ...] = ()

    def written(self) -> bytes:
        """The manifest's file."""
        session = {"name": self.name, "id": self.id, "bytes": self.size, "sha256": self.sha256}
        said: dict[str, Any] = {"format": FORMAT, "version": VERSION, "session": session}
        if self.state:
            said |= {"version": WITH_STATE, "state": [entry.said() for entry in self.state]}
        return json.dumps(said, indent=2).encode()

    @classmethod
    def read(cls, data: bytes) -> Manifest:
        """What a manifest's file says. Raises Damaged, the reason a predicate, and OtherVersion."""
        try:
            said = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Damaged("is no JSON") from error
        if not isinstance(said, dict) or said.get("format") != FORMAT:
            raise Damaged(f"does not say {FORMAT}")
        version = said.get("version")
        if type(version) is not int or version not in (VERSION, WITH_STATE):
            raise OtherVersion(version)
        session = said.get("session")
        if not _has(session, {"name": str, "id": str} | _SIZED):
            raise Damaged("does not say which session it is")
        if not 0 <= session["bytes"] <= LIMITS[LOG]:
            raise Damaged(f"says that {LOG} has {session['bytes']} bytes")
        state = _state(said.get("state")) if version == WITH_STATE else ()
        return cls(session["name"], session["id"], session["bytes"], session["sha256"], state)


def _state(said: Any) -> tuple[StateEntry, ...]:
    """The entries of a manifest's state, which are no more than a bundle may have."""
    kinds = {"digest": str, "identity": str} | _SIZED
    if not isinstance(said, list) or not all(_has(entry, kinds) for entry in said):
        raise Damaged("does not say which state it has")
    entries = tuple(
        StateEntry(one["digest"], one["identity"], one["bytes"], one["sha256"]) for one in said
    )
    for entry in entries:
        if not 0 <= entry.size <= NODE_BYTES:
            raise Damaged(f"says that {entry.member} has {entry.size} bytes")
    whole = sum(entry.size for entry in entries)
    if whole > STATE_BYTES:
        raise Damaged(f"says that its state has {whole} bytes")
    return entries


def _has(said: Any, kinds: dict[str, type]) -> TypeGuard[dict[str, Any]]:
    return isinstance(said, dict) and all(type(said.get(k)) is t for k, t in kinds.items())


def sha256(data: bytes) -> str:
    """SHA-256 in hexadecimal digits, as manifests have it."""
    return hashlib.sha256(data).hexdigest()
