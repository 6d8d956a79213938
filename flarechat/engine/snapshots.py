"""Snapshots: immutable nodes, each of what some tokens left behind the tokens of its parent.

Owns a node's form. A node hangs on a place inside its parent's own tokens, so that a branch splits
nothing, and all branches share what lies before it. It knows no slot and no file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from flarechat.vault.identity import Identity, digest_of
from flarechat.vault.tensors import BESIDE, PASSED, ROWS

__all__ = ["BESIDE", "PASSED", "ROWS", "Node", "kinds"]


@dataclass(eq=False, slots=True, kw_only=True)
class Node:
    """What `tokens` left behind the first `offset` of the own tokens of `parent`.

    `tensors` has names ROWS…, of which the rows of any fewer tokens are a beginning; BESIDE…, if
    the state after the last token is `whole`; and PASSED "hidden" [F] and "logits" [V], if a pass
    over the last token was `recalled`. It is None while it lies on disk alone. `drafted` says
    whether the draft head's rows can be relied on. `nbytes` is what the tensors take, loaded or
    not; `used` is when it was last used, by the tree's count; `start` tokens stand before it. What
    a `private` node holds, and what hangs on it, may not be written to disk. The root has no parent
    and no tokens.
    """

    digest: str
    parent: Node | None
    offset: int
    tokens: tuple[int, ...]
    nbytes: int = 0
    whole: bool = False
    recalled: bool = False
    drafted: bool = False
    private: bool = False
    tensors: Mapping[str, Tensor] | None = None
    used: int = 0
    start: int = field(init=False)
    children: dict[int, dict[int, list[Node]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.start = 0 if self.parent is None else self.parent.start + self.offset

    @classmethod
    def root(cls, identity: Identity) -> Node:
        """The node that every first one hangs on; the state before any token is whole."""
        return cls(
            digest=identity.digest, parent=None, offset=0, tokens=(), whole=True, drafted=True,
            tensors={},
        )  # fmt: skip

    @classmethod
    def of(
        cls, parent: Node, offset: int, tokens: Sequence[int], tensors: Mapping[str, Tensor], *,
        drafted: bool, private: bool = False,
    ) -> Node:  # fmt: skip
        """A node with these tensors, which nothing may change any more."""
        whole, recalled = kinds(tensors)
        return cls(
            digest=digest_of(parent.digest, offset, tokens), parent=parent, offset=offset,
            tokens=tuple(tokens), nbytes=sum(t.nbytes for t in tensors.values()),
            whole=whole, recalled=recalled, drafted=drafted, private=private or parent.private,
            tensors=tensors,
        )  # fmt: skip

    @property
    def end(self) -> int:
        """How many tokens stand before and in it."""
        return self.start + len(self.tokens)

    def hide(self) -> None:
        """What it holds, and all that hangs on it, may not be written to disk any more."""
        for node in self.branches():
            node.private = True

    def branches(self) -> list[Node]:
        """This node and all that hang on it, each before its own."""
        found = [self]
        for node in found:
            found += [n for heads in node.children.values() for ns in heads.values() for n in ns]
        return found

    def path(self) -> list[Node]:
        """The nodes from the root's child down to this one."""
        nodes, node = list[Node](), self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


def kinds(names: Collection[str]) -> tuple[bool, bool]:
    """Of a node with tensors of these names, whether the state after its last token is whole, and
    whether a pass over it was recalled."""
    return (
        any(name.startswith(BESIDE) for name in names),
        any(name.startswith(PASSED) for name in names),
    )
