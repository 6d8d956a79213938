"""The column of panels beside the chat. Owns what gives way where it is too short."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from flarechat.ui.format import Glyphs
from flarechat.ui.widgets.held import HeldPanel
from flarechat.ui.widgets.panels import DepthPanel, Namer, Panel, all_panels


class Side(VerticalScroll):
    """All panels, one below the other. The panel of what constrains answers takes the place of the
    acceptance by depth where there is no room for both. Where the row of tabs or a second line of
    the prompt takes their last row, the panel of copies shows one line of its two; in less they
    scroll.
    """

    def __init__(self, marks: Glyphs, name: Namer) -> None:
        super().__init__(id="side", can_focus=False)
        self._panels: list[Panel] = [*all_panels(marks, name), HeldPanel(marks)]

    def compose(self) -> ComposeResult:
        *others, held = self._panels
        yield from (*others[:1], held, *others[1:])

    def on_resize(self) -> None:
        self.fit()

    def fit(self) -> None:
        """Choose what is shown in the height there is."""
        if not self.size.height:
            return
        *_, copies, held = self._panels
        depth = next(panel for panel in self._panels if isinstance(panel, DepthPanel))
        shown = [panel for panel in self._panels if panel is not held or held.display]
        missing = sum(panel.rows + panel.EDGES for panel in shown) - self.size.height
        depth.display = not (held.display and missing > 1)
        missing -= 0 if depth.display else depth.rows + depth.EDGES
        copies.styles.height = copies.rows + copies.EDGES - (missing == 1)
