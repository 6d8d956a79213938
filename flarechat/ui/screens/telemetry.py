"""All panels on a screen of their own, for terminals without room beside the chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen

from flarechat.ui.dashboard import roomy
from flarechat.ui.widgets.held import HeldPanel
from flarechat.ui.widgets.lines import Line
from flarechat.ui.widgets.panels import Panel, all_panels

if TYPE_CHECKING:
    from flarechat.ui.screens.chat import ChatScreen


class TelemetryScreen(Screen[str]):
    """Returns the density to go on with. Two columns where they fit.

    Leaves by itself once the panels fit beside the chat.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-one"), (80, "-two")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave('compact')", "Back", id="telemetry.back"),
        Binding("ctrl+t", "leave('off')", "Telemetry off", id="telemetry.off"),
    ]

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__()
        self._chat = chat

    def compose(self) -> ComposeResult:
        speed, drafts, depth, cost, copies = all_panels(
            self._chat.marks, self._chat.tabs.name_origin
        )
        with VerticalScroll(id="panels"):
            yield Vertical(speed, drafts, copies, classes="column")
            yield Vertical(depth, cost, HeldPanel(self._chat.marks), classes="column")
        yield Line(self._chat.marks, "telemetry-keys")

    def on_mount(self) -> None:
        self.query_one(Line).say(" esc back to the chat  ^t telemetry off")
        self.refresh_panels()
        self.set_interval(0.25, self.refresh_panels)

    def on_resize(self) -> None:
        self._leave_when_roomy()

    def on_screen_resume(self) -> None:
        self._leave_when_roomy()

    def _leave_when_roomy(self) -> None:
        if self.is_current and roomy(*self.app.size):
            self.dismiss("full")

    def refresh_panels(self) -> None:
        """Draw the figures of this moment."""
        view = self._chat.bridge.view()
        for panel in self.query(Panel):
            panel.show(view)

    def action_leave(self, density: str) -> None:
        self.dismiss(density)
