"""The walk over a tree of turns, against a plain recursion."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flarechat.sessions.turns import Turn, TurnTree
from flarechat.ui.screens.tree import walked

Told = list[tuple[str, int, int, int, int]]


def recursed(tree: TurnTree, parent: str | None, depth: int, number: int) -> Told:
    behind = [turn for turn in tree.turns.values() if turn.parent == parent]
    told: Told = []
    for at, turn in enumerate(behind, start=1):
        forks = depth + 1 if len(behind) > 1 else depth
        told.append((turn.id, forks, number, at, len(behind)))
        told += recursed(tree, turn.id, forks, number + 1)
    return told


@given(st.lists(st.integers(-1, 20), max_size=25))
def test_every_turn_stands_before_what_follows_it_and_behind_its_elder_siblings(
    parents: list[int],
) -> None:
    tree = TurnTree()
    for n, parent in enumerate(parents):
        behind = str(min(parent, n - 1)) if min(parent, n - 1) >= 0 else None
        tree.add(Turn(id=str(n), parent=behind, role="user", text=""))

    assert recursed(tree, None, 0, 1) == [(turn.id, *told) for turn, *told in walked(tree)]
