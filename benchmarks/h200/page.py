"""The page docs/cuda.md: its tables and its plot, drawn from what the runs left.

    python -m benchmarks.h200.page RUN.json [RUN.json …]

Owns the lines between the page's markers and the plot's file. Prose is written by hand, figures
never: a table lies between `<!-- table: NAME -->` and `<!-- end -->` and is made by `tables`.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.h200 import tables
from benchmarks.h200.rows import CONTEXTS, Data, Row, Shown, load, median_rate

ROOT = Path(__file__).parents[2]
MISSING = "Not measured in these runs."
_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SHOWN_ARMS = ("off", "fixed-3", "fixed-7", "adaptive", "adaptive+history")
_LEFT, _TOP, _HEIGHT, _BAR, _GAP = 60, 34, 230, 26, 34


def filled(
    page: str, data: Data, known: Mapping[str, Callable[[Data], Shown | None]] = tables.TABLES
) -> str:
    """The page with every marked table of `known` made anew; an unknown name is a ValueError."""

    def block(found: re.Match[str]) -> str:
        name = found[2]
        if name not in known:
            raise ValueError(f"the page asks for a table {name!r}; there is none of that name")
        shown = known[name](data)
        return f"{found[1]}{markdown(shown) if shown else MISSING}\n{found[3]}"

    return _BLOCK.sub(block, page)


def markdown(shown: Shown) -> str:
    """A table as Markdown."""
    ruled = [shown.columns, ("---",) * len(shown.columns), *shown.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled)


def plot(data: Data) -> str | None:
    """Tokens a second by arm and context at temperature 0.7, as SVG; None without rows."""
    rows = [row for row in data.rows["speed"] if row["law"] == "ratio"]
    contexts = [c for c in CONTEXTS if any(row["context"] == c for row in rows)]
    bars = [
        (context, arm, rate)
        for context in contexts
        for arm in SHOWN_ARMS
        if (rate := _rate(rows, context, arm)) is not None
    ]
    if not bars:
        return None
    most = _round_up(max(rate for *_, rate in bars))
    parts, left = [_grid(most)], float(_LEFT + 12)
    for context in contexts:
        own = [(arm, rate) for c, arm, rate in bars if c == context]
        for arm, rate in own:
            parts.append(_bar(left, arm, rate, most))
            left += _BAR + 3
        middle = left - (len(own) * (_BAR + 3)) / 2
        name = {"edit": "edited text"}.get(context, f"{context} context")
        parts.append(f'<text x="{middle:.0f}" y="{_TOP + _HEIGHT + 18}" class="m">{name}</text>')
        left += _GAP
    return _drawn("".join(parts), left, most)


def _rate(rows: Sequence[Row], context: str, arm: str) -> float | None:
    own = [row for row in rows if row["context"] == context and row["arm"] == arm]
    return median_rate(own)


def _round_up(rate: float) -> float:
    """The next figure that four even steps lead to."""
    step = 10.0 ** (len(str(int(rate))) - 1) / 2
    return max(step * -(-rate // step), step)


def _y(rate: float, most: float) -> float:
    return _TOP + _HEIGHT * (1 - rate / most)


def _grid(most: float) -> str:
    """The axis: five lines with their figures."""
    lines = []
    for part in range(5):
        rate = most * part / 4
        y = _y(rate, most)
        lines.append(f'<line x1="{_LEFT}" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" class="e">{rate:,.0f}</text>')
    return "".join(lines)


def _bar(left: float, arm: str, rate: float, most: float) -> str:
    y = _y(rate, most)
    number = SHOWN_ARMS.index(arm)
    title = html.escape(f"{arm}: {rate:,.0f} tok/s")
    return (
        f'<rect x="{left:.0f}" y="{y:.1f}" width="{_BAR}" height="{_TOP + _HEIGHT - y:.1f}" '
        f'class="a{number}"><title>{title}</title></rect>'
        f'<text x="{left + _BAR / 2:.0f}" y="{y - 4:.1f}" class="n">{rate:,.0f}</text>'
    )


_COLOURS = ("#8a93a0", "#3f8fd2", "#2b6cb0", "#2f9e6e", "#d9822b")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#3b424c}.m,.n{text-anchor:middle}.n{font-size:10px}"
    ".e{text-anchor:end}line{stroke:#8a93a0;stroke-opacity:.35}"
    + "".join(f".a{number}{{fill:{colour}}}" for number, colour in enumerate(_COLOURS))
    + "@media(prefers-color-scheme:dark){text{fill:#d5dae1}}"
)


def _drawn(body: str, wide: float, most: float) -> str:
    """The picture around the bars: legend, size, colours for light and dark."""
    legend, x = [], float(_LEFT)
    for number, arm in enumerate(SHOWN_ARMS):
        legend.append(f'<rect x="{x:.0f}" y="6" width="11" height="11" class="a{number}"/>')
        legend.append(f'<text x="{x + 16:.0f}" y="16">{html.escape(arm)}</text>')
        x += 34 + 7 * len(arm)
    wide, high = max(wide, x + 20), _TOP + _HEIGHT + 28
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" role="img">'
        f"<title>Tokens a second by arm and context</title><style>{_STYLE}</style>"
        f"{''.join(legend)}{body}</svg>\n"
    )


def main(given: Sequence[str] | None = None) -> int:
    """Make the tables and the plot anew."""
    made = argparse.ArgumentParser("page", description=(__doc__ or "").splitlines()[0])
    made.add_argument("runs", nargs="+", type=Path, help="JSON files of benchmarks.h200.rounds")
    made.add_argument("--page", type=Path, default=ROOT / "docs" / "cuda.md")
    made.add_argument("--plot", type=Path, default=ROOT / "docs" / "cuda-speed.svg")
    asked = made.parse_args(given)
    data = load(asked.runs)
    asked.page.write_text(filled(asked.page.read_text("utf-8"), data), "utf-8")
    picture = plot(data)
    if picture is not None:
        asked.plot.write_text(picture, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
