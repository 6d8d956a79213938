"""The row of tabs: one chat each, with a mark of what goes on in it.

Owns how tabs share a row's width and the words and signs of their states. Knows no conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.style import Style

from flarechat.textsafe import strip_controls
from flarechat.ui.format import Glyphs, fit
from flarechat.ui.widgets.lines import Line

SIGNS = {
    "writing": "~", "waiting": "..", "new": "+", "choose": "?", "asks": "?", "error": "!", "": "",
}  # fmt: skip
WORDY = 24
WIDEST = 40
HINT = "f7 f9 go  ctrl+d close "


@dataclass(frozen=True, slots=True)
class TabState:
    """One tab: its chat's title and a word for what goes on in it, "" for nothing."""

    title: str
    word: str = ""


def tab_texts(tabs: Sequence[TabState], current: int, width: int, marks: Glyphs) -> list[str]:
    """Every tab as text, all together in `width` cells: states as words where there is room, as
    signs where not; the current one in brackets.
    """
    room = min((width - 1) // max(len(tabs), 1) - 1, WIDEST)
    texts = []
    for number, tab in enumerate(tabs):
        state = tab.word if room >= WORDY else SIGNS[tab.word]
        state = f" {state}" if state else ""
        left, right = "[]" if number == current else "  "
        title = f"{number + 1} {strip_controls(tab.title)}"
        short = fit(title, max(room - 2 - len(state), 1), marks).rstrip()
        texts.append(f"{left}{short}{state}{right}")
    return texts


class TabBar(Line):
    """The tabs, each a button. Shown only while there are several."""

    tabs: tuple[TabState, ...] = ()
    current = 0

    def show(self, tabs: Sequence[TabState], current: int) -> None:
        """Show these tabs; redraws only what changed."""
        if (tuple(tabs), current) != (self.tabs, self.current):
            self.tabs, self.current = tuple(tabs), current
            self.display = len(tabs) > 1
            self.refresh()

    def render(self) -> Content:
        line = Content("")
        texts = tab_texts(self.tabs, self.current, self.size.width, self.marks)
        for number, text in enumerate(texts):
            style = "bold reverse" if number == self.current else ""
            click = Style.from_meta({"@click": f"screen.tab({number})"})
            line += Content.styled(text, style).stylize(click) + Content(" ")
        room = self.size.width - line.cell_length
        if room > len(HINT):
            line += Content.styled(HINT.rjust(room), "$foreground 60%")
        return line.truncate(self.size.width)
