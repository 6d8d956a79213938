"""The keeper: takes snapshots of slots into the tree, and puts them back into slots.

Owns the names of a node's tensors, which stay on the slots' device: taking and putting them back is
asked of it and waits for nothing, but where they come from disk. It is asked only about tokens
whose rounds were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flarechat.engine.contracts import Drafter, State
from flarechat.engine.snapshot_tree import SnapshotTree, Store
from flarechat.engine.snapshots import BESIDE, PASSED, ROWS, Node
from flarechat.engine.state.views import beginning, join, write
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
    """Snapshots of the slots of one engine, whose target's passes give rows of two `widths`: hidden
    F and logits V."""

    def __init__(
        self, identity: Identity, budget: int, target: Iterable[State], drafter: Drafter,
        widths: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        self.drafter = drafter
        self._passed = dict(zip((HIDDEN, LOGITS), widths, strict=True))
        self._target = {f"target.{i}.": state for i, state in enumerate(target)}
        drafts = {f"draft.{i}.": state for i, state in enumerate(drafter.states())}
        self._states = self._target | drafts
        self._besides = bool(_views(self._states, lambda state: state.beside(0)))
        self.tree = SnapshotTree(identity, budget, self.reusable)

    @property
    def store(self) -> Store | None:
        """Where snapshots lie beside memory, if anywhere."""
        return self.tree.store if self.tree.budget else None

    @property
    def plain_start(self) -> bool:
        """Whether what a first pass leaves can be kept only while nothing has followed it."""
        return self._besides and bool(self.tree.budget)

    def reusable(self, held: int, rows: int) -> int:
        """How many of `rows` tokens every state can keep of the `held` it stands at."""
        return min((s.reusable(held, rows) for s in self._states.values()), default=rows)

    # From slots into the tree.

    def take(
        self, slot: int, tokens: Sequence[int], *, private: bool = False, opening: int = 0
    ) -> str:
        """Keep what `slot` holds, which is the state after exactly these tokens. The digest of the
        node with its end, if that is written or about to be; else "". No node has tokens on both
        sides of the first `opening` tokens' end: other texts begin with these."""
        if not tokens or not self.tree.budget:
            return ""
        node: Node | None
        node, rows = self.tree.find(tokens, public=not private)
        if rows == len(tokens):
            self._use(node, private=private)
        else:
            self._part(slot, tokens, opening, private=private)
            node = self._add(slot, tokens, {}, whole=True, private=private)
        store = self.store
        kept = node is not None and store is not None and not node.private and store.keeps(node)
        return node.digest if node is not None and kept else ""

    def remember(
        self, slot: int, prompt: Sequence[int], hidden: Tensor, logits: Tensor, *, whole: bool,
        private: bool = False, opening: int = 0,
    ) -> None:  # fmt: skip
        """Keep what a pass over the last token of a prompt gave, hidden [F] and logits [V]. The
        slot holds the prompt's rows; its state stands at the prompt's end only if it is `whole`."""
        if not self.tree.budget or (self._besides and not whole):
            return
        node = self.tree.passed(prompt, public=not private)
        if node is None:
            passed = {HIDDEN: hidden, LOGITS: logits}
            self._part(slot, prompt, opening, private=private)
            self._add(slot, prompt, passed, whole=whole, private=private)
        elif node.private and not private:
            self._use(node, private=False)

    def _part(self, slot: int, tokens: Sequence[int], opening: int, *, private: bool) -> None:
        """Keep the rows of the opening as a node of their own, if no node has them."""
        parent, offset = self.tree.place(tokens, public=not private)
        if parent.start + offset < opening < len(tokens):
            self._add(slot, tokens[:opening], {}, whole=False, private=private)

    def _use(self, node: Node, *, private: bool) -> None:
        """A node holds what was to be kept."""
        if not private:
            self.tree.publish(node)
        self.tree.touch(node)

    def _add(
        self, slot: int, tokens: Sequence[int], passed: Mapping[str, Tensor], *, whole: bool,
        private: bool,
    ) -> Node | None:  # fmt: skip
        parent, offset = self.tree.place(tokens, public=not private)
        if not private:
            self.tree.publish(parent)
        if parent.start + offset == len(tokens):
            # All rows are there, but not what is to lie beside them: the last hangs there twice.
            offset -= 1
        start = parent.start + offset
        rows = _views(self._states, lambda state: state.by_token(slot, start, len(tokens)))
        beside = _views(self._states, lambda state: state.beside(slot)) if whole else {}
        views = _named(ROWS, rows) | _named(BESIDE, beside) | dict(passed)
        if not self.tree.make_room(sum(view.nbytes for view in views.values()), parent.path()):
            return None
        try:
            copies = {name: _copy(view) for name, view in views.items()}
        except (MemoryError, RuntimeError):
            return None  # an answer does not fail for want of memory for its snapshot
        drafted = self.drafter.reliable(slot, len(tokens))
        own = tokens[start:]
        node = Node.of(parent, offset, own, copies, drafted=drafted, private=private)
        return node if self.tree.add(node) else None

    # From the tree into slots.

    def search(self, tokens: Sequence[int], more_than: int) -> Found | None:
        """The longest beginning of `tokens` that can be restored, if it is `more_than` so many."""
        if self.store is not None:
            self.tree.join(self.store.news(self.tree))
        while True:
            node, rows = self.tree.find(tokens)
            if rows <= more_than:
                return None
            there = all(n.tensors is not None for n in node.path())
            if self.tree.load(node):
                return Found(node, rows, "memory" if there else "disk")

    def restore(self, slot: int, found: Found) -> None:
        """Put the state of the tokens that were found into `slot`."""
        path, drafted, parts = found.node.path(), 0, list[Mapping[str, Tensor]]()
        ends = [*(node.start for node in path[1:]), found.rows]
        for node, end in zip(path, ends, strict=True):
            end = min(end, found.rows)
            parts.append(self._rows(slot, node, end))
            if node.drafted and drafted == node.start:
                drafted = end
        views = _views(self._states, lambda state: state.by_token(slot, 0, found.rows))
        join(_named(ROWS, views), parts)
        if found.rows == found.node.end:
            self._write_beside(self._states, slot, found.node)
        self.drafter.restored(slot, drafted)
        self.tree.shrink()

    def recall(self, slot: int, prompt: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        """Hidden [F] and logits [V] of the last token of a prompt, if a pass gave them before. The
        slot, which stands before that token, gets what that pass left of the target's state."""
        node = self.tree.passed(prompt)
        if node is None or not self.tree.load(node):
            return None
        assert node.tensors is not None
        start, end = node.start, node.end
        views = _views(self._target, lambda state: state.by_token(slot, start, end))
        write(_named(ROWS, views), node.tensors)
        self._write_beside(self._target, slot, node)
        passed = node.tensors[HIDDEN], node.tensors[LOGITS]
        self.tree.shrink()
        return passed

    def fits(self, node: Node, tensors: Mapping[str, Tensor]) -> bool:
        """Whether tensors from elsewhere are those that a node has, by names, types and shapes."""
        start, end = node.start, node.end
        views = _named(ROWS, _views(self._states, lambda state: state.by_token(0, start, end)))
        if node.whole:
            views |= _named(BESIDE, _views(self._states, lambda state: state.beside(0)))
        passed = self._passed if node.recalled else {}
        if tensors.keys() != {*views, *passed}:
            return False
        forms = [(tensors[name], view.dtype, view.shape) for name, view in views.items()]
        rows = [(tensors[name], width) for name, width in passed.items()]
        return all(t.dtype == dtype and t.shape == shape for t, dtype, shape in forms) and all(
            t.is_floating_point() and t.shape == (width,) for t, width in rows
        )

    def _rows(self, slot: int, node: Node, end: int) -> Mapping[str, Tensor]:
        """What a node saved of its tokens before `end`."""
        if end == node.end:
            return node.tensors or {}
        end = max(end, node.start)
        views = _views(self._states, lambda state: state.by_token(slot, node.start, end))
        return beginning(_named(ROWS, views), node.tensors or {})

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
