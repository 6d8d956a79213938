"""Reads a text that is, or is becoming, JSON: laid out over lines, and how far it is right.

Owns the layout, the place where it ends or goes wrong, and the words for both. What was written
stays as it was written: numbers, escapes, the order of names, a name that comes twice. Knows no
schema, no widget and no colour.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

MOST = 1 << 16
_INDENTED = 20
_LONGEST_EXPONENT = 2
_TOKEN = re.compile(
    r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
    r"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}\[\],:]"
)
_BLANK = re.compile(r"[ \t\r\n]*")
_OPEN_TEXT = re.compile(
    r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*(?:\\(?:u[0-9a-fA-F]{0,3})?)?'
)
_OPEN_NUMBER = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?(?:(?<=\d)[eE][+-]?)?)?")
_BEGINNING = re.compile(r'\s*\{\s*(?:["}]|$)')
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")
# What may come, as it is said, by the state that the reader is in.
_WANTED = {
    "value": "a value",
    "first": "a value or ]",
    "name": "a name in quotes",
    "first name": "a name in quotes or }",
    "colon": "a colon",
    "more": "a comma or ]",
    "more names": "a comma or }",
    "end": "nothing more",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a text: line and column, both from 1, and the whole line."""

    line: int
    column: int
    text: str

    @classmethod
    def at(cls, text: str, offset: int) -> Place:
        """The place of a character."""
        start = text.rfind("\n", 0, offset) + 1
        line = text[start:].split("\n", 1)[0]
        return cls(text.count("\n", 0, offset) + 1, offset - start + 1, line)


@dataclass(frozen=True, slots=True)
class Reading:
    """A text as JSON. `pretty` is what of it is right, over lines. `state` says in words where it
    ends. Unless it is `whole`, `fault` says what is missing or wrong at `place`; `broken` tells the
    wrong from what has only not come yet.
    """

    pretty: str
    state: str
    whole: bool = False
    broken: bool = False
    fault: str = ""
    place: Place | None = None


def begins(text: str) -> bool:
    """Whether a text begins as a JSON object does, which hardly any other does."""
    return len(text) <= MOST and _BEGINNING.match(text) is not None


@lru_cache(maxsize=8)
def read(text: str) -> Reading:
    """Read a text of MOST characters at most; of a longer one, its beginning."""
    reader = _Reader(text[:MOST])
    return reader.reading(reader.run())


class _Reader:
    """Goes over one text token by token, once."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._out: list[str] = []
        self._want = "value"
        # A level is [its closing mark, the name or the number of what stands in it].
        self._levels: list[tuple[str, str | int]] = []

    def run(self) -> str:
        """Read as far as it is right; why it goes no further: end, partial or broken."""
        while True:
            self._at = _match(_BLANK, self._text, self._at).end()
            if self._at == len(self._text):
                return "end"
            found = _TOKEN.match(self._text, self._at)
            token = found[0] if found else ""
            near_end = self._at + len(token) + _LONGEST_EXPONENT >= len(self._text)
            if (not token or near_end) and self._unfinished(self._text[self._at :]):
                return "partial"
            if not token or not self._take(token):
                return "broken"
            self._at += len(token)

    def _unfinished(self, rest: str) -> bool:
        """Whether the rest of the text is the beginning of one token that would fit."""
        value, name = self._want in ("value", "first"), self._want in ("name", "first name")
        if rest.startswith('"'):
            closed = _TOKEN.match(rest)
            return not closed and (value or name) and _OPEN_TEXT.fullmatch(rest) is not None
        if not rest or not value:
            return False
        if rest[0] in "-0123456789":
            return rest[-1] in "-+.eE" and _OPEN_NUMBER.fullmatch(rest) is not None
        return any(word.startswith(rest) and word != rest for word in ("true", "false", "null"))

    def _take(self, token: str) -> bool:
        """Take one token, if it fits."""
        want = self._want
        if token in "}]":
            return self._close(token)
        if token in ",:":
            if token == ":" and want == "colon":
                self._out.append(": ")
                self._want = "value"
            elif token == "," and want.startswith("more"):
                self._out.append(",")
                self._want = "name" if want == "more names" else "value"
                self._count()
            else:
                return False
            return True
        if want in ("name", "first name"):
            if token[0] != '"':
                return False
            self._levels[-1] = ("}", token[1:-1])
            self._line()
            self._out.append(token)
            self._want = "colon"
            return True
        if want not in ("value", "first"):
            return False
        if self._levels and self._levels[-1][0] == "]":
            self._line()
        self._out.append(token)
        if token in "{[":
            self._levels.append(("}", "") if token == "{" else ("]", 0))
            self._want = "first name" if token == "{" else "first"
        else:
            self._after_value()
        return True

    def _close(self, token: str) -> bool:
        empty = self._want in ("first", "first name")
        if not self._levels or self._levels[-1][0] != token:
            return False
        if not empty and not self._want.startswith("more"):
            return False
        self._levels.pop()
        if not empty:
            self._line()
        self._out.append(token)
        self._after_value()
        return True

    def _after_value(self) -> None:
        closing = self._levels[-1][0] if self._levels else ""
        self._want = {"}": "more names", "]": "more", "": "end"}[closing]

    def _count(self) -> None:
        closing, at = self._levels[-1]
        if isinstance(at, int):
            self._levels[-1] = (closing, at + 1)

    def _line(self) -> None:
        self._out.append("\n" + "  " * min(len(self._levels), _INDENTED))

    def reading(self, why: str) -> Reading:
        """What was read, given why it went no further."""
        if why == "end" and self._want == "end":
            return Reading("".join(self._out), f"whole: {self._kind()}", whole=True)
        where, rest = self._where(), self._text[self._at :]
        if why == "broken":
            fault, at = self._fault(rest)
            place = Place.at(self._text, at)
            return Reading("".join(self._out), f"broken {where}", False, True, fault, place)
        if rest:
            state = f"inside {self._open(rest)} {where}"
            if self._want != "value" or (self._levels and self._levels[-1][0] == "]"):
                self._line()
        else:
            state = f"{_WANTED[self._want]} is to come {where}"
        pretty, place = "".join(self._out) + rest, Place.at(self._text, len(self._text))
        return Reading(pretty, state, fault=f"it ends here: {state}", place=place)

    def _fault(self, rest: str) -> tuple[str, int]:
        """What is wrong, and at which character."""
        wants_text = self._want in ("value", "first", "name", "first name")
        if wants_text and not _TOKEN.match(rest) and (open_text := _OPEN_TEXT.match(rest)):
            at = open_text.end()
            return f"{rest[at : at + 1]!r} cannot stand so in a text", self._at + at
        return f"{_WANTED[self._want]} was expected, not {rest[:1]!r}", self._at

    def _open(self, rest: str) -> str:
        """What the unfinished token at the end is."""
        if rest[0] == '"':
            return "a name" if "name" in self._want else "a text"
        return "a number" if rest[0] in "-0123456789" else "a word"

    def _kind(self) -> str:
        first = self._text.lstrip(" \t\r\n")[:1]
        return {"{": "an object", "[": "a list", '"': "a text"}.get(first, "a value")

    def _where(self) -> str:
        """The path to where the reader is, as in $.people[2].name."""
        steps = [at for _, at in self._levels]
        if self._want in ("name", "first name", "more names"):
            steps.pop()
        return "at $" + "".join(map(_step, steps))


def _step(at: str | int) -> str:
    if isinstance(at, int):
        return f"[{at}]"
    return f".{at}" if _PLAIN_NAME.fullmatch(at) else f'["{at}"]'


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    assert found is not None, "a pattern that matches nothing too"
    return found
