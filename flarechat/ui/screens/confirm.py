"""One question with yes and no."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from flarechat.textsafe import strip_controls


class ConfirmScreen(ModalScreen[bool]):
    """Returns True only for a clear yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes", show=False),
        Binding("n,escape", "answer(False)", "No", id="confirm.no", show=False),
    ]

    def __init__(self, question: str, warning: str) -> None:
        super().__init__()
        self._question, self._warning = strip_controls(question), strip_controls(warning)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box -small") as box:
            box.border_title = Content(self._question)
            box.border_subtitle = "y yes  n no"
            yield Static(f"{self._warning}\nPress y to go on, n to keep it.", markup=False)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
