"""The tools that come with flarechat: calculator, clock and read_file, with their definitions."""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flarechat.protocol import Tool
from flarechat.tools.calculator import calculate
from flarechat.tools.folder import read_text
from flarechat.tools.results import ToolError

BUILT_IN = ("calculator", "clock", "read_file")

# Arguments in, text out; ToolError where there is none.
Function = Callable[[dict[str, Any]], str]


def built_in(name: str, folder: Path | None, limit: int) -> tuple[Tool, Function]:
    """The built-in tool of this name; `folder` and `limit` in bytes are for read_file."""
    if name == "calculator":
        return _CALCULATOR, _calculator
    if name == "clock":
        return _CLOCK, _clock
    assert folder is not None, "read_file has a folder"
    root = folder
    return _READ_FILE, lambda given: read_text(root, _argument(given, "path"), limit)


def _described(name: str, description: str, required: bool, **parameters: str) -> Tool:
    """A definition whose parameters are texts, by what they mean."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(properties)
    return Tool(name=name, description=description, parameters=schema)


_CALCULATOR = _described(
    "calculator",
    "Compute an arithmetic expression exactly. Operators: + - * / // % ** and parentheses. "
    "Functions: sqrt sin cos tan log exp abs round min max. Constants: pi e.",
    True,
    expression="The expression, such as (17 * 23 + 5) / 2",
)
_CLOCK = _described(
    "clock",
    "Tell the present date and time.",
    False,
    timezone="An IANA time zone, such as Europe/Rome; the user's own if left out",
)
_READ_FILE = _described(
    "read_file",
    "Read a text file of the user's folder.",
    True,
    path="The file's path below the folder, such as notes/todo.txt",
)


def _argument(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ToolError(f"{name!r} must be a text.")
    return value


def _calculator(arguments: dict[str, Any]) -> str:
    return calculate(_argument(arguments, "expression"))


def _clock(arguments: dict[str, Any]) -> str:
    if arguments.get("timezone") in (None, ""):
        now = datetime.datetime.now().astimezone()
    else:
        name = _argument(arguments, "timezone")
        try:
            now = datetime.datetime.now(zoneinfo.ZoneInfo(name))
        except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
            raise ToolError(f"There is no time zone {name!r}.") from None
    return f"{now:%A} {now.isoformat(sep=' ', timespec='seconds')} ({now.tzname()})"
