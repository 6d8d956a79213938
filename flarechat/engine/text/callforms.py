"""The forms in which models write calls of tools, how each is written and how it is read.

Two are JSON, between marks or alone; the third names the function and each parameter in a tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flarechat.engine.text.calls import Maybe, NoCall, Part, ToolForm, Value, Words, quoted
from flarechat.engine.text.channels import Marks
from flarechat.engine.text.strictjson import read_json, written_json
from flarechat.errors import SettingsError
from flarechat.protocol import Tool


@dataclass(frozen=True, slots=True)
class JsonForm:
    """A JSON object with the tool's name, and in `member` the arguments."""

    marks: Marks
    before: str
    member: str
    behind: str
    several: bool

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{self._head(name)}{written_json(arguments)}}}{self.behind}"

    def parts(self, tool: Tool) -> tuple[Part, ...]:
        return self._head(tool.name), Value(tool.schema), f"}}{self.behind}"

    def read(self, said: str, tools: Mapping[str, Tool]) -> tuple[str, dict[str, Any]]:
        call = read_json(said.removeprefix(self.before.rstrip()).removesuffix(self.behind).strip())
        if not isinstance(call, dict):
            raise NoCall("The call is no JSON object.")
        name = _known(call.get("name"), tools)
        other = next((key for key in call if key not in ("name", self.member)), None)
        if other is not None:
            raise NoCall(f"The call of {name} has a member {quoted(other)}, which no call has.")
        arguments = call.get(self.member)
        if not isinstance(arguments, dict):
            raise NoCall(f"The {self.member} of the call of {name} are no JSON object.")
        return name, arguments

    def _head(self, name: str) -> str:
        return f'{self.before}{{"name": "{name}", "{self.member}": '


_END = "\n</parameter>"
_CLOSING = "\n</function>\n</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>")
_NOTES = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
     "$comment", "$schema", "$id", "$defs", "definitions")
)  # fmt: skip
_NAMING = frozenset(("type", "properties", "required", "additionalProperties"))
_TEXT = frozenset(("type", "enum", "const", "minLength", "maxLength"))


@dataclass(frozen=True, slots=True)
class TagForm:
    """A tag for the function and one for each parameter: text as it is, or JSON where the
    parameter is anything but text.
    """

    marks: Marks
    several: bool

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        tags = "".join(
            f"\n<parameter={key}>\n{value if isinstance(value, str) else written_json(value)}{_END}"
            for key, value in arguments.items()
        )
        return f"{self.marks.opening}\n<function={name}>{tags}{_CLOSING}"

    def parts(self, tool: Tool) -> tuple[Part, ...]:
        properties, needed = _properties(tool)
        parts: list[Part] = [f"{self.marks.opening}\n<function={tool.name}>"]
        for key, schema in properties.items():
            tag = f"\n<parameter={key}>"
            value: tuple[Part, ...] = (f"{tag}\n", Value(_rooted(schema, tool)), _END)
            if _is_text(schema):
                value = (tag, Words(schema, "\n", _END, (_CLOSING,)))
            parts += value if key in needed else [Maybe(value)]
        return (*parts, _CLOSING)

    def read(self, said: str, tools: Mapping[str, Tool]) -> tuple[str, dict[str, Any]]:
        body = said.removeprefix(self.marks.opening).removesuffix(self.marks.closing)
        opened = _FUNCTION.match(body)
        if opened is None:
            raise NoCall("The call does not begin with <function=NAME>.")
        name = _known(opened[1], tools)
        properties = tools[name].parameters.get("properties", {})
        arguments: dict[str, Any] = {}
        at = opened.end()
        while body[at:].strip():
            tag = _PARAMETER.match(body, at)
            end = -1 if tag is None else body.find(_END, tag.end())
            if tag is None or end < 0 or body[tag.end()] != "\n":
                raise NoCall(f"The call of {name} has something else than parameters, each closed.")
            if tag[1] not in properties or tag[1] in arguments:
                why = "more than once" if tag[1] in arguments else "which it does not have"
                raise NoCall(f"The call of {name} gives {quoted(tag[1])}, {why}.")
            value = body[tag.end() + 1 : end]
            arguments[tag[1]] = value if _is_text(properties[tag[1]]) else read_json(value)
            at = end + len(_END)
        return name, arguments


HERMES = JsonForm(
    Marks("<tool_call>", "\n</tool_call>"), "<tool_call>\n", "arguments", "\n</tool_call>", True
)
LLAMA = JsonForm(Marks('{"name": "', first=True), "", "parameters", "", False)
TAGS = TagForm(Marks("<tool_call>", _CLOSING), True)
FORMS: tuple[ToolForm, ...] = (HERMES, TAGS, LLAMA)


def _known(name: Any, tools: Mapping[str, Tool]) -> str:
    if not isinstance(name, str):
        raise NoCall("The call has no name of a tool.")
    if name not in tools:
        offered = ", ".join(tools) or "none was offered"
        raise NoCall(f"The call is of {quoted(name)}, which is no tool: {offered}.")
    return name


def _properties(tool: Tool) -> tuple[Mapping[str, Any], Sequence[str]]:
    """The parameters that a tag is made for, and which of them are needed."""
    schema = tool.parameters
    refused = next((key for key in schema if key not in _NOTES | _NAMING), None)
    properties, needed = schema.get("properties", {}), schema.get("required", ())
    odd = next((key for key in properties if not key or ">" in key or "\n" in key), None)
    lacking = next((key for key in needed if key not in properties), None)
    for what, why in (
        (refused, "all of them together cannot be held to"),
        (odd, "a tag cannot name"),
        (lacking, "they require and do not describe"),
    ):
        if what is not None:
            raise SettingsError(
                f"The parameters of tool {tool.name} have {what!r}, which {why} "
                "in the form in which this model writes calls.",
                "Describe them by properties and required alone.",
            )
    return properties, needed


def _rooted(schema: Any, tool: Tool) -> Mapping[str, Any]:
    """A parameter's schema with the definitions it may refer to."""
    whole = {} if schema is True else schema
    shared = ("$defs", "definitions")
    held: dict[str, Any] = {k: tool.parameters[k] for k in shared if k in tool.parameters}
    return {**held, **whole} if isinstance(whole, dict) else whole


def _is_text(schema: Any) -> bool:
    """Whether it is a string and no more than its length, or the very strings, are asked of it."""
    if not isinstance(schema, dict) or schema.keys() - _TEXT - _NOTES:
        return False
    words = [schema["const"]] if "const" in schema else schema.get("enum", ())
    if any(not isinstance(word, str) for word in words):
        return False
    fenced = [f"\n{word}" for word in words]
    if any(mark in word for word in fenced for mark in (_END, _CLOSING)):
        return False
    return schema.get("type", "string" if words else None) == "string"
