"""Rows of the CSV files to the small tables that are printed, by name.

The end of a run and the page use the same tables, so no figure is typed by hand anywhere. A table
whose rows are not there is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.h200 import tables_of_checks as checks
from benchmarks.h200 import tables_of_speed as speed
from benchmarks.h200.rows import Data, Shown

TABLES: dict[str, Callable[[Data], Shown | None]] = {
    "machine": checks.machine,
    "speed": speed.speed("ratio"),
    "drafts": speed.drafts("ratio"),
    "speed-in-all": speed.in_all("ratio"),
    "speed-match": speed.speed("match"),
    "speed-recommended": speed.speed("recommended"),
    "widths": speed.widths,
    "transformers": speed.transformers,
    "lanes": speed.lanes,
    "service": checks.service,
    "host": checks.host,
    "floor": checks.floors,
    "kernels": checks.kernels,
    "equality": checks.equality,
    "same-text": checks.same_text,
    "memory": checks.memory,
    "steady": checks.steady,
}


def text(data: Data) -> str:
    """Every table there is, for a terminal."""
    parts = []
    for name, table in TABLES.items():
        shown = table(data) if name != "machine" else None
        if shown is not None:
            parts.append(f"{name}\n{_aligned([shown.columns, *shown.rows])}")
    return "\n\n".join(parts)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    wide = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(wide[c]) for c, cell in enumerate(row)).rstrip() for row in rows
    )
