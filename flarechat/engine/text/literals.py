"""Literals of tokens that only a template may say, in texts of others that it is given.

Owns the stand-ins: a template sees one private-use character in place of each such literal, and in
what it made of the texts they become plain text again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from flarechat.engine.text.tokenizer import Tokenizer

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class Literals:
    """The literals in the texts of JSON values: those of control tokens, and in what is `guarded`
    those `words` that are tokens which make text, such as the marks of calls. `spare` are
    characters that are in none of the texts.
    """

    def __init__(self, tokenizer: Tokenizer, values: Any, words: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        held = list(_texts(values))
        self.spare = _unused(frozenset("".join(held)))
        pieces = (piece for text in held for piece in tokenizer.split_control(text))
        found = dict.fromkeys(piece for piece, control in pieces if control is not None)
        self._marks = dict(zip(found, self.spare, strict=False))
        said = (word for word in words if any(word in text for text in held))
        tokens = [word for word in said if tokenizer.id_of(word) is not None]
        tokens = [word for word in tokens if word not in tokenizer.control]
        self._words = dict(zip(tokens, self.spare, strict=False))
        self._broken = {mark: word for word, mark in self._words.items()}
        self._back = {ord(mark): literal for literal, mark in self._marks.items()}
        self._back |= {ord(mark): word for mark, word in self._broken.items()}

    def hide(self, value: Any, *, guarded: bool = False) -> Any:
        """A text, or every text in a JSON value, with stand-ins for the literals."""
        if isinstance(value, str):
            return "".join(self._hidden(value, guarded))
        if isinstance(value, dict):
            hidden = ((key, self.hide(part, guarded=guarded)) for key, part in value.items())
            return {self.hide(key, guarded=guarded): part for key, part in hidden}
        if isinstance(value, (list, tuple)):
            return [self.hide(part, guarded=guarded) for part in value]
        return value

    def shown(self, text: str) -> str:
        """The text with the literals in their places."""
        return text.translate(self._back)

    def encode(self, text: str) -> list[int]:
        """Ids of what a template made: its own control tokens, and all else as plain text. Without
        stand-ins the text is encoded in one go, with the ids any other implementation gives it.
        """
        if not self._back:
            return self._tokenizer.encode(text)
        ids: list[int] = []
        for piece, control in self._tokenizer.split_control(text):
            ids += self._encoded(piece) if control is None else [control]
        return ids

    def _hidden(self, text: str, guarded: bool) -> Iterator[str]:
        for piece, control in self._tokenizer.split_control(text):
            if control is None and guarded:
                for word, mark in self._words.items():
                    piece = piece.replace(word, mark)
            yield piece if control is None else self._marks[piece]

    def _encoded(self, piece: str) -> list[int]:
        """A word that is a token is encoded in two parts, neither of which is one."""
        encode = self._tokenizer.encode_plain
        if not self._broken:
            return encode(self.shown(piece))
        ids: list[int] = []
        for part in re.split(f"([{''.join(self._broken)}])", piece):
            word = self._broken.get(part, "")
            for text in (word[:1], word[1:]) if word else (self.shown(part),):
                ids += encode(text) if text else []
        return ids


def _texts(values: Any) -> Iterator[str]:
    """Every text in a JSON value, names of members among them."""
    pending = [values]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            pending += value


def _unused(used: frozenset[str]) -> Iterator[str]:
    return (chr(code) for block in _PRIVATE_USE for code in block if chr(code) not in used)
