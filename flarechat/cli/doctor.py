"""`flarechat doctor`: prints what this machine offers and what stands in the way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flarechat.cli.table import size
from flarechat.errors import print_error
from flarechat.textsafe import strip_controls

if TYPE_CHECKING:
    from flarechat.cli.checks import Report

_BYTES = ("memory", "device_memory", "free disk")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON. Default: text.")] = False,
) -> None:
    """Show device, executor, CPU kernels, memory, versions and paths, and what is wrong."""
    from flarechat.cli.checks import examine

    report, problems = examine()
    if as_json:
        print(json.dumps(report | {"problems": [str(problem) for problem in problems]}))
    else:
        _print(report)
    for problem in problems:
        print_error(problem)
    if problems:
        raise typer.Exit(problems[0].exit_code)


def _print(report: Report) -> None:
    for part, facts in report.items():
        print(part)
        for name, value in facts.items():
            shown = size(value) if name in _BYTES and value is not None else _word(value)
            print(f"  {name.replace('_', ' '):<16} {strip_controls(shown)}")


def _word(value: Any) -> str:
    words = {None: "-", True: "yes", False: "no"}
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return _first_drafts(value) or json.dumps(value, ensure_ascii=False)
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _first_drafts(acceptance: dict[str, Any]) -> str:
    """The share of first drafts kept under each law of a head's record; "" for one without."""
    try:
        kept = [f"{law['survival'][0]:.0%} at {law['law']}" for law in acceptance["laws"]]
    except (KeyError, IndexError, TypeError, ValueError):
        return ""
    return f"{', '.join(kept)} (first drafts; temperature/top-k/top-p)" if kept else ""
