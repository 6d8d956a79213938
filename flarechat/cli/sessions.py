"""`flarechat sessions`: list, show, search, rename, verify and remove saved conversations."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flarechat.cli import transfer, verify
from flarechat.cli.ask import confirmed
from flarechat.cli.help import GroupedCommand, GroupedGroup
from flarechat.cli.table import age, counted, print_table
from flarechat.errors import UsageError
from flarechat.textsafe import strip_controls

if TYPE_CHECKING:
    from flarechat.sessions.search import Hit
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


@app.command("search", cls=GroupedCommand)
def search(
    query: Annotated[
        list[str],
        typer.Argument(
            metavar="QUERY...", help='Words, "a phrase" in double quotes, the beginn* of a word.'
        ),
    ],
    as_json: AsJson = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="At most N sessions.")
    ] = 20,
) -> None:
    """Find sessions by the words in them.

    Names, titles and the turns of all branches are searched. All words must be in one of these;
    what was found stands between « and ».
    """
    from dataclasses import asdict

    from flarechat.sessions.search import find

    hits = find(" ".join(query), limit)
    if as_json:
        print(json.dumps([{**asdict(hit), "path": str(hit.path)} for hit in hits]))
    elif hits:
        now = time.time()
        rows = [(hit.name, age(now - hit.changed), str(hit.places), _marked(hit)) for hit in hits]
        print_table(("NAME", "CHANGED", "PLACES", "FOUND"), rows)
    else:
        print("No session has all these words in one place.", file=sys.stderr)


@app.command("rename", cls=GroupedCommand)
def rename(
    name: Name,
    new: Annotated[
        str | None, typer.Argument(metavar="[NEW]", help="The new name.", show_default=False)
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(
            "--title", metavar="TEXT", help='The title; "" for the first words. Default: as it is.'
        ),
    ] = None,
) -> None:
    """Give a session another name or title, unless it is open."""
    from flarechat.sessions import store

    if new is None and title is None:
        raise UsageError("There is nothing to change.", "Give a new name, or --title TEXT.")
    path = store.find(name)
    if new is not None:
        path = store.rename(path, new)
    if title is not None:
        store.retitle(path, title)


app.command("export", cls=GroupedCommand)(transfer.export)
app.command("import", cls=GroupedCommand)(transfer.import_)
app.command("verify", cls=GroupedCommand)(verify.verify)


@app.command("rm", cls=GroupedCommand)
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Default: ask.")] = False,
) -> None:
    """Delete a session, unless it is open.

    What was computed for it alone and is kept on disk goes with it.
    """
    from flarechat.sessions import store

    path = store.find(name)
    shown = strip_controls(path.stem)
    if not yes and not confirmed(f"Delete the session {shown}?"):
        print(f"{shown} was kept.", file=sys.stderr)
        return
    dropped = store.remove(path)
    along = f", with {counted(dropped.gone, 'snapshot')}" if dropped.gone else ""
    print(f"{shown} was deleted{along}.", file=sys.stderr)
    if dropped.notice:
        print(dropped.notice, file=sys.stderr)


def _marked(hit: Hit) -> str:
    """A snippet with its marks, as text."""
    text, at = "", 0
    for first, end in hit.marks:
        text += f"{hit.snippet[at:first]}«{hit.snippet[first:end]}»"
        at = end
    return text + hit.snippet[at:]


def _told(turn: Turn, answers: int) -> str:
    """One turn of a transcript: who, of how many answers, what, and how it ended where that was
    not by itself.
    """
    from flarechat.sessions.telling import ending, speaker, told_call

    who = speaker(turn)
    if turn.role == "assistant" and answers > 1:
        who += f" (one of {answers} answers)"
    said = [turn.text.rstrip()] if turn.text.rstrip() or not turn.calls else []
    said += [f"→ {told_call(call)}" for call in turn.calls]
    return strip_controls(f"{who}:{ending(turn)}\n" + "\n".join(said))


def _plain(turns: list[Turn]) -> list[dict[str, Any]]:
    """The turns as JSON, an answer's figures without the controller's state."""
    from dataclasses import asdict

    plain = [asdict(turn) for turn in turns]
    for turn in plain:
        if turn["finished"]:
            del turn["finished"]["controller"]
    return plain
