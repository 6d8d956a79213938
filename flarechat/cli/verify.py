"""`flarechat sessions verify`: whether what is saved is sound, in lines or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flarechat.cli.table import counted
from flarechat.textsafe import strip_controls, well_formed

if TYPE_CHECKING:
    from flarechat.sessions.verify import Report
    from flarechat.vault.folder import Finding


def verify(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="One session, by name, id or the start of one. Default: all.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON. Default: text.")] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Delete damaged snapshots and those that hang on none, and make the list and the "
            "search index anew; sessions stay as they are. Default: only read.",
        ),
    ] = False,
) -> None:
    """Check sessions, the search index and snapshots on disk.

    Of every session all lines are read, of every snapshot all bytes; of one session, its file and
    the snapshots that its answers name. The exit code is 0 where all is sound, also by --repair,
    else 1.
    """
    from flarechat.sessions import verify as checks

    report = checks.verify(name)
    if repair:
        report = checks.mend(report)
    if as_json:
        print(json.dumps(_plain(report)))
    else:
        for line in (*_lines(report), _summary(report)):
            print(well_formed(strip_controls(line)))
    if not report.sound:
        raise typer.Exit(1)


def _lines(report: Report) -> Iterator[str]:
    for checked in report.sessions:
        for fault in checked.faults:
            where = f"{checked.name}, line {fault.line}: " if fault.line is not None else ""
            now = f" (open in {checked.open_in})" if checked.open_in else ""
            yield f"{where}{fault.what}{now}"
    for finding in (*report.kept, *report.vault):
        yield f"{finding.path}: {finding.what}"
    for finding in report.mended:
        yield f"{finding.path}: {finding.what} (mended)"


def _summary(report: Report) -> str:
    parts = [counted(len(report.sessions), "session"), counted(report.snapshots, "snapshot")]
    if opened := sum(bool(checked.open_in) for checked in report.sessions):
        parts.append(f"{opened} open now")
    looked_at = ", ".join(parts)
    if not report.faults:
        return f"{looked_at}: all sound."
    count = sum(not finding.harmless for finding in report.mended)
    mended = f", {count} of them mended" if count else ""
    return f"{looked_at}: {counted(report.faults, 'problem')}{mended}."


def _plain(report: Report) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "sessions": [asdict(one) | {"path": str(one.path)} for one in report.sessions],
        "snapshots": report.snapshots,
        "problems": [
            *(_finding(finding, mended=False) for finding in (*report.kept, *report.vault)),
            *(_finding(finding, mended=True) for finding in report.mended),
        ],
    }


def _finding(finding: Finding, *, mended: bool) -> dict[str, Any]:
    about = {"path": str(finding.path), "what": finding.what}
    return about | {"mended": mended, "harmless": finding.harmless}
