"""Tells what a model thinks from what it answers, in text as it comes.

Owns the marks: thinking stands between `<think>` and `</think>` before the answer, once. What
comes after the answer has begun is answer, marks or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from flarechat.engine.text.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"
ANSWER, THINKING = "answer", "thinking"

Piece = tuple[str, str]


class ThinkingRouter:
    """Sends every piece of text to its channel: pairs (channel, text), each text final.

    Pushes and `flush` add up to the same text of each channel however the text was cut. The marks
    are said to nobody, nor is the blank space around thinking. `thinks` is whether the text begins
    inside thinking, as after a prompt that ends with the mark.
    """

    def __init__(self, *, thinks: bool = False) -> None:
        self._state = self._inside if thinks else self._before
        self._held = ""
        self._said = False

    def push(self, text: str) -> list[Piece]:
        """What is certain now."""
        self._held += text
        pieces: list[Piece] = []
        state = None
        while state != self._state:
            state = self._state
            pieces += state(self._held)
        return pieces

    def flush(self) -> list[Piece]:
        """The text has ended: what was held back is text, unless it is blank space around marks."""
        held, self._held = self._held, ""
        if self._state == self._inside:
            return _piece(THINKING, held.rstrip() if self._said else held.strip())
        if self._state == self._behind:
            return []
        return _piece(ANSWER, held)

    def _before(self, text: str) -> list[Piece]:
        """Nothing but blank space was said: the mark may come, or the answer begins."""
        begun = text.lstrip()
        if begun.startswith(OPEN):
            self._held, self._state = begun[len(OPEN) :], self._inside
            return []
        if OPEN.startswith(begun):
            return []
        self._held, self._state = "", self._answering
        return _piece(ANSWER, text)

    def _inside(self, text: str) -> list[Piece]:
        """Thinking goes on to the closing mark; blank space before that is held back."""
        text = text if self._said else text.lstrip()
        thought, mark, rest = text.partition(CLOSE)
        if mark:
            self._held, self._state = rest, self._behind
            return _piece(THINKING, thought.rstrip())
        sure = len(text) - _overlap(text, CLOSE)
        sure = len(text[:sure].rstrip())
        self._held = text[sure:]
        self._said = self._said or sure > 0
        return _piece(THINKING, text[:sure])

    def _behind(self, text: str) -> list[Piece]:
        """The mark was closed: the answer begins with the first character that shows."""
        text = text.lstrip()
        if not text:
            self._held = ""
            return []
        self._held, self._state = "", self._answering
        return _piece(ANSWER, text)

    def _answering(self, text: str) -> list[Piece]:
        self._held = ""
        return _piece(ANSWER, text)


def router_for(tokenizer: Tokenizer, prompt: Sequence[int]) -> ThinkingRouter | None:
    """The router of an answer to this prompt; None for a model that says no marks."""
    if _marks(tokenizer) is None:
        return None
    return ThinkingRouter(thinks=ends_in_thinking(tokenizer, prompt))


def ends_in_thinking(tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
    """Whether the mark is the last of the two behind the prompt's last control token, where the
    template opens the model's turn.
    """
    marks = _marks(tokenizer) or ()
    for token in reversed(prompt):
        if token in marks or tokenizer.is_control(token):
            return token == marks[0] if marks else False
    return False


def _marks(tokenizer: Tokenizer) -> tuple[int, int] | None:
    """The two marks as tokens, where the model has them as text."""
    opening, closing = tokenizer.id_of(OPEN), tokenizer.id_of(CLOSE)
    if opening is None or closing is None:
        return None
    control = tokenizer.is_control(opening) or tokenizer.is_control(closing)
    return None if control else (opening, closing)


def _piece(channel: str, text: str) -> list[Piece]:
    return [(channel, text)] if text else []


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins `mark`."""
    most = min(len(text), len(mark) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(mark[:n])), 0)
