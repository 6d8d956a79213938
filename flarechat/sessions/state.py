"""The state that a session's answers left in the vault, out into a bundle and in from one.

Owns what of the vault goes with a session: of the nodes that its turns name, and of those they hang
on, what holds the session's own tokens and nothing that another chat said. Knows no tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from flarechat.sessions import bundle, manifest
from flarechat.sessions.bundle import Bundle
from flarechat.sessions.manifest import StateEntry
from flarechat.sessions.session import Session
from flarechat.vault import nodefile
from flarechat.vault.folder import VaultFolder
from flarechat.vault.nodefile import Damaged, Header
from flarechat.vault.tensors import beginning

_MIB = 1 << 20

# Out into a bundle.


def write_bundle(session: Session, out: IO[bytes], vault: VaultFolder) -> list[str]:
    """Write a session's bundle with the state that is there; returns what to say of the rest."""
    ends = _ends(session)
    found = vault.paths_of(None, [digest for digest, _ in ends])
    packing = _Packing(vault, {header.digest: header for header in found})
    for digest, context in ends:
        packing.add(digest, context)
    entries = bundle.write(session, out, packing.files())
    if packing.left_out:
        return [_told(f"the bundle of {session.name}", packing.left_out)]
    return [] if entries else [f"No state of {session.name} is kept, so its bundle has none."]


def _ends(session: Session) -> list[tuple[str, int]]:
    """The node that holds each answer's end, by its digest, and how many tokens end there, of which
    a file may say anything."""
    ended = [
        (turn.snapshot, turn.finished.usage.context)
        for turn in session.tree.turns.values()
        if turn.snapshot and turn.finished is not None
    ]
    return [(end, max(context, 0) if type(context) is int else 0) for end, context in ended]


@dataclass(slots=True)
class _Packing:
    """The nodes of a session, parents first, with how many tokens of each are the session's own,
    and why others are left out."""

    vault: VaultFolder
    nodes: dict[str, Header]
    own: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, digest: str, context: int) -> None:
        """Add the node that holds an answer's end, and those it hangs on. The first `context`
        tokens that they hold are the session's; behind these, any chat may have gone on."""
        if digest not in self.nodes:
            self.left_out["it is not kept any more"] += 1
            return
        path, text, starts = [self.nodes[digest]], list[int](), list[int]()
        while not path[0].first:
            path.insert(0, self.nodes[path[0].parent])
        for header in path:
            starts.append((starts[-1] if starts else 0) + header.offset)
            text[starts[-1] :] = header.tokens
        del text[context:]
        for header, start in zip(path, starts, strict=True):
            own = _shared(header.tokens, text[start : start + len(header.tokens)])
            self.own[header.digest] = max(self.own[header.digest], own)

    def files(self) -> Iterator[tuple[str, str, bytes]]:
        """Digest, identity's digest and content of a file for every node, one at a time."""
        packed, size = dict[str, str](), 0
        for digest, header in self.nodes.items():
            folder = header.identity.digest
            parent = folder if header.first else packed.get(header.parent, "")
            try:
                name, data = self._file(digest, parent)
                if len(packed) == manifest.NODES or size + len(data) > manifest.STATE_BYTES:
                    raise Damaged("a bundle holds no more")
            except Damaged as error:
                self.left_out[error.reason] += 1
                continue
            # Two nodes may begin alike, and go on with what is left out of both.
            if name not in packed.values():
                yield name, folder, data
                size += len(data)
            packed[digest] = name

    def _file(self, digest: str, parent: str) -> tuple[str, bytes]:
        """Digest and content of a node's file with its own tokens alone, behind `parent`."""
        if not parent or not self.own[digest]:
            raise Damaged("what it goes on from is left out")
        if self.nodes[digest].size > manifest.NODE_BYTES:
            raise Damaged("it is too large")
        path = self.vault.place(self.nodes[digest].identity.digest, digest)
        header, data = nodefile.read_whole(path)
        if self.own[digest] == len(header.tokens) and parent == header.parent:
            return digest, data
        found = beginning(header, data, parent=parent, count=self.own[digest])
        if found is None:
            raise Damaged("another chat goes on within it")
        return found


def _shared(tokens: Sequence[int], text: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(tokens, text, strict=False))
    return next((n for n, (one, other) in pairs if one != other), min(len(tokens), len(text)))


# In from a bundle.


class Taken(NamedTuple):
    """What to say of state that was left out; the digests of what was taken, but for those that
    others of it hang on."""

    notices: list[str]
    ends: list[str]


def take(packed: Bundle, vault: VaultFolder, budget: int) -> Taken:
    """Take a bundle's state into the vault, which then has at most `budget` bytes. Of nodes that
    are there already the vault's own stay.

    Raises StorageError where the disk is in the way; what was taken by then stays.
    """
    if not budget:
        told = f"{packed.path}: left out its state, as nothing is kept on disk here."
        return Taken([told], [])
    taking = _Taking(packed, vault, budget)
    try:
        for entry in packed.state:
            taking.add(entry)
    finally:
        taking.settle()
    notices = [_told(str(packed.path), taking.left_out)] if taking.left_out else []
    return Taken(notices, taking.ends)


@dataclass(slots=True)
class _Taking:
    """The nodes that were taken: of each the file and how many tokens it has."""

    packed: Bundle
    vault: VaultFolder
    budget: int
    taken: dict[tuple[str, str], tuple[Path, int]] = field(default_factory=dict)
    stems: set[tuple[str, str]] = field(default_factory=set)
    size: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, entry: StateEntry) -> None:
        """Take a node, if it is sound and what it hangs on was taken."""
        path = self.vault.place(entry.identity, entry.digest)
        try:
            header = self._here(path) or self._written(entry)
        except Damaged as error:
            self.left_out[error.reason] += 1
        else:
            self.taken[entry.identity, entry.digest] = path, len(header.tokens)
            self.stems.add((entry.identity, header.parent))

    @property
    def ends(self) -> list[str]:
        """What was taken and nothing that was taken hangs on."""
        return sorted({node[1] for node in self.taken if node not in self.stems})

    def _here(self, path: Path) -> Header | None:
        try:
            return nodefile.read_header(path)
        except Damaged:
            return None

    def _written(self, entry: StateEntry) -> Header:
        if self.size + entry.size > self.budget:
            raise Damaged("the vault may not hold so much")
        data = self.packed.node(entry)
        header = nodefile.parsed(data, entry.digest, entry.identity)
        behind: list[Path] = []
        if not header.first:
            above, tokens = self.taken.get((entry.identity, header.parent), (None, -1))
            if above is None or header.offset > tokens:
                raise Damaged("what it goes on from is left out")
            behind = [above]
        if not self.vault.write(entry.identity, entry.digest, data, behind):
            raise Damaged("what it goes on from is left out")
        self.size += len(data)
        return header

    def settle(self) -> None:
        """Have what was taken stay longest, parents longer than what hangs on them."""
        self.vault.touch([path for path, _ in reversed(self.taken.values())])
        self.vault.trim(self.budget)


def not_taken(packed: Bundle) -> str:
    """What to say where a bundle's state is not wanted."""
    size = sum(entry.size for entry in packed.state) / _MIB
    return (
        f"{packed.path}: left out its state, {len(packed.state)} snapshots of {size:.1f} MiB;"
        " --with-state takes it in, from somebody you trust."
    )


def _told(where: str, left_out: Counter[str]) -> str:
    count = left_out.total()
    some = "a snapshot" if count == 1 else f"{count} snapshots"
    reasons = "; ".join(f"{why} ×{times}" for why, times in left_out.most_common())
    return f"{where}: left out {some}: {reasons}."
