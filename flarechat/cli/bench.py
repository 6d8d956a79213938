"""`flarechat bench`: hands its flags to the bench. Owns none of the measuring."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flarechat.cli.options import takes_settings

if TYPE_CHECKING:
    from flarechat.config import Settings


@takes_settings
def bench(
    settings: Settings,
    arms: Annotated[
        str,
        typer.Option(
            "--arms",
            metavar="LIST",
            help="Ways of drafting to compare, joined by commas: off, fixed-1 to fixed-7 (the MTP "
            "head drafts so many), adaptive (the controller chooses), adaptive+history (and "
            "copies). `fixed` is all seven, `all` all ten.",
        ),
    ] = "all",
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            metavar="NAMES|FILE",
            help="Prompts: all, names or categories joined by commas, or a JSON file.",
        ),
    ] = "all",
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", help="Times every arm answers every prompt.")
    ] = 3,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write every sample there. Default: nowhere."),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="FILE",
            help="Replay a recording under other policies, without a model. Default: measure.",
        ),
    ] = None,
    ui_tax: Annotated[
        bool, typer.Option("--ui-tax", help="Measure what the panels cost. Default: the arms.")
    ] = False,
) -> None:
    """Compare ways of drafting on the same prompts, in alternating order."""
    from flarechat.bench.command import run_bench

    code = run_bench(
        settings,
        arms=arms,
        workload=workload,
        json_path=json_path,
        replay=replay,
        repeats=repeats,
        ui_tax=ui_tax,
    )
    if code:
        raise typer.Exit(code)
