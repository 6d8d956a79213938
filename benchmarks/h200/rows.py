"""Runs read back: their JSON records, the rows of their CSV files, and ways to pick among them.

Knows no table; the two modules of tables stand on it.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]
CONTEXTS = ("short", "1K", "8K", "edit")


@dataclass(frozen=True, slots=True)
class Shown:
    """One table, ready to print."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(slots=True)
class Data:
    """Everything some runs left: their JSON records, and the rows by table."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))

    def figures(self, section: str) -> dict[str, Any]:
        """What the last run with this section says of it, beside the rows."""
        found = [run["sections"][section] for run in self.runs if section in run["sections"]]
        return dict(found[-1]["figures"]) if found else {}


def load(records: Iterable[Path]) -> Data:
    """Read runs by their JSON files; the tables lie beside them."""
    data = Data()
    for path in records:
        said = json.loads(path.read_text("utf-8"))
        data.runs.append(said)
        for entry in said["sections"].values():
            for name in entry["tables"]:
                table = name.removeprefix(f"{path.stem}-").removesuffix(".csv")
                data.rows[table] += _read(path.with_name(name))
    return data


def _read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def distinct(rows: Iterable[Row], *columns: str) -> list[tuple[Any, ...]]:
    """The combinations of some columns, in order of appearance."""
    return list(dict.fromkeys(tuple(row[c] for c in columns) for row in rows))


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def contexts_of(rows: Iterable[Row]) -> list[str]:
    found = {row["context"] for row in rows}
    return [name for name in CONTEXTS if name in found]


def median_rate(rows: Iterable[Row]) -> float | None:
    """Median tokens a second; None without rows."""
    rates = [row["rate"] for row in rows]
    return median(rates) if rates else None
