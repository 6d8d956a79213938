"""The one-row lines of the screen: header, follow hint, last turn, keys.

Owns their wording and what gives way when the screen is narrow. Each draws from a frozen value and
asks for a redraw only when that changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual.content import Content
from textual.style import Style
from textual.widget import Widget

from flarechat.protocol import Finished
from flarechat.textsafe import strip_controls
from flarechat.ui.format import Glyphs, count, fit, meter, number, percent, seconds, spread

NEARLY_FULL = 0.8


@dataclass(frozen=True, slots=True)
class HeaderState:
    """What the header says. `state` is always a word."""

    model: str = ""
    session: str = ""
    mode: str = "chat"
    used: int = 0
    context: int = 0
    state: str = "LOADING"
    detail: str = ""
    speed: float = 0.0
    off: str = ""
    held: str = ""
    folded: bool = False


def header_text(state: HeaderState, width: int, marks: Glyphs) -> str:
    """The header in `width` cells; optional parts go first, the state word never."""
    share = state.used / state.context if state.context else 0.0
    warning = " nearly full" if share >= NEARLY_FULL else ""
    share_text = f"{100 * share:.0f}%{warning}"
    figures = f"{count(state.used)}/{count(state.context)} " if state.context else ""
    session = strip_controls(state.session)
    drawn = meter(share, 10)
    parts = {
        "brand": "flarechat",
        "model": fit(strip_controls(state.model), 24, marks).rstrip(),
        "session": fit(session, 28, marks).rstrip(),
        "mode": f"mode {state.mode}" if state.mode else "",
        "held": fit(state.held, 24, marks).rstrip(),
        "off": "SPEC OFF" if state.off else "",
        "speed": f"{number(state.speed)} tok/s" if state.folded and state.speed else "",
        "ctx": f"ctx {drawn} {figures}{share_text}" if state.context else "",
    }
    shorter = (
        ("brand", ""),
        ("mode", ""),
        ("ctx", f"ctx {drawn} {share_text}" if state.context else ""),
        ("session", fit(session, 14, marks).rstrip()),
        ("ctx", f"ctx {share_text}" if state.context else ""),
        ("session", ""),
        ("held", fit(state.held, 12, marks).rstrip()),
        ("speed", ""),
        ("off", ""),
        ("model", ""),
        ("held", ""),
    )
    right = f"{marks.dot} {state.state} {state.detail}".rstrip() + " "
    for name, short in shorter:
        if cell_len(_joined(parts)) + cell_len(right) + 1 <= width:
            break
        parts[name] = short
    return spread(_joined(parts), right, width, marks)


def _joined(parts: dict[str, str]) -> str:
    return " " + " | ".join(part for part in parts.values() if part)


def last_turn_text(turn: int, finished: Finished, saved: bool, width: int) -> str:
    """What the last answer cost, in one line of `width`; details go first."""
    summary, usage, timings = finished.speculation, finished.usage, finished.timings
    spent = (timings.prefill_ms + timings.decode_ms) / 1e3
    rate = f" ({percent(summary.accepted, summary.offered)})" if summary.offered else ""
    parts = [
        f"#{turn} {usage.completion_tokens} tok {seconds(spent)}",
        f"{number(timings.tokens_per_second)} tok/s",
        f"{number(summary.mean_acceptance_length, 2)} tok/round",
        f"{summary.accepted}/{summary.offered} drafts{rate}",
        f"end {finished.reason}",
        "saved" if saved else "not saved",
    ]
    for detail in (2, 1, 0):
        if len(" | ".join(parts)) + 2 <= width:
            break
        del parts[detail]
    return " " + " | ".join(parts)


class Line(Widget):
    """One row that redraws only when its text changed."""

    DEFAULT_CSS = "Line { height: 1; width: 1fr; }"

    def __init__(self, marks: Glyphs, widget_id: str) -> None:
        super().__init__(id=widget_id, markup=False)
        self.marks = marks
        self.text = ""

    def say(self, text: str) -> None:
        """Show this text."""
        if text != self.text:
            self.text = text
            self.refresh()

    def render(self) -> Content:
        return Content(fit(self.text, self.size.width, self.marks))


class Header(Line):
    """Model, session, mode, context and the state word."""

    state = HeaderState()

    def show(self, state: HeaderState) -> None:
        if state != self.state:
            self.state = state
            self.set_class(state.state == "ERROR", "-error")
            self.refresh()

    def render(self) -> Content:
        return Content(header_text(self.state, self.size.width, self.marks))


class KeyBar(Line):
    """The keys that matter now; each is also a button. Hints that do not fit are left out."""

    HINTS: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("esc", "Stop", "screen.escape"),
        ("^n", "New", "screen.new_chat"),
        ("^o", "Sessions", "screen.sessions"),
        ("^t", "Telemetry", "screen.density"),
        ("^g", "Editor", "screen.editor"),
        ("f1", "Keys", "screen.keys"),
        ("f2", "Settings", "screen.settings"),
        ("f8", "Constraint", "screen.constraint"),
        ("^p", "Palette", "app.command_palette"),
        ("^q", "Quit", "app.quit"),
    )
    TURN_HINTS: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("esc", "Prompt", "screen.escape"),
        ("e", "Edit", "screen.verb('edit')"),
        ("r", "Again", "screen.verb('regenerate')"),
        ("c", "Continue", "screen.verb('go_on')"),
        ("b", "From here", "screen.verb('branch')"),
        ("u", "Undo", "screen.verb('undo')"),
        ("i", "Tokens", "screen.verb('tokens')"),
        ("f1", "Keys", "screen.keys"),
    )
    DROPPED_FIRST: ClassVar[tuple[str, ...]] = (
        *("^g", "f8", "f2", "^p", "^t", "^o", "^n"),
        *("b", "c", "u", "i", "esc"),
    )
    turns = False

    def show(self, *, turns: bool) -> None:
        """Show the keys of turn mode, or those of the prompt."""
        if turns != self.turns:
            self.turns = turns
            self.refresh()

    def render(self) -> Content:
        hints = list(self.TURN_HINTS if self.turns else self.HINTS)
        for key in self.DROPPED_FIRST:
            if sum(len(k) + len(name) + 3 for k, name, _ in hints) <= self.size.width:
                break
            hints = [hint for hint in hints if hint[0] != key]
        line = Content(" ")
        for key, name, action in hints:
            click = Style.from_meta({"@click": action})
            hint = Content.assemble((key, "bold $text-accent"), f" {name}")
            line += hint.stylize(click) + Content("  ")
        return line.truncate(self.size.width)
