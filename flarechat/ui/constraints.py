"""What the answers of a chat are to satisfy, by the name that the user knows it by.

Owns the forms in which a constraint is asked for here, and what each is called. Reading and
checking them is flarechat.constraining's.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarechat import constraining
from flarechat.config import Settings
from flarechat.errors import GrammarError, SettingsError, UsageError
from flarechat.protocol import Constraint
from flarechat.textsafe import strip_controls

# A form, and the setting of the same meaning.
SETTINGS = {
    "json": "json_answer",
    "schema": "json_schema",
    "regex": "regex",
    "grammar": "grammar",
}
FORMS = ("none", *SETTINGS)
_FREE = Settings(json_schema=None, regex=None, grammar=None, json_answer=False)


@dataclass(frozen=True, slots=True)
class NamedConstraint:
    """A constraint of the form json, schema, regex or grammar. `source` is its file, or the schema
    or regular expression itself.
    """

    form: str
    source: str
    constraint: Constraint

    @property
    def label(self) -> str:
        """What it is called on the screen."""
        if self.form == "json":
            return "JSON"
        name = self.source
        if self.form != "regex":
            name = "as typed" if _inline(self.form, name) else Path(name).name
        return strip_controls(f"{self.form} {name}").replace("\n", " ")

    @property
    def json(self) -> bool:
        """Whether answers are JSON."""
        return self.constraint.kind == "json-schema"


def _inline(form: str, source: str) -> bool:
    return form == "schema" and source.lstrip().startswith("{")


def named(form: str, source: str = "") -> NamedConstraint | None:
    """The constraint of a form, None for the form none. May take seconds.

    Raises UsageError where the source is missing or cannot be read, and where what it says cannot
    be enforced: then with the file and the place in it.
    """
    if form not in FORMS:
        raise UsageError(f"{form} is no form of constraint.", f"Use {', '.join(FORMS)}.")
    if form == "none":
        return None
    if form != "json" and not source:
        what = "an expression" if form == "regex" else "a file"
        raise UsageError(f"The {form} needs {what}.", f"Give {what}.")
    try:
        chosen: dict[str, Any] = {SETTINGS[form]: source or True}
        constraint = constraining.constraint_of(dataclasses.replace(_FREE, **chosen))
    except GrammarError as error:
        if form == "regex" or _inline(form, source):
            raise
        raise GrammarError(f"{source}: {error.message}", error.hint) from None
    except SettingsError as error:
        # A flag's name means nothing here.
        raise SettingsError(error.message.removeprefix("--"), error.hint) from None
    except ValueError:
        raise UsageError(f"{source!r} is no path.", "Give the path of a file.") from None
    assert constraint is not None, "a form other than none constrains"
    return NamedConstraint(form, source if form != "json" else "", constraint)


def taken_from(settings: Settings) -> tuple[NamedConstraint | None, Settings]:
    """What the settings hold answers to, and the settings without it."""
    for form, key in SETTINGS.items():
        if key in settings.constraints:
            found = named(form, "" if form == "json" else getattr(settings, key))
            free = {name: getattr(_FREE, name) for name in SETTINGS.values()}
            return found, dataclasses.replace(settings, **free)
    return None, settings
