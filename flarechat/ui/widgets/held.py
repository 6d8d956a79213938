"""The panel of what an answer is held to. It is there only while something constrains answers."""

from __future__ import annotations

from flarechat.ui.format import Glyphs, fit
from flarechat.ui.meter import View
from flarechat.ui.widgets.panels import Lines, Panel


def held_lines(view: View, width: int, marks: Glyphs) -> Lines:
    """What constrains, where the answer is, what that did to the drafts, and what became of it."""
    held = view.held
    if held is None:
        return []
    counts = f"forced {held.forced}  removed {held.removed}  redrawn {held.redrawn}"
    lines = (held.label, held.state or "-", counts, held.verdict or "-")
    return [fit(line, width, marks) for line in lines]


class HeldPanel(Panel):
    TITLE, ROWS = "Constraint", 4

    def show(self, view: View) -> None:
        self.display = view.held is not None
        super().show(view)

    def compose_lines(self, view: View, width: int) -> Lines:
        return held_lines(view, width, self.marks)
