"""Sessions whose answers name snapshots, and the snapshots they name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flarechat import paths
from flarechat.protocol import Finished
from flarechat.sessions import names
from flarechat.sessions.session import SessionWriter
from flarechat.sessions.turns import Turn
from tests.sessions.saving import saved
from tests.vault.nodes import Made


def naming(name: str, *nodes: Made) -> Path:
    """A session with an answer for each of these nodes, which holds the state at its end."""
    path = saved(name, "Hi")
    for node in nodes:
        answer_with(path, node)
    return path


def answer_with(path: Path, node: Made) -> None:
    """Add an answer to the last turn of a session."""
    writer, session = SessionWriter.open(path)
    turn = Turn(id=names.new_id(), parent=session.tree.head, role="assistant", text="")
    ended = replace(Finished.unplayed(turn.id, "stop"), text="x", snapshot=node.digest)
    turn.finish(ended)
    writer.finish(turn, "")
    writer.close()


def put(*nodes: Made) -> list[Path]:
    """These nodes in the vault."""
    return [node.put(paths.snapshots_dir()) for node in nodes]
