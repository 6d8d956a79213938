"""What the settings hold an answer to, read from where they say it is, and checked at once.

Owns how a constraint is given: a JSON schema as itself, in a file or on stdin, an expression as
itself, a grammar in a file or on stdin. What it means is the engine's business.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flarechat.errors import SettingsError, UsageError, reason_of
from flarechat.protocol import Constraint

if TYPE_CHECKING:
    from flarechat.config import Settings

ANY_JSON = Constraint(kind="json-schema", text='{"type": ["object", "array"]}')
STDIN = "-"
MAX_FILE = 1 << 20
_WHAT = {"json-schema": "JSON schema", "grammar": "grammar"}


def constraint_of(settings: Settings) -> Constraint | None:
    """What answers are to satisfy, None where nothing was asked for. Reads a file or stdin.

    A GrammarError says what of it cannot be enforced.
    """
    if settings.json_answer:
        return ANY_JSON
    if settings.json_schema is not None:
        inline = settings.json_schema.lstrip().startswith("{")
        text = settings.json_schema if inline else read("json-schema", settings.json_schema)
        return checked(Constraint(kind="json-schema", text=text))
    if settings.grammar is not None:
        return checked(Constraint(kind="grammar", text=read("grammar", settings.grammar)))
    if settings.regex is not None:
        return checked(Constraint(kind="regex", text=settings.regex))
    return None


def reads_stdin(settings: Settings) -> bool:
    """Whether the constraint is what is piped in, so that no prompt is."""
    return STDIN in (settings.json_schema, settings.grammar)


def checked(constraint: Constraint) -> Constraint:
    """The constraint; a GrammarError where it cannot be enforced whole, whatever the model."""
    from flarechat.engine.grammar.checking import check_constraint

    check_constraint(constraint)
    return constraint


def read(kind: str, source: str) -> str:
    """The text of a schema or a grammar (a kind of constraint) in a file, or on stdin."""
    what = _WHAT[kind]
    try:
        if source == STDIN:
            data = _piped(kind)
        else:
            with Path(source).expanduser().open("rb") as file:
                data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise SettingsError(
                f"The {what} {source} is larger than {MAX_FILE:,} bytes.", "Give a smaller one."
            )
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"The {what} {source} cannot be read: {reason_of(error)}.",
            f"Give a file with a {what}, in UTF-8.",
        ) from None


def _piped(kind: str) -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(f"Nothing is piped in for --{kind} -.", "Pipe it in, or give a file.")
    return sys.stdin.buffer.read(MAX_FILE + 1)
