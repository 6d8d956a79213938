"""The vault of one engine: snapshots on disk, found at the next start and read when a prompt asks.

Owns what is known of the files of one identity. Whatever is wrong with them ends here: a node that
cannot be used is none, the user is told once, and the engine computes it anew.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from flarechat.engine.node_writer import NodeWriter
from flarechat.engine.reading import Reader
from flarechat.engine.snapshot_tree import SnapshotTree
from flarechat.engine.snapshots import Node, kinds
from flarechat.errors import StorageError
from flarechat.vault.folder import VaultFolder
from flarechat.vault.identity import Identity
from flarechat.vault.nodefile import Damaged, Header, Unreadable, read_header

# Seconds that a first prompt waits for the list of what is there: no more than computing takes.
_PATIENCE = 1.0
_TICK_NS = 50_000_000

_STILL_LISTING = (
    "Kept prefixes are still being listed, so this one is computed anew; "
    "`flarechat cache trim --to MIB` leaves fewer."
)

Fits = Callable[[Node, Mapping[str, Tensor]], bool]


class Vault:
    """A Store. Nodes of more than `context` tokens are of no use to this engine; `fits` says
    whether tensors are those that a node has. They are loaded to `device`."""

    def __init__(
        self, root: Path, identity: Identity, *, model: str, budget: int, context: int,
        device: torch.device, fits: Fits,
    ) -> None:  # fmt: skip
        self.folder, self.context, self.device, self.fits = VaultFolder(root), context, device, fits
        self.writer = NodeWriter(
            self.folder, identity, model=model, budget=budget,
            tell=lambda told: self._tell("written", told),
        )  # fmt: skip
        self._files = Reader()
        self._told: dict[str, str] = {}
        self._headers: dict[str, Header] = {}
        self._useless = set[str]()
        self._listed: int | None = None
        self._reader: threading.Thread | None = None

    # Writing.

    def keep(self, node: Node) -> None:
        """Write it, or note that it was used, in the background."""
        self.writer.put(node)

    def keeps(self, node: Node) -> bool:
        """Whether it is written or queued."""
        return self.holds(node) or self.writer.awaits(node)

    def holds(self, node: Node) -> bool:
        """Whether it was written or found."""
        return node.digest in self.writer.on_disk

    def close(self, seconds: float) -> bool:
        """Write what is queued, for so long at most; whether all of it was."""
        return self.writer.close(seconds)

    # Finding.

    def begin(self) -> None:
        """Read the headers of what is there, in a thread."""
        if self._reader is None:
            self._reader = threading.Thread(target=self._begin, name="snapshot list", daemon=True)
            self._reader.start()

    def _begin(self) -> None:
        self.writer.check()
        self._look()

    def news(self, tree: SnapshotTree) -> list[Node]:
        """Nodes that are on disk and not in the tree, parents before children. What hangs on none
        of the tree waits until it does."""
        self.begin()
        assert self._reader is not None
        self._reader.join(_PATIENCE)
        if self._reader.is_alive():
            self._tell("listed", _STILL_LISTING)
            return []
        self._look(tree.nodes)
        self._hide(tree)
        return list(self._hung(tree))

    def _hide(self, tree: SnapshotTree) -> None:
        """What somebody deleted from the disk is not written there again, nor what hangs on it, but
        for a text that has all its tokens."""
        for digest in list(self.writer.vanished):
            node = tree.nodes.get(digest)
            if node is not None and node.tensors is None:
                tree.drop(node)
            elif node is not None:
                node.hide()
            self.writer.vanished.discard(digest)

    def _look(self, known: Mapping[str, Node] | None = None) -> None:
        """Read the headers of files that came since, if the folder says that any did."""
        try:
            self._list(known or {})
        except Exception:
            traceback.print_exc()

    def _list(self, known: Mapping[str, Node]) -> None:
        changed = self._changed()
        if changed is not None and changed == self._listed:
            return
        there = self.writer.look()
        self._headers = {d: header for d, header in self._headers.items() if d in there}
        self._useless &= there
        for digest in there - known.keys() - self._headers.keys() - self._useless:
            path = self.folder.place(self.writer.owner, digest)
            try:
                self._headers[digest] = read_header(path)
            except Unreadable:
                continue
            except Damaged as damaged:
                self._spoilt(path, digest, damaged.reason)
        # What comes within one tick of the disk's clock cannot be told from what was there.
        settled = changed is not None and time.time_ns() - changed > _TICK_NS
        self._listed = changed if settled else None

    def _changed(self) -> int | None:
        """When a file last came or went; None where there is no folder."""
        try:
            return self.writer.home.stat().st_mtime_ns
        except OSError:
            return None

    def _hung(self, tree: SnapshotTree) -> Iterator[Node]:
        """Nodes for the headers whose parents are in the tree, or come before them."""
        if not self._headers:
            return
        below: dict[str, list[str]] = {}
        for digest, header in self._headers.items():
            below.setdefault(header.parent, []).append(digest)
        known = {tree.root.digest: tree.root} | tree.nodes
        parents = [known[digest] for digest in below if digest in known]
        for parent in parents:
            for digest in below.get(parent.digest, ()):
                node = _node(digest, self._headers.pop(digest), parent)
                if digest in tree.nodes:
                    continue
                if node.offset > len(parent.tokens) or node.end > self.context:
                    self._useless.add(digest)
                    continue
                parents.append(node)
                yield node

    # Reading.

    def expect(self, nodes: Sequence[Node]) -> None:
        """Read them ahead."""
        self._files.expect(self.writer.place(node) for node in nodes)

    def load(self, node: Node) -> dict[str, Tensor] | None:
        """Its tensors on the device. A damaged file is deleted."""
        path = self.writer.place(node)
        try:
            header, data = self._files.read(path)
            tensors = self._tensors(node, header, data)
            return {name: tensor.to(self.device) for name, tensor in tensors.items()}
        except Unreadable as missing:
            if node.digest not in self.writer.trimmed:
                self._lament(missing.reason)
        except Damaged as damaged:
            self._spoilt(path, node.digest, damaged.reason)
        except Exception as failure:
            traceback.print_exc()
            self._lament(str(failure) or type(failure).__name__)
        self.writer.on_disk.discard(node.digest)
        self._listed = None
        return None

    def _tensors(self, node: Node, header: Header, data: bytes) -> dict[str, Tensor]:
        """The tensors of a file that is sound; Damaged where they are not the node's."""
        from safetensors.torch import load

        assert node.parent is not None
        place = header.parent, header.offset, header.tokens
        if place != (node.parent.digest, node.offset, node.tokens):
            raise Damaged("it holds other tokens than its name says")
        if kinds(header.tensors) != (node.whole, node.recalled):
            raise Unreadable("another process wrote it anew")
        try:
            tensors: dict[str, Tensor] = load(data)
        except (ValueError, KeyError, RuntimeError) as error:
            raise Damaged("its tensors cannot be read") from error
        if not self.fits(node, tensors):
            raise Damaged("its tensors are not those of this model")
        node.drafted = header.drafted
        return tensors

    # What went wrong.

    def notices(self) -> tuple[str, ...]:
        """Sentences for the user, since the last call: at most one about each of listing, reading
        and writing."""
        told, self._told = self._told, {}
        return tuple(told.values())

    def _tell(self, about: str, sentence: str) -> None:
        self._told.setdefault(about, sentence)

    def _lament(self, reason: str) -> None:
        self._tell("read", f"A kept prefix could not be used ({reason}); it is computed anew.")

    def _spoilt(self, path: Path, digest: str, reason: str) -> None:
        """A file is of no use to anybody."""
        self._lament(reason)
        self._useless.add(digest)
        self.writer.on_disk.discard(digest)
        with suppress(StorageError):
            self.folder.drop([path])


def _node(digest: str, header: Header, parent: Node) -> Node:
    """A node that lies on disk alone."""
    whole, recalled = kinds(header.tensors)
    return Node(
        digest=digest, parent=parent, offset=header.offset, tokens=header.tokens,
        nbytes=header.nbytes, whole=whole, recalled=recalled, drafted=header.drafted,
    )  # fmt: skip
