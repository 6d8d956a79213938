"""`flarechat run`: one turn for scripts. Owns its streams, its signals and its exit code.

Text or events go to stdout, everything else to stderr. Without `--session` nothing is saved.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flarechat.cli.options import takes_settings
from flarechat.errors import UsageError

if TYPE_CHECKING:
    from flarechat.config import Settings


@takes_settings
def run(
    settings: Settings,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="What to ask; piped input goes before it."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events, one JSON object a line. Default: text.")
    ] = False,
    fan: Annotated[
        int | None,
        typer.Option(
            "--fan",
            metavar="N",
            help="Answer N ways at once, 2 to 4, with N seeds; --concurrency is raised to N, and "
            "a session goes on with the first. Default: one answer.",
        ),
    ] = None,
    edit: Annotated[
        bool,
        typer.Option(
            "--edit",
            help="Ask PROMPT in place of the session's last message; that stays as a branch. "
            "Default: behind it.",
        ),
    ] = False,
    regenerate: Annotated[
        bool,
        typer.Option(
            "--regenerate",
            help="Answer the session's last message again, without PROMPT, with the next seed; the "
            "answers there are stay as branches. Default: no.",
        ),
    ] = False,
    go_on: Annotated[
        bool,
        typer.Option(
            "--continue-answer",
            help="Go on with the session's last answer, which was stopped or cut off, without "
            "PROMPT. Default: no.",
        ),
    ] = False,
    yes: Annotated[
        list[str] | None,
        typer.Option(
            "--yes",
            metavar="TOOL",
            help="Run the model's calls of this tool of --tools, or of all; may be repeated. "
            "Default: calls are refused, and the model is told.",
        ),
    ] = None,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats", help="Print the turn's and memory's figures on stderr. Default: no."
        ),
    ] = False,
) -> None:
    """Answer one prompt and print the answer, or several answers to it.

    In a session the last message may be said otherwise or answered again, and an answer that was
    cut off goes on. An answer that does not satisfy what it was held to ends with exit code 5.
    """
    from dataclasses import replace

    from flarechat import launch
    from flarechat.asking import check_ways
    from flarechat.cli.printer import FanPrinter, JsonPrinter, TextPrinter
    from flarechat.cli.progress import Bar
    from flarechat.cli.signals import Interrupted, Interrupts
    from flarechat.cli.turn import Asking, Leave, answer
    from flarechat.constraining import constraint_of, reads_stdin
    from flarechat.protocol.tools import require_tools
    from flarechat.tools.toolbox import Toolbox

    verbs = {"--edit": edit, "--regenerate": regenerate, "--continue-answer": go_on}
    verb = _verb(verbs, settings.session, fan)
    ways = 1 if fan is None else fan
    if fan is not None:
        check_ways(ways, None, settings.temperature)
        settings = replace(settings, concurrency=max(settings.concurrency, ways))
    toolbox = Toolbox.of(settings.tools)
    require_tools(toolbox.tools, settings.tool_choice)
    if fan is not None and toolbox.tools and settings.tool_choice != "none":
        raise UsageError("--fan and --tools exclude each other.", "Give one of them.")
    every = {tool.name for tool in toolbox.tools} if "all" in (yes or ()) else set()
    leave = Leave(toolbox, frozenset({*(yes or ())} - {"all"} | every))
    leave.check()
    printers = JsonPrinter if as_json else TextPrinter if fan is None else FanPrinter
    try:
        with Interrupts() as interrupts, Bar() as bar:
            constraint, piped = constraint_of(settings), not reads_stdin(settings)
            text = _prompt_text(prompt, wanted=not (regenerate or go_on), piped=piped)
            asking = Asking(text, ways, verb, constraint)
            asking.check(settings)
            printer = printers(bar)
            engine = launch.engine_of(settings, bar.show)
            try:
                code = answer(
                    engine, settings, asking, printer, interrupts, stats=stats, leave=leave
                )
            finally:
                engine.close()
    except Interrupted as interrupted:
        code = interrupted.exit_code
    if code:
        raise typer.Exit(code)


def _verb(given: dict[str, bool], session: str | None, fan: int | None) -> str:
    """The one flag of these that was given, "" for none."""
    chosen = [flag for flag, on in given.items() if on]
    if chosen and (len(chosen) > 1 or fan is not None):
        both = [*chosen, *(["--fan"] if fan is not None else [])]
        raise UsageError(f"{both[0]} and {both[1]} exclude each other.", "Give one of them.")
    if chosen and session is None:
        raise UsageError(f"{chosen[0]} is about a session's last exchange.", "Give --session NAME.")
    return chosen[0] if chosen else ""


def _prompt_text(prompt: str | None, *, wanted: bool, piped: bool = True) -> str:
    """Piped input, then the argument behind a blank line when there are both; where none is wanted,
    an argument is refused and nothing is read. What is `piped` may be no prompt.
    """
    if not wanted:
        if prompt:
            raise UsageError(f"There is no place for the prompt {prompt!r} here.", "Leave it out.")
        return ""
    before = ""
    if piped and sys.stdin is not None and not sys.stdin.isatty():
        before = sys.stdin.buffer.read().decode("utf-8", "replace").strip()
    text = "\n\n".join(part for part in (before, prompt or "") if part.strip())
    if not text:
        raise UsageError("There is no prompt.", "Give it as an argument or pipe it in.")
    return text
