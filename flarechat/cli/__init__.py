"""The command line: one file a group of commands, put together here.

Owns the root command, which opens the chat when no other is named. Imports nothing heavy: each
command imports what it needs when it runs.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Annotated

import typer

import flarechat
from flarechat.cli import bench, cache, doctor, models, run, sessions
from flarechat.cli.help import GroupedCommand, GroupedGroup
from flarechat.cli.options import takes_settings
from flarechat.errors import UsageError

if TYPE_CHECKING:
    from flarechat.config import Settings

app = typer.Typer(
    name="flarechat",
    cls=GroupedGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("run", cls=GroupedCommand)(run.run)
app.command("bench", cls=GroupedCommand)(bench.bench)
app.add_typer(models.app, name="models")
app.add_typer(sessions.app, name="sessions")
app.add_typer(cache.app, name="cache")
app.command("doctor", cls=GroupedCommand)(doctor.doctor)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        print(f"flarechat {flarechat.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
@takes_settings
def chat(
    settings: Settings,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="NAME", help="Take up a saved session. Default: a new one."
        ),
    ] = None,
    continue_last: Annotated[
        bool,
        typer.Option("--continue", help="Take up the session changed last. Default: a new one."),
    ] = False,
    version: Annotated[
        bool | None,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = None,
) -> None:
    """Chat with a local model in the terminal, drafting ahead.

    Without a command this opens the chat. Settings come from flags, FLARECHAT_* variables,
    flarechat.toml in the folder and your settings file, in this order; `flarechat doctor` says
    where that is.
    """
    if resume is not None and continue_last:
        raise UsageError("--resume and --continue exclude each other.", "Give one of them.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "The chat needs a terminal, and input or output is none.",
            "Use `flarechat run` in scripts and pipes.",
        )
    # Importing the interface allocates a great deal and frees nothing.
    gc.disable()
    from flarechat.ui.app import run_app

    code = run_app(settings, resume=resume, continue_last=continue_last)
    if code:
        raise typer.Exit(code)
