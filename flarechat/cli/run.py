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
    stats: Annotated[
        bool,
        typer.Option(
            "--stats", help="Print the turn's and memory's figures on stderr. Default: no."
        ),
    ] = False,
) -> None:
    """Answer one prompt and print the answer, or several answers to it."""
    from dataclasses import replace

    from flarechat import launch
    from flarechat.asking import check_ways
    from flarechat.cli.printer import FanPrinter, JsonPrinter, TextPrinter
    from flarechat.cli.progress import Bar
    from flarechat.cli.signals import Interrupted, Interrupts
    from flarechat.cli.turn import answer

    ways = 1 if fan is None else fan
    if fan is not None:
        check_ways(ways, None, settings.temperature)
        settings = replace(settings, concurrency=max(settings.concurrency, ways))
    printers = JsonPrinter if as_json else TextPrinter if fan is None else FanPrinter
    try:
        with Interrupts() as interrupts, Bar() as bar:
            text = _prompt_text(prompt)
            printer = printers(bar)
            engine = launch.engine_of(settings, bar.show)
            try:
                code = answer(engine, settings, text, printer, interrupts, stats=stats, ways=ways)
            finally:
                engine.close()
    except Interrupted as interrupted:
        code = interrupted.exit_code
    if code:
        raise typer.Exit(code)


def _prompt_text(prompt: str | None) -> str:
    """Piped input, then the argument behind a blank line when there are both."""
    piped = ""
    if sys.stdin is not None and not sys.stdin.isatty():
        piped = sys.stdin.buffer.read().decode("utf-8", "replace").strip()
    text = "\n\n".join(part for part in (piped, prompt or "") if part.strip())
    if not text:
        raise UsageError("There is no prompt.", "Give it as an argument or pipe it in.")
    return text
