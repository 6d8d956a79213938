"""Sessions on disk for tests of what reads them: made in one line, by the code that writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flarechat.protocol import Finished, Sampling, Speculation
from flarechat.sessions import names, store
from flarechat.sessions.session import SessionWriter, new_header
from flarechat.sessions.turns import Turn, TurnTree


def saved(name: str, *texts: str, system: str | None = None) -> Path:
    """A session whose turns are the user's and the model's in turn."""
    header = new_header(
        model=None,
        model_name="m",
        sampling=Sampling(),
        speculation=Speculation(),
        system=system,
    )
    writer = store.create(name, "", header)
    written(writer, TurnTree(), texts)
    writer.close()
    return writer.path


def append(path: Path, texts: Sequence[str], parent: str | None = None, thinking: str = "") -> str:
    """Say `texts` behind the turn `parent`, the head unless it is given; the last one's id."""
    writer, session = SessionWriter.open(path)
    try:
        return written(writer, session.tree, texts, parent, thinking)
    finally:
        writer.close()


def written(
    writer: SessionWriter,
    tree: TurnTree,
    texts: Sequence[str],
    parent: str | None = None,
    thinking: str = "",
) -> str:
    """Append `texts` as turns, the user's and the model's alternating; the last one's id."""
    before = tree.turns.get(parent or tree.head or "")
    parent = before.id if before else None
    role = "user" if before is None or before.role == "assistant" else "assistant"
    for text in texts:
        turn = Turn(id=names.new_id(), parent=parent, role=role, text=text, started_at=1.7e9)
        if role == "user":
            writer.user(turn)
        else:
            unplayed = Finished.unplayed(turn.id, "stop")
            turn.finish(replace(unplayed, text=text, thinking=thinking))
            writer.finish(turn, "")
        parent, role = turn.id, "assistant" if role == "user" else "user"
    return parent or ""


def words(text: str) -> list[str]:
    """The words of a text of ASCII letters, small."""
    return re.findall(r"[a-z]+", text.lower())
