"""`flarechat sessions`: list, show and remove saved conversations. Reads without a lock."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flarechat.cli.ask import confirmed
from flarechat.cli.help import GroupedCommand, GroupedGroup
from flarechat.cli.table import age, print_table
from flarechat.textsafe import strip_controls

if TYPE_CHECKING:
    from flarechat.sessions.turns import Turn

app = typer.Typer(cls=GroupedGroup, rich_markup_mode=None, help="Saved conversations.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name, an id or the start of one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON. Default: text.")]


@app.command("list", cls=GroupedCommand)
def list_sessions(as_json: AsJson = False) -> None:
    """List the sessions, the last changed first."""
    from dataclasses import asdict

    from flarechat.sessions import store

    infos = store.listed()
    if as_json:
        print(json.dumps([{**asdict(info), "path": str(info.path)} for info in infos]))
        return
    if not infos:
        print("There are no sessions yet; `flarechat` begins one.", file=sys.stderr)
        return
    now = time.time()
    rows = [
        (info.name, str(info.turns), info.model, age(now - info.changed), info.title)
        if not info.problem
        else (info.name, "-", "-", age(now - info.changed), f"not readable: {info.problem}")
        for info in infos
    ]
    print_table(("NAME", "TURNS", "MODEL", "CHANGED", "TITLE"), rows)


@app.command("show", cls=GroupedCommand)
def show(name: Name, as_json: AsJson = False) -> None:
    """Print a conversation."""
    from flarechat.sessions import store
    from flarechat.sessions.session import Session

    session = Session(store.find(name))
    turns = session.tree.path()
    if as_json:
        now = {"name": session.name, "system": session.system, "turns": _plain(turns)}
        print(json.dumps({**session.header, **now}))
    else:
        print("\n\n".join(_told(turn, len(session.tree.siblings(turn))) for turn in turns))
    for notice in session.notices:
        print(f"flarechat: {strip_controls(notice)}", file=sys.stderr)


@app.command("rm", cls=GroupedCommand)
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Default: ask.")] = False,
) -> None:
    """Delete a session, unless it is open."""
    from flarechat.sessions import store

    path = store.find(name)
    shown = strip_controls(path.stem)
    if not yes and not confirmed(f"Delete the session {shown}?"):
        print(f"{shown} was kept.", file=sys.stderr)
        return
    store.remove(path)
    print(f"{shown} was deleted.", file=sys.stderr)


def _told(turn: Turn, answers: int) -> str:
    """One turn of a transcript: who, of how many answers, what, and how it ended where that was
    not by itself.
    """
    speaker = "You" if turn.role == "user" else "Model"
    if turn.role == "assistant" and answers > 1:
        speaker += f" (one of {answers} answers)"
    ending = "" if turn.status == "complete" else f" [{turn.status}]"
    return f"{speaker}:{ending}\n{strip_controls(turn.text).rstrip()}"


def _plain(turns: list[Turn]) -> list[dict[str, Any]]:
    """The turns as JSON, an answer's figures without the controller's state."""
    from dataclasses import asdict

    plain = [asdict(turn) for turn in turns]
    for turn in plain:
        if turn["finished"]:
            del turn["finished"]["controller"]
    return plain
