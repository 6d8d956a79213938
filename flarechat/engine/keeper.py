"""The keeper: takes snapshots of slots into the tree, and puts them back into slots.

Owns the names of a node's tensors, which stay on the slots' device: taking and putting them back is
asked of it and waits for nothing. It is asked only about tokens whose rounds were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flarechat.engine.contracts import Drafter, State
from flarechat.engine.snapshot_tree import SnapshotTree, Store
from flarechat.engine.snapshots import BESIDE, PASSED, ROWS, Node
from flarechat.engine.state.views import write
from flarechat.vault.identity import Identity

HIDDEN, LOGITS = PASSED + "hidden", PASSED + "logits"


@dataclass(frozen=True, slots=True)
class Found:
    """The first `rows` tokens of something, to be had from the path of `node`; `place` says where
    that lay, memory or disk."""

    node: Node
    rows: int
    place: str


class Keeper:
    """Snapshots of the slots of one engine."""

    def __init__(
        self, identity: Identity, budget: int, target: Iterable[State], drafter: Drafter,
        store: Store | None = None,
    ) -> None:  # fmt: skip
        self.drafter = drafter
        self._target = {f"target.{i}.": state for i, state in enumerate(target)}
        drafts = {f"draft.{i}.": state for i, state in enumerate(drafter.states())}
        self._states = self._target | drafts
        self._besides = bool(_views(self._states, lambda state: state.beside(0)))
        self.tree = SnapshotTree(identity, budget, self.reusable, store)

    @property
    def plain_start(self) -> bool:
        """Whether what a first pass leaves can be kept only while nothing has followed it."""
        return self._besides and bool(self.tree.budget)

    def reusable(self, held: int, rows: int) -> int:
        """How many of `rows` tokens every state can keep of the `held` it stands at."""
        return min((s.reusable(held, rows) for s in self._states.values()), default=rows)

    # From slots into the tree.

    def take(self, slot: int, tokens: Sequence[int], *, private: bool = False) -> None:
        """Keep what `slot` holds, which is the state after exactly these tokens."""
        if not tokens or not self.tree.budget:
            return
        node, rows = self.tree.find(tokens)
        if rows == len(tokens):
            self.tree.touch(node)
        else:
            self._add(slot, tokens, {}, whole=True, private=private)

    def remember(
        self, slot: int, prompt: Sequence[int], hidden: Tensor, logits: Tensor, *, whole: bool,
        private: bool = False,
    ) -> None:  # fmt: skip
        """Keep what a pass over the last token of a prompt gave, hidden [F] and logits [V]. The
        slot holds the prompt's rows; its state stands at the prompt's end only if it is `whole`."""
        if not self.tree.budget or (self._besides and not whole):
            return
        if self.tree.passed(prompt) is None:
            passed = {HIDDEN: hidden, LOGITS: logits}
            self._add(slot, prompt, passed, whole=whole, private=private)

    def _add(
        self, slot: int, tokens: Sequence[int], passed: Mapping[str, Tensor], *, whole: bool,
        private: bool,
    ) -> None:  # fmt: skip
        parent, offset = self.tree.place(tokens)
        if parent.start + offset == len(tokens):
            # All rows are there, but not what is to lie beside them: the last hangs there twice.
            offset -= 1
        start = parent.start + offset
        rows = _views(self._states, lambda state: state.by_token(slot, start, len(tokens)))
        beside = _views(self._states, lambda state: state.beside(slot)) if whole else {}
        views = _named(ROWS, rows) | _named(BESIDE, beside) | dict(passed)
        if sum(view.nbytes for view in views.values()) > self.tree.budget:
            return
        try:
            copies = {name: _copy(view) for name, view in views.items()}
        except (MemoryError, RuntimeError):
            return  # an answer does not fail for want of memory for its snapshot
        drafted = self.drafter.reliable(slot, len(tokens))
        own = tokens[start:]
        self.tree.add(Node.of(parent, offset, own, copies, drafted=drafted, private=private))

    # From the tree into slots.

    def search(self, tokens: Sequence[int], more_than: int) -> Found | None:
        """The longest beginning of `tokens` that can be restored, if it is `more_than` so many."""
        while True:
            node, rows = self.tree.find(tokens)
            if rows <= more_than:
                return None
            there = all(n.tensors is not None for n in node.path())
            if self.tree.load(node):
                return Found(node, rows, "memory" if there else "disk")

    def restore(self, slot: int, found: Found) -> None:
        """Put the state of the tokens that were found into `slot`."""
        path, drafted = found.node.path(), 0
        ends = [*(node.start for node in path[1:]), found.rows]
        for node, end in zip(path, ends, strict=True):
            end = min(end, found.rows)
            self._write_rows(self._states, slot, node, end)
            if node.drafted and drafted == node.start:
                drafted = end
        if found.rows == found.node.end:
            self._write_beside(self._states, slot, found.node)
        self.drafter.restored(slot, drafted)

    def recall(self, slot: int, prompt: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        """Hidden [F] and logits [V] of the last token of a prompt, if a pass gave them before. The
        slot, which stands before that token, gets what that pass left of the target's state."""
        node = self.tree.passed(prompt)
        if node is None or not self.tree.load(node):
            return None
        assert node.tensors is not None
        self._write_rows(self._target, slot, node, node.end)
        self._write_beside(self._target, slot, node)
        return node.tensors[HIDDEN], node.tensors[LOGITS]

    def _write_rows(self, states: Mapping[str, State], slot: int, node: Node, end: int) -> None:
        if end > node.start:
            views = _views(states, lambda state: state.by_token(slot, node.start, end))
            write(_named(ROWS, views), node.tensors or {})

    def _write_beside(self, states: Mapping[str, State], slot: int, node: Node) -> None:
        if node.whole:
            views = _views(states, lambda state: state.beside(slot))
            write(_named(BESIDE, views), node.tensors or {})


def _copy(view: Tensor) -> Tensor:
    return view.clone(memory_format=torch.contiguous_format)


def _views(
    states: Mapping[str, State], of: Callable[[State], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Views of all states, their names behind the state's."""
    return {place + name: view for place, own in states.items() for name, view in of(own).items()}


def _named(kind: str, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {kind + name: view for name, view in views.items()}
