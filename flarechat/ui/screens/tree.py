"""All turns of a chat with their branches: type to search, enter goes there.

Owns the order and the indentation of the turns; reads the tree and never changes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from flarechat.sessions.turns import Turn, TurnTree
from flarechat.ui.format import Glyphs
from flarechat.ui.screens.picker import Item, Picker
from flarechat.ui.widgets.turn import ROLES

# A turn, how many forks lie before it, its number, and which of how many in its place it is.
Place = tuple[Turn, int, int, int, int]
WORDS = 100
DEEPEST = 12


class TreeScreen(Picker):
    """Returns the id of the chosen turn, or None."""

    TITLE_TEXT = "Branches"
    HELP_TEXT = "type to search  enter go there  esc close"
    EMPTY_TEXT = "No turn matches."
    LISTED = 1000

    def __init__(self, tree: TurnTree, marks: Glyphs) -> None:
        super().__init__()
        self._tree, self._marks = tree, marks

    def likeliest(self) -> str | None:
        return None if self.query_text else self._tree.head

    def items(self) -> list[Item]:
        """A line for every turn; those of the branch that is shown have a mark."""
        here = {turn.id for turn in self._tree.path()}
        return [self._item(place, place[0].id in here) for place in walked(self._tree)]

    def _item(self, found: Place, here: bool) -> Item:
        (turn, depth, number, at, of), marks = found, self._marks
        words = " ".join(turn.text[:WORDS].split()) or "(nothing)"
        place = f"{marks.before} {at}/{of} {marks.after} " if of > 1 else ""
        indent = "  " * min(depth, DEEPEST)
        label = f"{marks.dot if here else ' '} {indent}{place}#{number} "
        return Item(turn.id, f"{label}{ROLES.get(turn.role, turn.role)}: {words}", turn.text)


def walked(tree: TurnTree) -> Iterator[Place]:
    """Every turn before what follows it, and behind its elder siblings."""
    behind: dict[str | None, list[Turn]] = {}
    for turn in list(tree.turns.values()):
        behind.setdefault(turn.parent, []).append(turn)
    left = [*_fork(behind.get(None, []), 0, 1)]
    while left:
        turn, depth, number, at, of = left.pop()
        yield turn, depth, number, at, of
        left += _fork(behind.get(turn.id, []), depth, number + 1)


def _fork(turns: list[Turn], depth: int, number: int) -> Iterator[Place]:
    """The turns behind one, the last first."""
    of = len(turns)
    for at in range(of, 0, -1):
        yield turns[at - 1], depth + (of > 1), number, at, of
