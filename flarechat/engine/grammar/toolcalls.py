"""The union of text and calls of tools as one grammar, each call held to its own tool's schema.

Owns where text ends and a call begins: text is everything that has no opening mark in it, so what
merely resembles one stays text. Behind calls nothing follows but calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flarechat.engine.grammar.compiled import SECONDS, Grammar, compile_constraint, within
from flarechat.engine.grammar.schema import prepared
from flarechat.engine.grammar.vocabulary import Vocabulary
from flarechat.engine.text.calls import Maybe, Part, ToolForm, Value, Words
from flarechat.errors import GrammarError
from flarechat.protocol import Constraint, Tool

# Blank space as Python's str.strip has it, which is how an opening mark at the front is found.
_BLANK = r"[\s\x1c-\x1f]*"
_ANY = "(?s:.*)"


def compile_tools(
    form: ToolForm, tools: Sequence[Tool], choice: str, vocabulary: Vocabulary
) -> Grammar | None:
    """The grammar of an answer that may call these tools, or None where it may call none.

    `choice` is one of Request's. A GrammarError names the tool whose parameters cannot be enforced.
    """
    text = grammar_of(form, tools, choice)
    if text is None:
        return None
    constraint = Constraint(kind="grammar", text=text)
    vocabulary.library  # noqa: B018  its time is not the grammar's
    try:
        return within(
            SECONDS,
            lambda: Grammar(constraint, {"lark_grammar": text}, vocabulary),
            "grammar of tools",
        )
    except GrammarError:
        for tool in tools:
            with _named(tool):
                schema = json.dumps(tool.schema)
                compile_constraint(Constraint(kind="json-schema", text=schema), vocabulary)
        raise


def grammar_of(form: ToolForm, tools: Sequence[Tool], choice: str = "auto") -> str | None:
    """The grammar in Lark's form: text or calls (auto), calls (required), or one call of the tool
    `choice` names. None where nothing may be called, for then an answer is any text.
    """
    if choice == "none" or not tools:
        return None
    named = [tool for tool in tools if choice in ("auto", "required", tool.name)]
    rules = _Rules()
    calls = [rules.call(form, tool) for tool in named]
    opening, one = form.marks.opening, choice not in ("auto", "required")
    again = "" if one or not form.several else f" ({_quoted(chr(10) + opening)} call)*"
    if choice != "auto":
        start = f"{_quoted(opening)} call{again}"
    elif form.marks.first:
        rules.add("TEXT", f"/{_ANY}/ & ~/{_BLANK}{_escaped(opening)}{_ANY}/")
        # One terminal with the blanks, as text and call are told apart behind them alone.
        rules.add("OPENING", f"/[ \\t\\r\\n]{{0,4}}{_escaped(opening)}/")
        start = f"TEXT | OPENING call{again}"
    else:
        rules.add("TEXT", f"/{_ANY}/ & ~{_holding(opening)}")
        rules.add("head[lazy]", f"/{_ANY}{_escaped(opening)}/")
        start = f"TEXT | head call{again}"
    return "\n".join(("%llguidance {}", f"start: {start}", f"call: {' | '.join(calls)}", *rules))


class _Rules:
    """The rules of a grammar as they are made."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def add(self, name: str, body: str) -> str:
        self._lines.append(f"{name}: {body}")
        return name

    def call(self, form: ToolForm, tool: Tool) -> str:
        """The rule of a call behind its opening mark."""
        first, *others = form.parts(tool)
        assert isinstance(first, str), "a call begins with its opening mark"
        with _named(tool):
            parts = self._sequence([first.removeprefix(form.marks.opening), *others])
        return self.add(f"call{len(self._lines)}", parts)

    def _sequence(self, parts: Sequence[Part]) -> str:
        return " ".join(self._part(part) for part in _joined(parts))

    def _part(self, part: Part) -> str:
        if isinstance(part, str):
            return _quoted(part)
        if isinstance(part, Maybe):
            return f"({self._sequence(part.parts)})?"
        if isinstance(part, Value):
            return f"%json {json.dumps(prepared(json.dumps(part.schema)).form())}"
        return self.add(f"WORDS{len(self._lines)}", _words(part))


def _words(part: Words) -> str:
    """A terminal: the string and the end behind it."""
    schema = part.schema
    prepared(json.dumps(schema))  # for its refusals
    words = [schema["const"]] if "const" in schema else schema.get("enum")
    if words is not None:
        fitting = [word for word in words if _fits(word, schema)]
        if not fitting:
            raise GrammarError("No string satisfies it.", "Mend its enum.")
        return " | ".join(_quoted(f"{part.before}{word}{part.end}") for word in fitting)
    least = int(schema.get("minLength", 0))
    most = int(schema["maxLength"]) if "maxLength" in schema else ""
    text = f"{_quoted(part.before)} /(?s:.{{{least},{most}}})/"
    never = " & ".join(f"~{_holding(mark)}" for mark in (part.end, *part.never))
    return f"(({text}) & {never}) {_quoted(part.end)}"


def _fits(word: str, schema: Mapping[str, Any]) -> bool:
    return bool(schema.get("minLength", 0) <= len(word) <= schema.get("maxLength", len(word)))


def _joined(parts: Sequence[Part]) -> Iterator[Part]:
    """Neighbouring strings as one."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text


def _holding(mark: str) -> str:
    return f"/{_ANY}{_escaped(mark)}{_ANY}/"


def _escaped(text: str) -> str:
    """Text inside an expression between slashes, on one line."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n").replace("\\ ", " ")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@contextmanager
def _named(tool: Tool) -> Iterator[None]:
    """Have a GrammarError say which tool it is about."""
    try:
        yield
    except GrammarError as error:
        raise GrammarError(f"Tool {tool.name}: {error.message}", error.hint) from error
