"""What a terminal shows that is too small for a chat: one sentence, until it is enlarged."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Static

SMALLEST = (36, 10)


def too_small(width: int, height: int) -> bool:
    """Whether the chat does not fit."""
    return width < SMALLEST[0] or height < SMALLEST[1]


class TooSmallScreen(Screen[None]):
    """Names the size and the size it needs."""

    def compose(self) -> ComposeResult:
        yield Static(id="small", markup=False)

    def on_resize(self) -> None:
        width, height = self.app.size
        text = f"{width}x{height} is too small: flarechat needs {SMALLEST[0]}x{SMALLEST[1]}."
        self.query_one("#small", Static).update(text)
