"""`flarechat sessions export` and `import`: conversations out to files and in from them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from flarechat.errors import StorageError, UsageError, reason_of
from flarechat.textsafe import strip_controls

if TYPE_CHECKING:
    from flarechat.sessions.session import Session

_KINDS = "openai, markdown, sharegpt, html, jsonl or bundle"


def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name, an id or the start of one.")],
    kind: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help=f"{_KINDS}.")
    ] = "markdown",
    out: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="FILE",
            help="The file to write, - for stdout. Default: stdout; NAME.flarechat for a bundle.",
        ),
    ] = "",
    branch: Annotated[
        str,
        typer.Option(
            "--branch",
            metavar="all|head",
            help="Every branch, or the one that goes on. Default: head; jsonl and bundle have all.",
        ),
    ] = "",
    thinking: Annotated[
        bool,
        typer.Option(
            "--thinking", help="Thinking in openai and sharegpt too. Default: without it."
        ),
    ] = False,
    with_state: Annotated[
        bool,
        typer.Option(
            "--with-state",
            help="In a bundle, what the model computed for it too, so that it goes on without"
            " a wait elsewhere. Default: the text alone.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file. Default: never.")
    ] = False,
) -> None:
    """Write a conversation in a format of others, or as it is."""
    from flarechat.sessions import bundle, store
    from flarechat.sessions.export import FORMATS, exported
    from flarechat.sessions.session import Session

    if kind not in (*FORMATS, "bundle"):
        raise UsageError(f"--format {kind} is none that is written.", f"Give {_KINDS}.")
    if branch not in ("", "all", "head"):
        raise UsageError(f"--branch {branch} is neither all nor head.", "Give one of them.")
    if kind == "bundle" and out == "-" and sys.stdout.isatty():
        raise UsageError("A bundle is not for a terminal to show.", "Give --out FILE.")
    if branch == "head" and kind in ("jsonl", "bundle"):
        raise UsageError(f"A {kind} has all branches.", "Leave --branch head out.")
    if with_state and kind != "bundle":
        raise UsageError(f"A {kind} has no state.", "Give --format bundle with --with-state.")
    session = Session(store.find(name))
    notices = session.notices
    if kind == "bundle":
        with _opened(out or session.name + bundle.SUFFIX, force=force) as file:
            notices = notices + _bundled(session, file, with_state=with_state)
    else:
        data = exported(session, kind, all_branches=branch == "all", thinking=thinking)
        with _opened(out or "-", force=force) as file:
            file.write(data)
    for notice in notices:
        print(f"flarechat: {strip_controls(notice)}", file=sys.stderr)


def _bundled(session: Session, file: IO[bytes], *, with_state: bool) -> list[str]:
    """Write a bundle; what to say of state that is not in it."""
    from flarechat import paths
    from flarechat.sessions import bundle

    if not with_state:
        bundle.write(session, file)
        return []
    from flarechat.sessions.state import write_bundle
    from flarechat.vault.folder import VaultFolder

    return write_bundle(session, file, VaultFolder(paths.snapshots_dir()))


def import_(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The files to read.")],
    name: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="NAME", help="What the only conversation is called. Default: its title."
        ),
    ] = None,
    with_state: Annotated[
        bool,
        typer.Option(
            "--with-state",
            help="Of a bundle take what the model computed too. Only from somebody you trust: it"
            " cannot be checked against the text. Default: leave it out.",
        ),
    ] = False,
) -> None:
    """Take conversations from files as sessions.

    The files may be OpenAI messages, ShareGPT, ChatGPT's conversations.json, or what export writes
    as openai, sharegpt, jsonl or bundle; which, is found by what is in them. Of a file all
    conversations are taken, or none. The names they got are printed.
    """
    from flarechat.config import load_settings
    from flarechat.sessions.importing import import_file

    if name is not None and len(files) > 1:
        raise UsageError("--as names one conversation.", "Give one file with it.")
    budget = load_settings(context.obj or {}).vault_bytes if with_state else None
    for file in files:
        taken, notices = import_file(file, name, state_budget=budget)
        for one in taken:
            print(strip_controls(one.name))
        for notice in (*(notice for one in taken for notice in one.notices), *notices):
            print(f"flarechat: {strip_controls(notice)}", file=sys.stderr)


@contextlib.contextmanager
def _opened(out: str, *, force: bool) -> Iterator[IO[bytes]]:
    """The file to write, or stdout for -. A new file appears whole, or not at all."""
    from flarechat.sessions.export import new_file

    if out == "-":
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(out)
    if path.is_dir() or not path.name:
        raise UsageError(f"{out} is a folder.", "Give --out the path of a file.")
    part = path.with_name(f".{path.name}.{os.getpid()}.part") if force else path
    try:
        with new_file(part) as file:
            yield file
            file.close()
            part.replace(path)
    except FileExistsError:
        raise UsageError(f"{part} is there already.", "Give --force to replace it.") from None
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {reason_of(error)}.", "Give another --out."
        ) from error
