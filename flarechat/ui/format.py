"""Numbers as words, columns and bars: every unit and width on the screen comes from here.

Owns the two glyph sets (Unicode and ASCII) and cell-exact columns. Knows no widget and no engine.
"""

from __future__ import annotations

import locale
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters drawn beyond plain text."""

    ascii: bool
    full: str
    parts: str
    spark: str
    dot: str
    down: str
    rule: str
    ellipsis: str
    bullet: str
    quote: str
    cross: str
    corner: str
    before: str
    after: str


UNICODE = Glyphs(
    False, "█", " ▏▎▍▌▋▊▉", "▁▂▃▄▅▆▇█", "●", "▼", "─", "…", "•", "│", "┼", "┌", "‹", "›",
)  # fmt: skip
ASCII = Glyphs(True, "#", " ", "_.-=+*%#", "*", "v", "-", "~", "*", "|", "+", "+", "<", ">")


def glyphs(env: Mapping[str, str] | None = None) -> Glyphs:
    """Unicode unless the locale names another encoding than UTF-8."""
    found = os.environ if env is None else env
    named = next((found[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if found.get(n)), "")
    encoding = named or locale.getpreferredencoding(False)
    return UNICODE if "utf8" in encoding.lower().replace("-", "") else ASCII


def fit(text: str, width: int, marks: Glyphs = UNICODE) -> str:
    """Exactly `width` cells: padded, or cut with an ellipsis."""
    if cell_len(text) > width:
        text = set_cell_size(text, max(width - 1, 0)) + marks.ellipsis[:width]
    return set_cell_size(text, max(width, 0))


def spread(left: str, right: str, width: int, marks: Glyphs = UNICODE) -> str:
    """`left` and `right` at the two ends of `width` cells; `left` is cut first."""
    room = width - cell_len(right)
    return fit(fit(left, max(room, 0), marks) + right, width, marks)


def count(number: int | float) -> str:
    """A count in four characters or so: 812, 6.1k, 32k, 1.2M."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if number >= limit:
            scaled = number / limit
            return (
                f"{scaled:.0f}{unit}"
                if scaled >= 10 or scaled == int(scaled)
                else (f"{scaled:.1f}{unit}")
            )
    return f"{number:.0f}"


def percent(part: float, whole: float) -> str:
    """A share in whole percent, "-" of nothing."""
    return f"{100 * part / whole:.0f}%" if whole else "-"


def number(value: float, digits: int = 1) -> str:
    """A figure, "-" when it was never measured (0)."""
    return f"{value:.{digits}f}" if value else "-"


def rate(value: float) -> str:
    """A speed: 2.8, 89.4, 269; "-" when it was never measured."""
    return number(value, 1 if value < 100 else 0)


def seconds(value: float) -> str:
    """An elapsed time: 2.3 s, 1 m 05 s."""
    if value < 60:
        return f"{value:.1f} s"
    return f"{value // 60:.0f} m {value % 60:02.0f} s"


def size(characters: int) -> str:
    """A length of text: 312 B, 3.1 kB."""
    return f"{characters} B" if characters < 1000 else f"{characters / 1000:.1f} kB"


def clock_time(epoch: float) -> str:
    """Hours and minutes of a moment, local time."""
    return time.strftime("%H:%M", time.localtime(epoch))


def bar(share: float, width: int, marks: Glyphs) -> str:
    """A bar of `share` (0 to 1) in `width` cells, eighths drawn where the glyphs allow."""
    steps = len(marks.parts)
    filled = round(min(max(share, 0.0), 1.0) * width * steps)
    whole, part = divmod(filled, steps)
    return set_cell_size(marks.full * whole + (marks.parts[part] if part else ""), width)


def meter(share: float, width: int) -> str:
    """The context meter of the header, plain on purpose: [##--------]."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return f"[{'#' * filled}{'-' * (width - filled)}]"


def sparkline(values: Sequence[float], width: int, marks: Glyphs) -> str:
    """The last `width` values, scaled to the largest of them."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return " " * width
    last = len(marks.spark) - 1
    drawn = "".join(marks.spark[round(last * max(value, 0.0) / top)] for value in shown)
    return drawn.ljust(width)
