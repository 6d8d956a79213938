"""Rows of a comparison's CSV files to the small tables of docs/cpu.md, by name.

A rate is the median over answers. What stands in brackets is the median over the same answers of
the rate against llama.cpp's, to the same prompt in the same repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.h200.page import markdown
from benchmarks.h200.rows import Data, Row, Shown, distinct, median_rate, where
from benchmarks.peers.crew import LLAMA
from benchmarks.peers.goals import goals, paired, pass_ms
from benchmarks.peers.prompts import CONTEXTS

Table = Callable[[Data], Shown | None]


def machine(data: Data) -> Shown | None:
    """What was measured on what, by which command."""
    rows = [
        (
            run["date"], run["revision"], f"{run['machine']['processor']}, "
            f"{run['machine']['cores']} cores",
            ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
            f"`{run['command']}`",
        )
        for run in data.runs
    ]  # fmt: skip
    columns = ("date", "revision", "processor", "versions", "command")
    return Shown(columns, rows) if rows else None


def peers(data: Data) -> Shown | None:
    """What every engine said of itself."""
    rows = []
    for run in data.runs:
        for name, facts in run.get("peers", {}).items():
            told = [f"{key} {value}" for key, value in facts.items() if _telling(key, value)]
            rows.append((name, "; ".join(told).replace("|", "·")))
    return Shown(("engine", "says of itself"), list(dict.fromkeys(rows))) if rows else None


def _telling(key: str, value: object) -> bool:
    return key != "engine" and value not in (None, [], {})


def speed(law: str) -> Table:
    """Tokens a second by engine and context."""

    def table(data: Data) -> Shown | None:
        rows = where(data.rows["speed"], law=law)
        contexts = [c for c in CONTEXTS if where(rows, context=c)]
        shown = [
            (engine, *(_rate(where(rows, context=context), engine) for context in contexts))
            for (engine,) in distinct(rows, "engine")
        ]
        return Shown(("engine", *contexts), shown) if shown else None

    return table


def _rate(rows: Sequence[Row], engine: str) -> str:
    rate, ratio = median_rate(where(rows, engine=engine)), paired(rows, engine, LLAMA)
    if rate is None:
        return ""
    return f"{rate:.1f}" + (f" ({ratio:.2f}x)" if ratio is not None else "")


def prompt(data: Data) -> Shown | None:
    """Milliseconds to the first token of a prompt."""
    rows = data.rows["prompt"]
    shown = [
        (engine, f"{_median(own, 'prompt_tokens'):.0f}", f"{_median(own, 'first_ms'):.0f}",
         f"{_median(own, 'restored'):.0f}")
        for (engine,) in distinct(rows, "engine")
        if (own := where(rows, engine=engine))
    ]  # fmt: skip
    columns = ("engine", "prompt tokens", "ms to the first token", "tokens restored")
    return Shown(columns, shown) if shown else None


def passes(data: Data) -> Shown | None:
    """Milliseconds of a pass by width, and what width costs."""
    rows = data.rows["passes"]
    widths = sorted({row["width"] for row in rows})
    shown = []
    for context, engine in distinct(rows, "context", "engine"):
        ms = {width: pass_ms(data, engine, context, width) for width in widths}
        against = [f"{ms[w] / ms[1]:.2f}" if w in ms and 1 in ms else "" for w in (4, 8)]
        shown.append((f"{context}", engine, *(f"{ms[w]:.2f}" for w in widths), *against))
    columns = ("context", "engine", *(f"W={w}" for w in widths), "W=4 / W=1", "W=8 / W=1")
    return Shown(columns, shown) if shown else None


def busy(data: Data) -> Shown | None:
    """Tokens a second with one other core busy and without."""
    rows = data.rows["busy"]
    shown = []
    for (engine,) in distinct(rows, "engine"):
        quiet, loud = (
            median_rate(where(rows, engine=engine, core=core)) for core in ("quiet", "busy")
        )
        if quiet and loud:
            shown.append((engine, f"{quiet:.1f}", f"{loud:.1f}", f"{loud / quiet:.2f}"))
    return Shown(("engine", "quiet", "busy", "busy / quiet"), shown) if shown else None


def start(data: Data) -> Shown | None:
    """Milliseconds until an engine takes requests, and to the first token after that."""
    rows = data.rows["start"]
    shown = [
        (engine, f"{_median(own, 'ready_ms'):,.0f}", f"{_median(own, 'first_ms'):,.0f}")
        for (engine,) in distinct(rows, "engine")
        if (own := where(rows, engine=engine))
    ]
    columns = ("engine", "ms to ready", "ms from there to the first token")
    return Shown(columns, shown) if shown else None


def memory(data: Data) -> Shown | None:
    """Resident megabytes."""
    kinds = ("ready_bytes", "resident_bytes", "anonymous_bytes", "peak_bytes")
    shown = [
        (row["engine"], *(f"{row[kind] / 1e6:,.0f}" for kind in kinds))
        for row in data.rows["memory"]
    ]
    columns = ("engine", "MB when ready", "MB after 1,900 tokens", "of no file", "at most")
    return Shown(columns, shown) if shown else None


def agreement(data: Data) -> Shown | None:
    """How many leading tokens of greedy texts are those of flarechat's plain decoding."""
    rows = data.rows["agreement"]
    contexts = [c for c in CONTEXTS if where(rows, context=c)]
    shown = []
    for (engine,) in distinct(rows, "engine"):
        cells = (where(rows, engine=engine, context=context) for context in contexts)
        shown.append((engine, *(", ".join(f"{r['leading']}/{r['of']}" for r in c) for c in cells)))
    return Shown(("engine", *contexts), shown) if shown else None


def noise(data: Data) -> Shown | None:
    """How busy the machine was."""
    shown = []
    for section in ("speed", "prompt", "busy", "start"):
        rows = data.rows[section]
        if rows:
            loads = [row["load"] for row in rows]
            shown.append((section, f"{len(rows)}", f"{median(loads):.2f}", f"{max(loads):.2f}"))
    columns = ("section", "samples", "load average, median", "load average, most")
    return Shown(columns, shown) if shown else None


def _median(rows: Sequence[Row], column: str) -> float:
    return float(median(row[column] for row in rows))


TABLES: dict[str, Table] = {
    "machine": machine,
    "peers": peers,
    "goals": goals,
    "speed-greedy": speed("greedy"),
    "speed-sampled": speed("sampled"),
    "prompt": prompt,
    "passes": passes,
    "busy": busy,
    "start": start,
    "memory": memory,
    "agreement": agreement,
    "noise": noise,
}


def text(data: Data) -> str:
    """Every table there is, for a terminal."""
    parts = []
    for name, table in TABLES.items():
        shown = table(data) if name != "machine" else None
        if shown is not None:
            parts.append(f"{name}\n{markdown(shown)}")
    return "\n\n".join(parts)
