"""The column of panels beside the chat. Owns what gives way where it is a row too short."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from flarechat.ui.format import Glyphs
from flarechat.ui.widgets.panels import Namer, Panel, all_panels


class Side(VerticalScroll):
    """All panels, one below the other. Where the row of tabs or a second line of the prompt takes
    their last row, the panel of copies shows one line of its two; in less they scroll.
    """

    def __init__(self, marks: Glyphs, name: Namer) -> None:
        super().__init__(id="side", can_focus=False)
        self._panels: list[Panel] = all_panels(marks, name)

    def compose(self) -> ComposeResult:
        yield from self._panels

    def on_resize(self) -> None:
        missing = sum(panel.ROWS + panel.EDGES for panel in self._panels) - self.size.height
        last = self._panels[-1]
        last.styles.height = last.ROWS + last.EDGES - (missing == 1)
