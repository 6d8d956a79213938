"""Scripted answers with the figures of a plausible turn, for snapshots and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flarechat.chat import Conversation
from flarechat.config import Settings
from tests.fakes import MODEL, Play, ScriptedEngine, words

QUESTION = "Rename parse_row to parse_record everywhere, keep the tests passing."
FIRST = """The module has one parser and one loader:

- `parse_row` splits a line
- `load` reads the file
"""
ANSWER = '''Here is the updated module. Only the function name and its two callers change:

```python
def parse_record(line: str) -> Record:
    """Parse one CSV line."""
    parts = line.rstrip("\\n").split(",")
    return Record(*parts)


def load(path: Path) -> list[Record]:
    with path.open() as lines:
        return [parse_record(line) for line in lines]
```

Run the **tests** again: nothing else refers to the old name.
'''
ROUNDS: Sequence[tuple[int, int, str, float]] = (
    (1, 0, "none", 11.2),
    (4, 3, "mtp", 13.4),
    (4, 2, "mtp", 13.9),
    (8, 7, "history", 19.7),
    (3, 1, "mtp", 12.8),
    (4, 0, "mtp", 13.9),
    (6, 5, "context+mtp", 18.0),
)


def pieces(text: str) -> list[str]:
    """A text in pieces of a token's size."""
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def speculative(text: str) -> Iterator[Play]:
    """A text played in rounds of mixed width, source and luck."""
    left, turn = pieces(text), 0
    while left:
        width, accepted, source, ms = ROUNDS[turn % len(ROUNDS)]
        taken = min(accepted + 1, len(left))
        yield Play(tuple(left[:taken]), width, source, ms)
        left, turn = left[taken:], turn + 1


def save_chat(text: str, turns: int = 1) -> None:
    """A saved chat of questions and their answers, made without a screen."""
    scripted = ScriptedEngine()
    scripted.start()
    conversation = Conversation.new(scripted, Settings())
    conversation.bind(MODEL)
    for _ in range(turns):
        conversation.send(text)
        while conversation.live:
            for event in scripted.drain():
                conversation.apply(event)
    conversation.close()


def engine(rounds_per_drain: int = 8) -> ScriptedEngine:
    """An engine that knows one conversation."""
    return ScriptedEngine([words(FIRST), speculative(ANSWER)], rounds_per_drain=rounds_per_drain)
