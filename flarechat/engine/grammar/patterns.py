r"""Regular expressions as JSON schema writes them (ECMA-262), in the library's dialect.

Owns what a pattern means. Where readers differ, as in whether \d takes digits of every script, a
pattern takes what all of them take. Whatever has no such meaning is refused: look-around,
back-references, flags, anchors inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_NAMED = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\x0c", "v": r"\x0b", "0": r"\x00"}
_SPACES = r" \t\n\r\x0c\x0b\u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}"
_NARROW = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACES, ".": r"\n"}
_WIDE = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{N}_",
    "s": _SPACES + r"\u{feff}\u{85}\x1c-\x1f",
    ".": r"\n\r\u{2028}\u{2029}",
}
_QUANTIFIER = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\??")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})")
_PAIR = re.compile(r"u([Dd][89ABab][0-9A-Fa-f]{2})\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"[pP]\{[A-Za-z_=]+\}")
_NAME = re.compile(r"\(\?<[A-Za-z_]\w*>")


class PatternError(Exception):
    """Why a pattern cannot be enforced, in words that fit behind a colon."""


def searched(pattern: str) -> str:
    """A pattern that a text has somewhere inside, anchors as they stand."""
    return _Reader(pattern).read()


def agreed(pattern: str) -> bool:
    """Whether all readers find the pattern in the same texts."""
    return pattern == ".*" or searched(pattern) == _Reader(pattern, narrow=False).read()


def matched(pattern: str) -> str:
    """A pattern that a whole text has; anchors at the ends of alternatives say nothing then."""
    return _Reader(pattern, whole=True).read()


class _Reader:
    """Reads one pattern from left to right and says it again in the other dialect.

    It takes what all readers take (`narrow`), or what any does.
    """

    def __init__(self, pattern: str, *, narrow: bool = True, whole: bool = False) -> None:
        self._text, self._at, self._depth, self._whole = pattern, 0, 0, whole
        self._inside, self._outside = (_NARROW, _WIDE) if narrow else (_WIDE, _NARROW)

    def read(self) -> str:
        said = ""
        atom = False
        while self._at < len(self._text):
            quantifier = _QUANTIFIER.match(self._text, self._at)
            if quantifier:
                if not atom:
                    raise PatternError(f"{quantifier[0]} repeats nothing")
                said, atom, self._at = said + quantifier[0], False, quantifier.end()
                continue
            piece, atom = self._piece()
            said += piece
        if self._depth:
            raise PatternError("a group is not closed")
        return said

    def _piece(self) -> tuple[str, bool]:
        """The next piece, and whether it can be repeated."""
        character = self._text[self._at]
        special: dict[str, Callable[[], tuple[str, bool]]] = {
            "(": self._open, ")": self._close, "[": self._class, "\\": self._escape,
            "^": self._anchor, "$": self._anchor,
        }  # fmt: skip
        if character in special:
            return special[character]()
        self._at += 1
        if character == ".":
            return f"[^{self._outside['.']}]", True
        if character == "|":
            return "|", False
        if character == "{":
            raise PatternError(r"{ is neither a number of times nor written \{")
        return _literal(character), True

    def _open(self) -> tuple[str, bool]:
        self._depth += 1
        if self._text.startswith("(?:", self._at):
            self._at += 3
        elif named := _NAME.match(self._text, self._at):
            self._at = named.end()
        elif self._text.startswith("(?", self._at):
            raise PatternError(
                f"{self._text[self._at : self._at + 4]} is no group that matches text"
            )
        else:
            self._at += 1
        return "(?:", False

    def _close(self) -> tuple[str, bool]:
        if not self._depth:
            raise PatternError(") closes no group")
        self._depth -= 1
        self._at += 1
        return ")", True

    def _anchor(self) -> tuple[str, bool]:
        anchor, before = self._text[self._at], self._text[: self._at]
        self._at += 1
        ahead = self._text[self._at :]
        if not self._whole:
            return anchor, False
        at_end = not before or before.endswith("|") if anchor == "^" else ahead[:1] in ("", "|")
        if self._depth or not at_end:
            raise PatternError(f"{anchor} stands inside, and the whole text is matched anyway")
        return "", False

    def _escape(self) -> tuple[str, bool]:
        kind = self._text[self._at + 1 : self._at + 2]
        if kind.lower() in ("d", "w", "s") and kind:
            self._at += 2
            if kind.islower():
                return f"[{self._inside[kind]}]", True
            return f"[^{self._outside[kind.lower()]}]", True
        return self._character_escape(), True

    def _character_escape(self) -> str:
        """A backslash and what belongs to it, as a character or a Unicode property."""
        start = self._at + 1
        kind = self._text[start : start + 1]
        if pair := _PAIR.match(self._text, start):
            self._at = pair.end()
            halves = bytes.fromhex(pair[1] + pair[2])
            return _literal(halves.decode("utf-16-be"))
        if code := _HEX.match(self._text, start):
            self._at = code.end()
            return _coded(int(next(filter(None, code.groups())), 16))
        if prop := _PROPERTY.match(self._text, start):
            self._at = prop.end()
            return "\\" + prop[0]
        digit_follows = self._text[start + 1 : start + 2].isdigit()
        if kind in _NAMED and not (kind == "0" and digit_follows):
            self._at += 2
            return _NAMED[kind]
        if not kind or kind.isalnum():
            raise PatternError(f"\\{kind} is not known or says nothing about one character")
        self._at += 2
        return _literal(kind)

    def _class(self) -> tuple[str, bool]:
        """Characters in brackets. What a negated class leaves out is what any reader would."""
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        if self._text.startswith("]", self._at):
            raise PatternError("] stands first in brackets, where readers differ")
        items: list[str] = []
        while not self._text.startswith("]", self._at):
            items.append(self._item(negated))
        self._at += 1
        return f"[{'^' if negated else ''}{''.join(items)}]", True

    def _item(self, negated: bool) -> str:
        kind = self._text[self._at : self._at + 2].lower()
        if kind in (r"\d", r"\w", r"\s"):
            return self._set(negated)
        first = self._member()
        if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
            self._at += 1
            if self._text[self._at : self._at + 2].lower() in (r"\d", r"\w", r"\s"):
                raise PatternError("a range in brackets ends with no character")
            return f"{first}-{self._member()}"
        return first

    def _set(self, negated: bool) -> str:
        kind = self._text[self._at + 1]
        self._at += 2
        takes, leaves = self._inside, self._outside
        if negated:
            takes, leaves = leaves, takes
        return takes[kind] if kind.islower() else f"[^{leaves[kind.lower()]}]"

    def _member(self) -> str:
        character = self._text[self._at : self._at + 1]
        if not character:
            raise PatternError("brackets are not closed")
        if character == "\\":
            if self._text.startswith(r"\b", self._at):
                self._at += 2
                return r"\x08"
            return self._character_escape()
        self._at += 1
        return _literal(character)


def _coded(code: int) -> str:
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise PatternError(f"U+{code:04X} is no character")
    return f"\\u{{{code:x}}}"


def _literal(character: str) -> str:
    """The character itself: letters and digits as they are, all else by its number."""
    return character if character.isascii() and character.isalnum() else _coded(ord(character))
