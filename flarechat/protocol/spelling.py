"""How the engine is asked what tokens say, for whoever shows them: it alone has the tokenizer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """Command: say what these tokens are as text."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelled:
    """The answer, of no request: the texts of `tokens`, one each. A control token is its literal,
    a byte that is no character is written as \\xNN, and what is no token is "".
    """

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
