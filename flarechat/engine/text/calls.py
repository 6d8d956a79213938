"""Calls of tools in what a model says: where each begins and ends, and what is none.

Owns what a form of calls is; the forms themselves lie in `callforms`. Whatever is no call of a tool
that was offered becomes a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flarechat.engine.text.channels import Marks
from flarechat.engine.text.strictjson import NoJson, written_json
from flarechat.protocol import Called, Tool, ToolCall

_LONGEST_QUOTE = 40


class NoCall(ValueError):
    """What was written is no call: a sentence that says why."""


@dataclass(frozen=True, slots=True)
class Value:
    """A place in a call for JSON that fits `schema`."""

    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Words:
    """A place in a call for text as it is: `before`, a string that fits `schema`, and `end`. What
    stands before the end has neither that nor any of `never` in it.
    """

    schema: Mapping[str, Any]
    before: str
    end: str
    never: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Maybe:
    """A part that a call may leave out."""

    parts: tuple[Part, ...]


# What a call is made of, in its order; a string stands for itself.
Part = str | Value | Words | Maybe


class ToolForm(Protocol):
    """How calls are written: `marks` around each, one or `several` in a row."""

    @property
    def marks(self) -> Marks: ...

    @property
    def several(self) -> bool: ...

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call as templates write it, marks included."""

    def parts(self, tool: Tool) -> tuple[Part, ...]:
        """What a call of the tool is made of; the first begins with the opening mark. Raises
        SettingsError for parameters that this form cannot hold to their schema.
        """

    def read(self, said: str, tools: Mapping[str, Tool]) -> tuple[str, dict[str, Any]]:
        """Name and arguments of a call, marks included. Raises NoCall or NoJson."""


def read_calls(
    form: ToolForm, text: str, tools: Sequence[Tool], request: str, first: int = 1
) -> list[Called]:
    """The calls in an answer's text, or in one call of it: each a call, or the sentence why not.

    Total: any text gives a list, empty where nothing opens a call. The calls' ids are the request's
    with their number, which begins at `first`.
    """
    known = {tool.name: tool for tool in tools}
    called = []
    for number, (said, whole) in enumerate(_calls(form.marks, text), start=first):
        try:
            if not whole:
                raise NoCall("The call was cut off before its end.")
            name, arguments = form.read(said, known)
            lacking = [key for key in known[name].parameters.get("required", ())
                       if key not in arguments]  # fmt: skip
            if lacking:
                raise NoCall(f"The call of {name} lacks {', '.join(map(quoted, lacking))}.")
        except (NoCall, NoJson) as error:
            called.append(Called(request=request, error=str(error), text=said))
        else:
            call = ToolCall(id=f"{request}-{number}", name=name, arguments=arguments, text=said)
            called.append(Called(request=request, call=call))
    return called


def _calls(marks: Marks, text: str) -> Iterator[tuple[str, bool]]:
    """Calls as they were said, marks included, and whether each is whole: of one that is not
    closed, all that follows is part.
    """
    at = 0
    if marks.first:
        at = len(text) - len(text.lstrip())
        if not text.startswith(marks.opening, at):
            return
    while (start := text.find(marks.opening, at)) >= 0:
        begun = start + len(marks.opening)
        end = text.find(marks.closing, begun) if marks.closing else len(text)
        at = len(text) if end < 0 else end + len(marks.closing)
        yield text[start:at], end >= 0


def instructions(definitions: Sequence[Mapping[str, Any]], form: ToolForm) -> str:
    """What a model is told of tools in its system prompt where its template cannot. No description
    can spell a mark: in JSON, < may be written otherwise.
    """
    lines = [written_json(definition).replace("<", "\\u003c") for definition in definitions]
    example = form.write("NAME", {"PARAMETER": "VALUE"})
    return "\n".join(
        (
            "# Tools",
            "",
            "These functions can be called:",
            "<tools>",
            *lines,
            "</tools>",
            "",
            "To call one, answer with its name and its arguments in this form:",
            example,
        )
    )


def quoted(text: str) -> str:
    """What a model wrote, as it may stand in a sentence."""
    short = text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"
    return repr(short)
