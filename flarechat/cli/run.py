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
    stats: Annotated[
        bool,
        typer.Option(
            "--stats", help="Print the turn's and memory's figures on stderr. Default: no."
        ),
    ] = False,
) -> None:
    """Answer one prompt and print the answer."""
    from flarechat import launch
    from flarechat.cli.printer import JsonPrinter, TextPrinter
    from flarechat.cli.progress import Bar
    from flarechat.cli.signals import Interrupted, Interrupts
    from flarechat.cli.turn import answer

    try:
        with Interrupts() as interrupts, Bar() as bar:
            text = _prompt_text(prompt)
            printer = JsonPrinter(bar) if as_json else TextPrinter(bar)
            engine = launch.engine_of(settings, bar.show)
            try:
                code = answer(engine, settings, text, printer, interrupts, stats=stats)
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
