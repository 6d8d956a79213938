"""The telemetry panels: speed, drafts by source, acceptance by depth, cost by width, copies.

Owns what each panel says, as pure functions from a frozen View to lines. A panel
draws in `render` and asks for a redraw only when its lines changed. Counts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from flarechat.protocol import DRAFT_SOURCES, TAIL_SOURCES, SourceTotals
from flarechat.ui.format import Glyphs, bar, count, fit, number, percent, rate, sparkline, spread
from flarechat.ui.meter import View, WidthCost
from flarechat.ui.prefill import prompt_figures

Lines = list[str]
INNER_WIDTH = 37
SHORTEST_REASON = 18
Namer = Callable[[str], str]


def lanes_text(view: View) -> str:
    """How many answers the last round was played for; "" where it was this one alone."""
    return f"{view.lanes} lanes" if view.lanes > 1 else ""


def speed_lines(view: View, width: int, marks: Glyphs) -> Lines:
    """How fast now, over the turn, and against width one."""
    gain = f"x{view.gain:.1f} est" if view.gain else "x - est"
    prefill = f"{count(view.prefill)} tok/s" if view.prefill else "-"
    first = f"{view.first_token_ms:.0f} ms" if view.first_token_ms else "-"
    speed = f"{rate(view.now)} tok/s now   {rate(view.turn)} turn"
    return [
        spread(speed, gain, width, marks),
        sparkline(view.speeds, width, marks),
        f"TTFT {first}   prefill {prefill}",
    ]


def draft_lines(view: View, width: int, marks: Glyphs) -> Lines:
    """Offered, accepted and emitted by source; the emitted column sums to the output tokens.

    The row of a head that drafted nothing says why it does not.
    """
    summary = view.summary
    rows = [f"{'':8}{'offered':>7}{'accepted':>9}{'emitted':>8}{'acc':>5}"]
    for source in DRAFT_SOURCES:
        totals = summary.by_source.get(source)
        if totals is None and source == "grammar":
            continue
        if totals is None and source == "mtp" and view.mtp_off:
            rows.append(fit(f"{'MTP':8}{view.mtp_off}", width, marks))
            continue
        offered, accepted, emitted = (
            (totals.offered, totals.accepted, totals.emitted) if totals else (0, 0, 0)
        )
        label = "MTP" if source == "mtp" else source
        rows.append(_draft_row(label, offered, accepted, emitted))
    own = [summary.by_source[name].emitted for name in TAIL_SOURCES if name in summary.by_source]
    rows.append(f"{'model':8}{'-':>7}{'-':>9}{count(sum(own)):>8}{'-':>5}")
    rows.append(_draft_row("total", summary.offered, summary.accepted, summary.emitted))
    return rows


def _draft_row(label: str, offered: int, accepted: int, emitted: int) -> str:
    share = percent(accepted, offered)
    return f"{label:8}{count(offered):>7}{count(accepted):>9}{count(emitted):>8}{share:>5}"


def depth_lines(view: View, width: int, marks: Glyphs) -> Lines:
    """For each depth: accepted of all rounds that offered it, and of those that got there."""
    cells = []
    depths = view.summary.by_depth
    reached = (*view.reached, *[0] * (len(depths) - len(view.reached)))
    columns = 1 if len(depths) <= 4 else 2
    room = (width - (columns - 1)) // columns
    for depth, tried in zip(depths, reached, strict=True):
        reach = 100 * depth.accepted / depth.offered if depth.offered else 0.0
        given = 100 * depth.accepted / tried if tried else 0.0
        figures = f"{reach:3.0f}|{given:<3.0f}"
        drawn = bar(reach / 100, room - len(figures) - 3, marks)
        cells.append(f"{depth.depth} {drawn} {figures}")
    cells += [""] * (8 - len(cells))
    if columns == 1:
        return [fit(cell, width) for cell in cells[:4]]
    return [f"{fit(cells[n], room)} {fit(cells[n + 4], room)}" for n in range(4)]


def cost_lines(view: View, width: int, marks: Glyphs) -> Lines:
    """Whole-round time and yield by verify width, and why the last round had its width."""
    costs = view.costs or (WidthCost("1"), WidthCost("2-5"), WidthCost("6+"))
    rows = [f"{'width':>5}{'rounds':>8}{'ms p50':>8}{'tok/rnd':>9}{'tok/s':>7}"]
    for cost in costs:
        ms, yielded = number(cost.ms), number(cost.tokens_per_round, 2)
        speed = rate(cost.tokens_per_second)
        rows.append(f"{cost.label:>5}{cost.rounds:>8}{ms:>8}{yielded:>9}{speed:>7}")
    rows.append(reason_lines(view, width, marks)[0])
    return rows


def reason_lines(view: View, width: int, marks: Glyphs) -> tuple[str, str]:
    """Why the last round had its width: a line, and what did not fit on it."""
    first, rest = "", f"last: {view.reason}".split() if view.reason else []
    while rest and cell_len(first) + cell_len(rest[0]) < width:
        first = f"{first} {rest.pop(0)}".lstrip()
    return fit(first or " ".join(rest), width, marks), " ".join(rest) if first else ""


def copy_lines(view: View, width: int, marks: Glyphs, name: Namer) -> Lines:
    """How often drafts were copied, how long the copies were, and where the last came from."""
    copies, rounds = view.copies, view.summary.rounds
    mean = number(copies.accepted / copies.rounds) if copies.rounds else "-"
    longest = str(copies.longest) if copies.rounds else "-"
    hits = f"hit {copies.rounds}/{rounds} rounds  mean {mean}  max {longest}"
    if not copies.rounds:
        return [hits, "last: none yet"]
    origin = name(copies.last_origin) if copies.last_source == "history" else "this conversation"
    last = f"last: {copies.last_accepted} of {copies.last_offered} from {origin}"
    return [fit(hits, width, marks), fit(last, width, marks)]


def compact_lines(view: View, width: int, marks: Glyphs) -> Lines:
    """Two lines that hold the essence of all panels."""
    summary = view.summary
    gain = f"x{view.gain:.1f}" if view.gain else "x-"
    share = percent(summary.accepted, summary.offered)
    speed = f"{rate(view.now)} tok/s {gain}"
    totals = (
        f"{number(summary.mean_acceptance_length, 2)} tok/round  off {count(summary.offered)}"
        f" acc {count(summary.accepted)} emit {count(summary.emitted)} {share}"
    )
    room = max(width - len(speed) - len(totals) - 3, 0)
    first = f"{speed} {sparkline(view.speeds, room, marks)}  {totals}"
    if view.off:
        return [first, f"spec off: {view.off}"]
    depths = [f"{100 * d.accepted / d.offered:.0f}" for d in summary.by_depth[:4] if d.offered]
    costs = " ".join(f"w{cost.label} {number(cost.ms)}" for cost in view.costs if cost.rounds)
    second = f"depth {' '.join(depths) or '-'}"
    mtp = summary.by_source.get("mtp", SourceTotals())
    idle = view.mtp_off and not mtp.offered
    heads = "mtp off" if idle else f"mtp {mtp.accepted}/{mtp.offered}"
    copies = f"copy {view.copies.rounds}/{summary.rounds}"
    held = view.held
    kept = (
        f"{held.label} forced {held.forced} removed {held.removed} {held.verdict}" if held else ""
    )
    for part in (kept, f"{costs or 'w -'} ms", heads, copies, prompt_figures(view.prompt)):
        if part and len(second) + len(part) + 2 <= width:
            second += f"  {part}"
    if view.reason and width - len(second) >= SHORTEST_REASON:
        second += f"  last: {view.reason}"
    return [first, fit(second, width, marks)]


class Panel(Widget):
    """A titled box whose lines come from a View; `rows` of them, without its edges."""

    DEFAULT_CSS = "Panel { width: 1fr; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }"
    TITLE = ""
    ROWS = 1
    EDGES = 2

    def __init__(self, marks: Glyphs) -> None:
        super().__init__(markup=False, classes="panel")
        self.marks = marks
        self.lines: Lines = []
        blocks = "".join(dict.fromkeys(marks.full + marks.parts + marks.spark)).replace(" ", "")
        # A lone ASCII character of these may be punctuation.
        least = 2 if marks.ascii else 1
        self._bars = re.compile(f"[{re.escape(blocks)}]{{{least},}}")
        self._shown: tuple[View, int] | None = None
        self.rows = self.ROWS
        self.styles.height = self.rows + self.EDGES

    def on_mount(self) -> None:
        self.border_title = self.TITLE
        self.show(View())

    def show(self, view: View) -> None:
        """Take a new view; draw only what changed."""
        key = (view, self.content_size.width)
        if key == self._shown:
            return
        self._shown = key
        lines = self.compose_lines(view, self.content_size.width or INNER_WIDTH)
        if lines != self.lines:
            self.lines = lines
            self.refresh()

    def on_resize(self) -> None:
        if self._shown:
            self.show(self._shown[0])

    def compose_lines(self, view: View, width: int) -> Lines:
        """The lines of this panel."""
        raise NotImplementedError

    def render(self) -> Content:
        drawn = Content("\n".join(self.lines))
        return drawn.highlight_regex(self._bars, style="$primary")


class SpeedPanel(Panel):
    TITLE, ROWS = "Speed", 3

    def compose_lines(self, view: View, width: int) -> Lines:
        said = [lanes_text(view), prompt_figures(view.prompt)]
        self.border_subtitle = "  ".join(part for part in said if part)
        return speed_lines(view, width, self.marks)


class DraftsPanel(Panel):
    TITLE, ROWS = "Drafts: this turn", 6

    def compose_lines(self, view: View, width: int) -> Lines:
        summary = view.summary
        rounds = f"{summary.rounds} rounds  {number(summary.mean_acceptance_length, 2)} tok/round"
        self.border_subtitle = rounds if summary.rounds else ""
        self.border_title = f"Spec off: {view.off}" if view.off else self.TITLE
        lines = draft_lines(view, width, self.marks)
        self.rows = len(lines)
        self.styles.height = self.rows + self.EDGES
        return lines


class DepthPanel(Panel):
    TITLE, ROWS = "Acceptance by depth, % reach|cond", 4

    def compose_lines(self, view: View, width: int) -> Lines:
        return depth_lines(view, width, self.marks)


class CostPanel(Panel):
    TITLE, ROWS = "Round cost by verify width", 5

    def compose_lines(self, view: View, width: int) -> Lines:
        self.border_subtitle = Content(reason_lines(view, width, self.marks)[1])
        return cost_lines(view, width, self.marks)


class CopyPanel(Panel):
    TITLE, ROWS = "History copy", 2

    def __init__(self, marks: Glyphs, name: Namer) -> None:
        super().__init__(marks)
        self._namer = name

    def compose_lines(self, view: View, width: int) -> Lines:
        return copy_lines(view, width, self.marks, self._namer)


class CompactPanel(Panel):
    TITLE, ROWS, EDGES = " Speculation  ^t expand ", 2, 1

    def compose_lines(self, view: View, width: int) -> Lines:
        self.border_title = f"{self.TITLE} {lanes_text(view)} " if view.lanes > 1 else self.TITLE
        return compact_lines(view, width, self.marks)


def all_panels(marks: Glyphs, name: Namer) -> list[Panel]:
    """The full set, in the order of the side column."""
    return [
        SpeedPanel(marks),
        DraftsPanel(marks),
        DepthPanel(marks),
        CostPanel(marks),
        CopyPanel(marks, name),
    ]
