"""The tree of snapshots: which prefixes are kept in memory, within a budget of bytes.

Owns the nodes, the search for the longest prefix and the order of leaving: leaves used longest ago
go first, so that no node loses what it hangs on. Knows no slot; what a node holds is only counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from flarechat.engine.residents import common_prefix
from flarechat.engine.snapshots import Node
from flarechat.vault.identity import Identity


class Store(Protocol):
    """Where nodes lie beside memory. No verb but `load` and `news` waits for anything."""

    def keep(self, node: Node) -> None:
        """A node was used just now: it is written, with what it hangs on, where it is not yet."""

    def keeps(self, node: Node) -> bool:
        """Whether the node was written or is about to be."""

    def holds(self, node: Node) -> bool:
        """Whether all of the node was written."""

    def expect(self, nodes: Sequence[Node]) -> None:
        """These will be loaded next, in this order."""

    def load(self, node: Node) -> Mapping[str, Tensor] | None:
        """The node's tensors, or None where they are lost or not to be trusted."""

    def news(self, tree: SnapshotTree) -> Collection[Node]:
        """Nodes that were written and are not in the tree yet, parents before children."""

    def notices(self) -> tuple[str, ...]:
        """What went wrong since the last call, in sentences for the user."""

    def begin(self) -> None:
        """Look through what was written, behind what the engine does meanwhile."""

    def close(self, seconds: float) -> bool:
        """Write what is left to write, for so long at most; whether all of it was."""


class SnapshotTree:
    """Nodes of one identity, `budget` bytes of them in memory.

    `reusable(held, rows)` is as `Residents` has it: how much of `rows` tokens can be kept from
    state that stands at `held`.
    """

    def __init__(
        self, identity: Identity, budget: int, reusable: Callable[[int, int], int],
        store: Store | None = None,
    ) -> None:  # fmt: skip
        self.identity, self.budget, self.reusable, self.store = identity, budget, reusable, store
        self.root = Node.root(identity)
        self.nodes: dict[str, Node] = {}
        self.nbytes = 0
        self._clock = 0

    # Searching.

    def find(self, tokens: Sequence[int], *, public: bool = False) -> tuple[Node, int]:
        """The node from whose path most of `tokens` can be restored, and how many; of a `public`
        text, only nodes that are or may become public with it."""
        best = self.root, 0
        for node, shared in self._shared(tokens, public):
            rows = self.reusable(node.end + (not node.whole), node.start + shared)
            if rows > best[1]:
                best = node, rows
        return best

    def passed(self, prompt: Sequence[int], *, public: bool = False) -> Node | None:
        """The node of a pass over the last token of exactly this prompt."""
        ends = (n for n, shared in self._shared(prompt, public) if n.start + shared == len(prompt))
        return next((n for n in ends if n.recalled and n.end == len(prompt)), None)

    def place(self, tokens: Sequence[int], *, public: bool = False) -> tuple[Node, int]:
        """The node that shares most of `tokens`, and how many of its own: there new ones hang."""
        return max(self._shared(tokens, public), key=lambda found: found[0].start + found[1])

    def publish(self, node: Node) -> None:
        """A text that is no secret has all tokens of the private nodes on this path: they are none
        either."""
        for hidden in node.path():
            hidden.private = False

    def _shared(self, tokens: Sequence[int], public: bool = False) -> Iterator[tuple[Node, int]]:
        """Every node whose path begins as `tokens` do, with how many of its own they share. Of a
        `public` text none whose path has private tokens beside those of the text."""
        nodes = [self.root]
        while nodes:
            node = nodes.pop()
            own = tuple(tokens[node.start : node.end])
            same = own == node.tokens[: len(own)]
            shared = len(own) if same else common_prefix(own, node.tokens)
            if not public or _public(node, tokens):
                yield node, shared
            for offset, heads in node.children.items():
                if offset <= shared and node.start + offset < len(tokens):
                    nodes += heads.get(tokens[node.start + offset], ())

    # Growing and shrinking.

    def add(self, node: Node) -> bool:
        """Take a new node in, if there is room for it beside those it hangs on."""
        if node.digest in self.nodes or not self.make_room(node.nbytes, node.path()[:-1]):
            return False
        self._hang(node)
        self.nbytes += node.nbytes
        self.touch(node)
        return True

    def join(self, nodes: Collection[Node]) -> None:
        """Take in nodes that lie on disk alone, parents before children."""
        for node in nodes:
            if node.digest not in self.nodes:
                self._hang(node)

    def resize(self, budget: int) -> None:
        """From now on so many bytes may be in memory; what is too much goes."""
        self.budget = budget
        self.shrink()

    def shrink(self) -> None:
        """What is in memory beyond the budget goes."""
        self.make_room(0, ())

    def make_room(self, size: int, spared: Collection[Node]) -> bool:
        """Let leaves go, but none of the `spared`, until `size` more bytes fit the budget; none at
        all if they cannot."""
        held = sum(node.nbytes for node in spared if node.tensors is not None)
        if held + size > self.budget:
            return False
        while self.nbytes + size > self.budget:
            loaded = [node for node in self.nodes.values() if node.tensors is not None]
            stems = {id(node.parent) for node in loaded} | {id(node) for node in spared}
            leaves = (node for node in loaded if id(node) not in stems)
            self._let_go(min(leaves, key=lambda node: node.used))
        return True

    def touch(self, node: Node) -> None:
        """The node and what it hangs on were used just now."""
        self._clock += 1
        path = node.path()
        for used in path:
            used.used = self._clock
        public = next((used for used in reversed(path) if not used.private), None)
        if self.store is not None and public is not None:
            self.store.keep(public)

    def load(self, node: Node) -> bool:
        """Have the tensors of a node and of all that it hangs on in memory, whether they fit the
        budget or not. What is lost on disk leaves the tree, with all that hangs on it."""
        path = node.path()
        missing = [n for n in path if n.tensors is None]
        if self.store is not None:
            self.store.expect(missing)
        for lost in missing:
            self.make_room(lost.nbytes, path)
            tensors = None if self.store is None else self.store.load(lost)
            if tensors is None:
                if self.store is not None:
                    self.store.expect(())
                self.drop(lost)
                self.shrink()
                return False
            lost.tensors = tensors
            self.nbytes += lost.nbytes
        self.touch(node)
        return True

    def drop(self, node: Node) -> None:
        """Take a node out, with all that hangs on it."""
        for below in reversed(node.branches()):
            self._drop_leaf(below)

    def _drop_leaf(self, node: Node) -> None:
        assert node.parent is not None, "the root stays"
        heads = node.parent.children[node.offset]
        heads[node.tokens[0]].remove(node)
        if not heads[node.tokens[0]]:
            del heads[node.tokens[0]]
        if not heads:
            del node.parent.children[node.offset]
        del self.nodes[node.digest]
        self._unload(node)

    def _hang(self, node: Node) -> None:
        assert node.parent is not None and node.tokens, "a node hangs somewhere and has tokens"
        heads = node.parent.children.setdefault(node.offset, {})
        heads.setdefault(node.tokens[0], []).append(node)
        self.nodes[node.digest] = node

    def _let_go(self, node: Node) -> None:
        """Out of memory; where it lies on disk it stays in the tree."""
        if self.store is not None and self.store.holds(node):
            self._unload(node)
        else:
            self.drop(node)

    def _unload(self, node: Node) -> None:
        if node.tensors is not None:
            node.tensors = None
            self.nbytes -= node.nbytes


def _public(node: Node, tokens: Sequence[int]) -> bool:
    """Whether the private nodes on a path have no tokens but those of a text."""
    return all(tuple(tokens[n.start : n.end]) == n.tokens for n in node.path() if n.private)
