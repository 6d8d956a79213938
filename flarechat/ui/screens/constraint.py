"""What the next answers are held to, and the tools that may be called, as a form."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from textual.widgets import Input, Select

from flarechat.config import Settings
from flarechat.tools.toolbox import Toolbox
from flarechat.ui.constraints import NamedConstraint, named
from flarechat.ui.equipment import equipped, sources_of
from flarechat.ui.screens.forms import Form

_FORMS = [
    ("nothing: any text", "none"),
    ("JSON: an object or a list", "json"),
    ("a JSON schema, a file or itself", "schema"),
    ("a regular expression", "regex"),
    ("a grammar in a file (Lark, GBNF)", "grammar"),
]
_NEW = "new"


class ConstraintScreen(Form):
    """Left with enter, it has the `constraint`, and `toolbox` and `settings` where these changed;
    else `toolbox` is None.
    """

    def __init__(
        self,
        constraint: NamedConstraint | None,
        recent: Sequence[NamedConstraint],
        settings: Settings,
    ) -> None:
        super().__init__("What the next answers are held to")
        self.constraint, self.settings = constraint, settings
        self.toolbox: Toolbox | None = None
        self._recent = list(recent)

    def fields(self) -> list[tuple[str, Input | Select[str]]]:
        now, settings = self.constraint, self.settings
        forms: Select[str] = Select(
            _FORMS, value=now.form if now else "none", allow_blank=False, compact=True, id="form"
        )
        recent = [("choose one of this chat" if self._recent else "none yet", _NEW)]
        recent += [(known.label, str(n)) for n, known in enumerate(self._recent)]
        again: Select[str] = Select(
            recent, value=_NEW, allow_blank=False, compact=True, id="recent"
        )
        source = Input(
            now.source if now else "", placeholder="file or expression", compact=True, id="source"
        )
        tools = Input(
            shlex.join(settings.tools), placeholder="FILE, or calculator,clock; empty for none",
            compact=True, id="tools",
        )  # fmt: skip
        choice = Input(
            settings.tool_choice, placeholder="auto, none, required or a name", compact=True,
            id="choice",
        )  # fmt: skip
        return [
            ("Answers", forms),
            ("Source", source),
            ("Recent", again),
            ("Tools", tools),
            ("Choice", choice),
        ]

    def on_select_changed(self, event: Select.Changed) -> None:
        """A recent one fills the fields."""
        if event.select.id == "recent" and event.value != _NEW:
            known = self._recent[int(str(event.value))]
            self.query_one("#form", Select).value = known.form
            self.query_one("#source", Input).value = known.source

    def work(self, values: dict[str, str]) -> str:
        form, source = values["form"], values["source"]
        constraint = named(form, source if form not in ("none", "json") else "")
        sources, choice = sources_of(values["tools"]), values["choice"] or "auto"
        if (sources, choice) != (self.settings.tools, self.settings.tool_choice):
            choice = choice if sources or choice == "none" else "auto"
            self.toolbox, self.settings = equipped(self.settings, sources, choice)
        self.constraint = constraint
        return "chosen"
