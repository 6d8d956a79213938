"""Tools: functions that a model may call, and its calls of them.

A definition that no model could be given is refused where it is made. What runs a tool is not told
here: the engine never runs one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flarechat.errors import SettingsError

TOOL_CHOICES = ("auto", "none", "required")
MAX_TOOL_DEPTH, MAX_CALL_DEPTH = 64, 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function by its name, what it does in words, and the JSON schema of its arguments.

    Raises SettingsError for a name that is none, and for `parameters` that describe no object.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in TOOL_CHOICES:
            raise SettingsError(
                f"{self.name!r} cannot be the name of a tool.",
                "Give letters, digits, _, . and -, 64 at most, and none of "
                f"{', '.join(TOOL_CHOICES)}.",
            )
        if self.parameters.get("type", "object") != "object":
            raise SettingsError(
                f"The parameters of tool {self.name} are of type {self.parameters['type']!r}.",
                "Give the JSON schema of an object.",
            )
        fault = _fault(self.parameters)
        if fault:
            raise SettingsError(
                f"The parameters of tool {self.name} {fault}.", "Give the JSON schema of an object."
            )

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object's. Where it names its properties and nothing
        says whether there may be others, there may not: a function takes what it names.
        """
        whole = {"type": "object", "properties": {}} | self.parameters
        if whole.keys() & _COMBINING:
            return whole
        return {**whole, "additionalProperties": whole.get("additionalProperties", False)}

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as chat templates are given it."""
        described = {"description": self.description} if self.description else {}
        parameters = {"type": "object", "properties": {}} | self.parameters
        return {
            "type": "function",
            "function": {"name": self.name, **described, "parameters": parameters},
        }


# With these, properties are also named elsewhere.
_COMBINING = frozenset(
    ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else",
     "dependentSchemas", "patternProperties", "unevaluatedProperties")
)  # fmt: skip


def _fault(parameters: dict[str, Any]) -> str:
    """What keeps them from being written as JSON, in words that follow their name."""
    if not is_shallow(parameters, MAX_TOOL_DEPTH):
        return f"are nested deeper than {MAX_TOOL_DEPTH} levels"
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"cannot be written as JSON: {error}"
    return ""


def is_shallow(value: Any, levels: int) -> bool:
    """Whether a JSON value is nested no deeper; found out level by level, however deep it is."""
    level = [value]
    for _ in range(levels):
        level = [part for held in level for part in _parts(held)]
        if not level:
            return True
    return False


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, (list, tuple)) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that a model wrote: the tool's name and the arguments, as a JSON object.

    `id` is its own among the calls of a conversation; the result names it. `text` is what was
    written, marks included, "" for a call that no model wrote.
    """

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    text: str = ""


def require_tools(tools: Sequence[Tool], choice: str) -> None:
    """Refuse two tools of one name, and a choice that is neither a word for it nor a tool."""
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"Two tools are named {twice}.", "Give each a name of its own.")
    if not tools and choice not in ("auto", "none"):
        raise SettingsError(
            f"--tool-choice {choice} needs tools to choose from.", "Give --tools as well."
        )
    known = (*TOOL_CHOICES, *names)
    if choice not in known:
        raise SettingsError(f"--tool-choice {choice} is unknown.", f"Use {', '.join(known)}.")
