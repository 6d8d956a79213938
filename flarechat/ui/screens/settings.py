"""The settings of the next turn, as a form.

Owns the fields on screen; what is legal is decided by ui.choices and Settings.
"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Select, Static

from flarechat.config import Settings
from flarechat.errors import SettingsError
from flarechat.protocol import Sampling
from flarechat.textsafe import strip_controls
from flarechat.ui import themes
from flarechat.ui.choices import CHOICES, Choice, changed, text_of


class SettingsScreen(ModalScreen[Settings | None]):
    """Returns the changed settings, or None when left with esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Cancel", id="settings.cancel", show=False),
        Binding("ctrl+s,f2", "apply", "Apply", id="settings.apply", show=False),
    ]

    def __init__(
        self, settings: Settings, recommended: Sampling | None, lanes: int | None = None
    ) -> None:
        super().__init__()
        self._settings, self._recommended = settings, recommended
        self._lanes = lanes or settings.concurrency

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Settings of the next turn"
            box.border_subtitle = "tab next  enter apply  esc cancel"
            with VerticalScroll(can_focus=False):
                for choice in CHOICES:
                    with Horizontal(classes="field"):
                        yield Label(choice.label)
                        yield self._field(choice)
                with Horizontal(classes="field"):
                    yield Label("Answers at once")
                    yield Label(f"{self._lanes}, from the start: --concurrency", id="lanes")
            yield Static("", id="problem", markup=False)

    def _field(self, choice: Choice) -> Input | Select[str]:
        value = text_of(self._settings, choice)
        if choice.options:
            words = dict.fromkeys((*choice.options, value))
            return Select(
                [(word, word) for word in words],
                value=value,
                allow_blank=False,
                compact=True,
                id=choice.name,
            )
        return Input(value, placeholder=self._inherited(choice), compact=True, id=choice.name)

    def _inherited(self, choice: Choice) -> str:
        """What holds while the field is empty."""
        if choice.name == "system":
            return "none"
        value = getattr(self._recommended, choice.name, None)
        if value is None:
            return "random" if choice.name == "seed" else "the model's"
        return f"{value:g} (the model's)"

    def on_input_submitted(self) -> None:
        self.action_apply()

    def action_apply(self) -> None:
        settings = self._settings
        try:
            for choice in CHOICES:
                text = self._text(choice)
                if text != text_of(settings, choice):
                    settings = changed(settings, choice.name, text)
            themes.choose(settings.theme)
        except SettingsError as error:
            self.query_one("#problem", Static).update(strip_controls(str(error)))
            return
        self.dismiss(settings)

    def _text(self, choice: Choice) -> str:
        field = self.query_one(f"#{choice.name}")
        if isinstance(field, Select):
            return str(field.value)
        assert isinstance(field, Input)
        return field.value if choice.name == "system" else field.value.strip()

    def action_close(self) -> None:
        self.dismiss(None)
