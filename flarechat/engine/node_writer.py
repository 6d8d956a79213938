"""Writes the nodes of one engine to disk behind its back: a queue, and a thread that works it off.

Owns when a node is written and what becomes of it when it cannot be. A node is written after what
it hangs on, or not at all; one whose tensors left memory meanwhile is passed over.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import torch
from torch import Tensor

from flarechat.engine.snapshots import Node
from flarechat.errors import StorageError
from flarechat.paths import made
from flarechat.vault import nodefile
from flarechat.vault.folder import VaultFolder
from flarechat.vault.identity import Identity

_NICE = 15
_REFUSED = "Prefixes cannot be kept on disk for now"
_Job = tuple[Node, torch.cuda.Event | None]


class NodeWriter:
    """Writes below `folder`, within `budget` bytes of all models together.

    `owner` is the digest of the identity, `home` its folder. `on_disk` are the digests of its
    nodes, as far as they were written or found, `trimmed` those that were there and had to go, and
    `vanished` those that somebody else deleted: they are not written again as long as they stand
    there.
    `tell` takes a sentence about what failed. A write that fails is tried again when the node, or
    one that hangs on it, is used again.
    """

    def __init__(
        self, folder: VaultFolder, identity: Identity, *, model: str, budget: int,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.folder, self.identity, self.model, self.budget = folder, identity, model, budget
        self.on_disk, self.trimmed, self.vanished = set[str](), set[str](), set[str]()
        self.owner = identity.digest
        self.home = folder.root / self.owner
        self._tell, self._refused, self._grown = tell, False, False
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._queued = set[str]()
        self._thread: threading.Thread | None = None
        self._over, self._deadline = False, float("inf")

    def put(self, node: Node) -> None:
        """A node was used just now: it is to be written, or its files to count as used."""
        if self._over or node.digest in self._queued:
            return
        self._queued.add(node.digest)
        self._queue.put((node, _made(node)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
            self._thread.start()

    def place(self, node: Node) -> Path:
        """Where the node's file is or would be."""
        return self.folder.place(self.owner, node.digest)

    def check(self) -> None:
        """Say so at once where something is in the way of the folder; clear what writes that were
        cut off left."""
        try:
            if os.path.lexists(self.folder.root):
                made(self.folder.root)
            self.folder.sweep()
        except StorageError as error:
            self._fail(f"{_REFUSED}: {error}")

    def awaits(self, node: Node) -> bool:
        """Whether the node is still to be written."""
        return node.digest in self._queued

    def close(self, seconds: float) -> bool:
        """Take nothing more, write what is queued, for so long at most; whether all was written."""
        self._over, self._deadline = True, time.monotonic() + seconds
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(max(seconds, 0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        """The thread: one node after the other, and the budget when there is none for now."""
        _step_back()
        try:
            while (job := self._next()) is not None:
                self._try(*job)
            self._trim()
        finally:
            self._over = True
            self._queued.clear()

    def _try(self, node: Node, made: torch.cuda.Event | None) -> None:
        """Keep one node, whatever may be in the way."""
        try:
            self._keep(node, made)
        except StorageError as error:
            self._fail(f"{_REFUSED}: {error}")
        except Exception as error:
            traceback.print_exc()
            self._fail(f"{_REFUSED}: {_named(error)}.")
        finally:
            self._queued.discard(node.digest)

    def _next(self) -> _Job | None:
        """The next in the queue, or None when it is time to leave."""
        with suppress(Empty):
            return self._queue.get_nowait() if time.monotonic() < self._deadline else None
        self._trim()
        return self._queue.get()

    def _fail(self, told: str) -> None:
        """Say so once, until something can be written again."""
        if not self._refused:
            self._tell(told)
        self._refused = True

    def _keep(self, node: Node, made: torch.cuda.Event | None) -> None:
        path = node.path()
        there = [self.place(each).exists() for each in path]
        gone = {n.digest for n, is_there in zip(path, there, strict=True) if not is_there}
        self._miss(gone & self.on_disk)
        if not self.vanished.isdisjoint(each.digest for each in path):
            return
        # What another process wrote meanwhile is as good as our own.
        self.on_disk.update(each.digest for each in path if each.digest not in gone)
        missing = [each for each in path if each.digest in gone]
        if not all(self._write(each, made) for each in missing):
            return
        self.folder.touch(self.place(each) for each in reversed(path))
        if missing:
            self._refused = False

    def _write(self, node: Node, made: torch.cuda.Event | None) -> bool:
        """Write one node, if it may and can be, and what it hangs on is there."""
        if node.private or node.tensors is None:
            return False
        data = self._data(node, made)
        behind = [self.place(above) for above in node.path()[:-1]]
        if data is None or not self.folder.write(self.owner, node.digest, data, behind):
            return False
        self._grown = True
        self.on_disk.add(node.digest)
        self.trimmed.discard(node.digest)
        return True

    def _data(self, node: Node, made: torch.cuda.Event | None) -> bytes | None:
        """The node's file, if its tensors are still there."""
        from safetensors.torch import save

        tensors = node.tensors
        if tensors is None or node.parent is None:
            return None
        if made is not None:
            tensors = _copied(tensors, made)
        fields = nodefile.metadata(
            self.identity, model=self.model, parent=node.parent.digest, offset=node.offset,
            tokens=node.tokens, drafted=node.drafted,
        )  # fmt: skip
        return nodefile.sealed(save(dict(tensors), fields))

    def _trim(self) -> None:
        """Keep to the budget, if anything was written since."""
        if not self._grown:
            return
        self._grown = False
        try:
            before = self.look()
            if self.folder.trim(self.budget):
                there = self.folder.digests(self.owner)
                self.trimmed |= before - there
                self.on_disk -= before - there
        except Exception:
            traceback.print_exc()

    def look(self) -> set[str]:
        """Learn which nodes are on disk now, and which somebody deleted."""
        before, there = set(self.on_disk), self.folder.digests(self.owner)
        self._miss(before - there)
        self.on_disk |= there
        return there

    def _miss(self, gone: set[str]) -> None:
        self.on_disk -= gone
        self.vanished |= gone


def _named(error: Exception) -> str:
    return str(error) or type(error).__name__


def _made(node: Node) -> torch.cuda.Event | None:
    """On a GPU, the moment in which all tensors that were asked for so far are made."""
    tensors = node.tensors or {}
    if not any(tensor.is_cuda for tensor in tensors.values()):
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def _copied(tensors: Mapping[str, Tensor], made: torch.cuda.Event) -> dict[str, Tensor]:
    """Copies in the host's memory, made beside what the device does for others."""
    device = next(iter(tensors.values())).device
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        made.wait()
        return {name: tensor.cpu() for name, tensor in tensors.items()}


def _step_back() -> None:
    """Let other threads go first, where a thread can say that of itself."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
