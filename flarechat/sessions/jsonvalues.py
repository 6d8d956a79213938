"""JSON values of a file, one after the other, so that a file of many is never read as a whole.

Owns where a value ends: several stand behind one another, on lines of their own or not, and those
of an array at the top come one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

_PIECE = 1 << 20
# The longest escape and more: an error this near the end may be one of text not read yet.
_NEAR = 32


def values(file: TextIO) -> Iterator[tuple[int, Any]]:
    """Every value with the number of the array at the top that it is in, 0 for one in none.

    Raises ValueError, with what is wrong and at which character, where the text is no JSON.
    """
    reader = _Reader(file)
    arrays = 0
    while reader.peek():
        if reader.peek() != "[":
            yield 0, reader.value()
            continue
        arrays += 1
        reader.take("[")
        if reader.peek() != "]":
            yield arrays, reader.value()
            while reader.peek() == ",":
                reader.take(",")
                yield arrays, reader.value()
        reader.take("]")


class _Reader:
    """The text from the next value on, as much of it as was needed."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._text, self._at, self._before = file, "", 0, 0
        self._decoder = json.JSONDecoder()

    def peek(self) -> str:
        """The next character that is no blank; empty at the end."""
        while True:
            while self._at < len(self._text):
                if not self._text[self._at].isspace():
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def take(self, character: str) -> None:
        """Go past this character."""
        if self.peek() != character:
            raise self._wrong(f"a {character} is missing", self._at)
        self._at += 1

    def value(self) -> Any:
        """The next value, whole."""
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                open_text = error.msg.startswith("Unterminated string")
                if (open_text or error.pos > len(self._text) - _NEAR) and self._more():
                    continue
                raise self._wrong(error.msg, error.pos) from None
            except RecursionError:
                raise self._wrong("it is nested too deep", self._at) from None
            # A number may go on behind what was read.
            whole = isinstance(value, dict | list) or end < len(self._text) - _NEAR
            if whole or not self._more():
                self._at = end
                return value

    def _more(self) -> bool:
        """Read as much again as is not done with, so that a long value is not tried often; whether
        there was any more.
        """
        rest = self._text[self._at :]
        piece = self._file.read(max(_PIECE, len(rest)))
        if not piece:
            return False
        self._before += self._at
        self._text, self._at = rest + piece, 0
        return True

    def _wrong(self, what: str, at: int) -> ValueError:
        return ValueError(f"{what} at character {self._before + at + 1}")
