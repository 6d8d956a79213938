"""Prints rows as tables and writes them as JSON. Owns the form of both, and no figure.

The tables are for people; only the JSON file is meant for programs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from flarechat.bench.machine import host, versions
from flarechat.bench.summary import ArmSummary, Row, Spread
from flarechat.errors import StorageError
from flarechat.protocol import MAX_DRAFT_TOKENS, ModelInfo, SpeculationSummary

SCHEMA = 1
PLAIN_WIDTH = 120
NOISE = 1.2
DRAFT_COLUMNS = (
    "rounds", "offered", "accepted", "emitted", "rate", "tok/round", "by source", "by depth, %",
)  # fmt: skip
IDENTITY = (
    "emitted = accepted + rounds - clipped; tok/round = emitted / rounds, the target's own token "
    "included; ratio = tok/s over the off arm's, same prompt and same repeat; by source: offered/"
    "accepted/emitted; by depth: accepted of those offered at depth 1, 2, …"
)


def console() -> Console:
    """stdout; wide enough for the tables when it is no terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def table(title: str, columns: Sequence[str], left: int = 2) -> Table:
    """An empty table whose first `left` columns are words and the others figures."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    for index, name in enumerate(columns):
        made.add_column(
            name, justify="left" if index < left else "right", no_wrap=not name.startswith("by ")
        )
    return made


def print_report(
    out: Console,
    model: ModelInfo | None,
    rows: Sequence[Row],
    arms: Sequence[ArmSummary],
    left_out: Sequence[str] = (),
) -> None:
    """All tables of a bench, whatever part of it was measured."""
    if model:
        head = f"MTP head {model.mtp.file}" if model.mtp else "no MTP head"
        out.print(f"{model.name}  {model.dtype}  {model.device}  context {model.context}  {head}")
    if not rows:
        out.print("Nothing was measured.")
        return
    out.print(_speed(rows))
    out.print(_answers(rows))
    out.print(_drafts(rows))
    out.print(_arm_drafts(arms))
    out.print(_costs(arms))
    out.print(_arms(arms))
    for line in (*_left_out(left_out), *remarks(rows, arms)):
        out.print(line)
    out.print(IDENTITY, style="dim")


def _speed(rows: Iterable[Row]) -> Table:
    made = table("Speed", ("workload", "arm", "tok/s", "min-max", "ratio", "min-max"))
    for row in rows:
        ratio = row.note or (f"{row.ratio.median:.2f}x" if row.ratio else "-")
        made.add_row(
            row.workload, row.arm, f"{row.rate.median:.1f}", _range(row.rate, 1), ratio,
            _range(row.ratio, 2),
        )  # fmt: skip
    return made


def _answers(rows: Iterable[Row]) -> Table:
    made = table(
        "Answers", ("workload", "arm", "first ms", "prefill tok/s", "end", "same as off", "loops")
    )
    for row in rows:
        made.add_row(
            row.workload, row.arm, f"{row.first_token_ms:.0f}", f"{row.prefill_rate:.0f}",
            ",".join(row.reasons), _same(row.same_text), _loops(row),
        )  # fmt: skip
    return made


def _drafts(rows: Iterable[Row]) -> Table:
    made = table("Drafts", ("workload", "arm", *DRAFT_COLUMNS))
    for row in rows:
        made.add_row(row.workload, row.arm, *_draft_cells(row.speculation))
    return made


def _arm_drafts(arms: Iterable[ArmSummary]) -> Table:
    made = table("Drafts of all workloads", ("arm", *DRAFT_COLUMNS), left=1)
    for arm in arms:
        made.add_row(arm.arm, *_draft_cells(arm.speculation))
    return made


def _draft_cells(s: SpeculationSummary) -> tuple[str, ...]:
    rate = f"{s.draft_acceptance_rate:.0%}" if s.offered else "-"
    counts = (str(s.rounds), str(s.offered), str(s.accepted), str(s.emitted))
    return *counts, rate, f"{s.mean_acceptance_length:.2f}", _by_source(s), _by_depth(s)


def _costs(arms: Iterable[ArmSummary]) -> Table:
    widths = range(1, MAX_DRAFT_TOKENS + 2)
    made = table("Median ms of a round by width", ("arm", *map(str, widths)), left=1)
    for arm in arms:
        costs = arm.speculation.cost_ms_by_width
        cells = (f"{costs[str(w)]:.1f}" if str(w) in costs else "-" for w in widths)
        made.add_row(arm.arm, *cells)
    return made


def _arms(arms: Iterable[ArmSummary]) -> Table:
    made = table("Arms, median over workloads", ("arm", "tok/s", "ratio", "worst", "best"), left=1)
    for arm in arms:
        ratio = f"{arm.ratio:.2f}x" if arm.ratio else "-"
        made.add_row(arm.arm, f"{arm.rate:.1f}", ratio, _extreme(arm.worst), _extreme(arm.best))
    return made


def remarks(rows: Sequence[Row], arms: Sequence[ArmSummary]) -> list[str]:
    """What a reader must know before quoting a figure."""
    lines = []
    worst = min(
        (arm.worst for arm in arms if arm.worst),
        key=lambda row: row.ratio.median if row.ratio else 0.0,
        default=None,
    )
    if worst:
        lines.append(f"Worst row: {_extreme(worst)} with {worst.arm}.")
    if idle := sorted({row.arm for row in rows if row.note}):
        lines.append(
            f"No ratio for {', '.join(idle)}: without copies only the MTP head could offer "
            "drafts, and it offered none, so these rounds were plain ones."
        )
    lines.extend(_noise(arms))
    if looping := sorted({row.workload for row in rows if row.loops and not row.repetition_asked}):
        lines.append(
            f"Answers to {', '.join(looping)} repeat themselves: "
            "copied drafts look better there than on fresh text."
        )
    if other := sorted({f"{row.arm}/{row.workload}" for row in rows if row.same_text is False}):
        lines.append(f"Text differs from off: {', '.join(other)}.")
    return lines


def _left_out(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return [
        f"Left out: {', '.join(names)}. The MTP head alone drafts there, and none is loaded; "
        "`flarechat doctor` says why."
    ]


def _noise(arms: Iterable[ArmSummary]) -> list[str]:
    """A warning when plain rounds, nearly the same work in every arm, took unlike times."""
    widths = [arm.speculation.cost_ms_by_width for arm in arms]
    plain = sorted(costs["1"] for costs in widths if "1" in costs)
    if not plain or plain[-1] <= NOISE * plain[0]:
        return []
    return [
        f"A plain round took {plain[0]:.0f} ms in one arm and {plain[-1]:.0f} in another: the "
        "machine was busy with other work, so the ratios say little. Run it again."
    ]


def _range(spread: Spread | None, digits: int) -> str:
    return f"{spread.low:.{digits}f}-{spread.high:.{digits}f}" if spread else "-"


def _same(same: bool | None) -> str:
    return "-" if same is None else "yes" if same else "no"


def _loops(row: Row) -> str:
    return "no" if not row.loops else "as asked" if row.repetition_asked else "YES"


def _extreme(row: Row | None) -> str:
    return f"{row.ratio.median:.2f}x {row.workload}" if row and row.ratio else "-"


def _by_source(summary: SpeculationSummary) -> str:
    drafts = {n: s for n, s in summary.by_source.items() if s.offered}
    shown = (f"{n} {s.offered}/{s.accepted}/{s.emitted}" for n, s in drafts.items())
    return " ".join(shown) or "-"


def _by_depth(summary: SpeculationSummary) -> str:
    return " ".join(f"{100 * d.accepted / d.offered:.0f}" for d in summary.by_depth) or "-"


def write_json(path: Path, kind: str, command: Sequence[str], body: dict[str, Any]) -> None:
    """Write one result file: where and how it was measured, then `body`."""
    document = {
        "schema": SCHEMA,
        "kind": kind,
        "command": list(command),
        "host": host(),
        "versions": versions(),
        **body,
    }
    try:
        path.write_text(json.dumps(document, default=dataclasses.asdict, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def require_writable(path: Path) -> None:
    """Refuse a result file that cannot be written, before anything is measured for it."""
    try:
        path.open("ab").close()
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"The result file {path} cannot be written: {error.strerror}.",
        "Give --json a file in a folder you may write to.",
    )
