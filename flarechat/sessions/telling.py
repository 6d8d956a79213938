"""Which turns of a session are told in which order, and the words around them, for reading.

Owns branches as paths. Knows no format.
"""

from __future__ import annotations

import json

from flarechat.protocol import ToolCall
from flarechat.sessions.turns import Turn, TurnTree

# Turns to tell, and the turn they are behind, None at the beginning.
Part = tuple[list[Turn], Turn | None]


def branches(tree: TurnTree) -> list[list[Turn]]:
    """The path to the head, then those to every other last turn, in the order of the file."""
    parents = {turn.parent for turn in tree.turns.values()}
    ends = [turn for turn in tree.turns.values() if turn.id not in parents]
    return [tree.path(), *(tree.path_to(end) for end in ends if end.id != tree.head)]


def told_once(paths: list[list[Turn]]) -> list[Part]:
    """Of every path the turns that no path before it has, and the turn they are behind."""
    told: set[str] = set()
    parts = []
    for path in paths:
        shared = next((n for n, turn in enumerate(path) if turn.id not in told), len(path))
        parts.append((path[shared:], path[shared - 1] if shared else None))
        told.update(turn.id for turn in path)
    return parts


def speaker(turn: Turn) -> str:
    """Who said a turn."""
    if turn.role == "tool":
        return f"Tool {turn.name}"
    return "You" if turn.role == "user" else "Model"


def told_call(call: ToolCall) -> str:
    """A call on one line."""
    return f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}"


def ending(turn: Turn) -> str:
    """How a turn ended, where that was not by itself."""
    if turn.role == "tool":
        return "" if turn.reason == "done" else f" [{turn.reason}]"
    return "" if turn.status == "complete" else f" [{turn.status}]"


def where(behind: Turn | None) -> str:
    """Where a branch begins."""
    if behind is None:
        return "from the beginning"
    words = " ".join(behind.text.split())
    return f"behind “{words[:40]}{'…' if len(words) > 40 else ''}”"
