"""What the CPU path was to reach, beside what a run found.

Owns the goals and the figures they are held against: ratios are medians over the same prompts in
the same repeats, greedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.h200.rows import Data, Row, Shown, median_rate, where
from benchmarks.peers.crew import HISTORY, LLAMA, OFF, PASSES, PLAIN

Figure = Callable[[Data], float | None]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and what it should be: at least `wanted`, or at most if it is a cost."""

    name: str
    wanted: float
    found: Figure
    cost: bool = False

    def row(self, data: Data) -> tuple[str, ...]:
        """As a table has it; without a figure nothing is said to be met."""
        found, sign = self.found(data), "≤" if self.cost else "≥"
        if found is None:
            return self.name, f"{sign} {self.wanted:g}", "not measured", ""
        met = found <= self.wanted if self.cost else found >= self.wanted
        return self.name, f"{sign} {self.wanted:g}", f"{found:.2f}", "yes" if met else "no"


def paired(rows: Sequence[Row], engine: str, against: str) -> float | None:
    """Median rate of `engine` against another's to the same prompt in the same repeat."""
    key = ("law", "context", "prompt", "repeat")
    others = {tuple(row[c] for c in key): row["rate"] for row in where(rows, engine=against)}
    ratios = [
        row["rate"] / other
        for row in where(rows, engine=engine)
        if (other := others.get(tuple(row[c] for c in key)))
    ]
    return median(ratios) if ratios else None


def pass_ms(data: Data, engine: str, context: int, width: int) -> float:
    """Median milliseconds of a pass over all blocks; a missing one is a KeyError."""
    rows = where(data.rows["passes"], engine=engine, context=context, width=width)
    if not rows:
        raise KeyError(f"no pass of {engine} at {context}, W={width}")
    return float(median(row["median_ms"] for row in rows))


def _speed(engine: str, context: str, against: str = LLAMA) -> Figure:
    def figure(data: Data) -> float | None:
        return paired(where(data.rows["speed"], law="greedy", context=context), engine, against)

    return figure


def _width(width: int) -> Figure:
    def figure(data: Data) -> float | None:
        try:
            return pass_ms(data, PASSES, 256, width) / pass_ms(data, PASSES, 256, 1)
        except KeyError:
            return None

    return figure


def _busy(engine: str, core: str, against: str, other: str) -> Figure:
    """The rate of one engine under one load against another's under another."""

    def figure(data: Data) -> float | None:
        rows = data.rows["busy"]
        rate = median_rate(where(rows, engine=engine, core=core))
        base = median_rate(where(rows, engine=against, core=other))
        return rate / base if rate and base else None

    return figure


def _first_token(data: Data) -> float | None:
    times = {}
    for engine in (OFF, LLAMA):
        rows = where(data.rows["prompt"], engine=engine)
        if not rows:
            return None
        times[engine] = median(row["first_ms"] for row in rows)
    return float(times[OFF] / times[LLAMA])


def _of_history(table: str, column: str, unit: float) -> Figure:
    def figure(data: Data) -> float | None:
        rows = where(data.rows[table], engine=HISTORY)
        return median(row[column] for row in rows) / unit if rows else None

    return figure


GOALS = (
    Goal("plain decoding against llama.cpp, chat", 1.3, _speed(OFF, "chat")),
    Goal("plain decoding against llama.cpp, 1,024 tokens", 2.0, _speed(OFF, "1K")),
    Goal("adaptive with copies against llama.cpp, chat", 1.7, _speed(HISTORY, "chat")),
    Goal("adaptive with copies against llama.cpp, 1,024 tokens", 2.5, _speed(HISTORY, "1K")),
    Goal("adaptive with copies against llama.cpp, edits", 3.0, _speed(HISTORY, "edit")),
    Goal("adaptive with copies against llama.cpp, a repetition", 3.0, _speed(HISTORY, "repeat")),
    Goal("plain decoding against transformers, chat", 8.0, _speed(OFF, "chat", PLAIN)),
    Goal("a pass of W=4 against W=1 at 256 tokens", 1.5, _width(4), cost=True),
    Goal("a pass of W=8 against W=1 at 256 tokens", 2.3, _width(8), cost=True),
    Goal("first token of 512 against llama.cpp's", 1.0, _first_token, cost=True),
    Goal("plain, one core busy, against quiet", 0.6, _busy(OFF, "busy", OFF, "quiet")),
    Goal("plain against llama.cpp, one core busy", 1.0, _busy(OFF, "busy", LLAMA, "busy")),
    Goal("ready, in seconds", 1.5, _of_history("start", "ready_ms", 1e3), cost=True),
    Goal("resident, in MB", 350, _of_history("memory", "resident_bytes", 1e6), cost=True),
)


def goals(data: Data) -> Shown | None:
    """The goals as a table."""
    rows = [goal.row(data) for goal in GOALS]
    return Shown(("what", "wanted", "found", "met"), rows) if data.runs else None
