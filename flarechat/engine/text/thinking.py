"""The marks of thinking: whether a model has them, and whether a prompt opens it.

Thinking stands between `<think>` and `</think>` before the answer, once; `channels` tells it from
the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from flarechat.engine.text.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"


def thinks(tokenizer: Tokenizer) -> bool:
    """Whether the model has both marks as tokens that make text."""
    return _marks(tokenizer) is not None


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
