"""Says what a constraint cannot be held to, before there is a model.

Owns a vocabulary of bytes, as nearly every refusal is the same whatever the tokens are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flarechat.engine.grammar.compiled import compile_constraint
from flarechat.engine.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from flarechat.protocol import Constraint


def check_constraint(constraint: Constraint) -> None:
    """Raise the GrammarError that the constraint would be refused with."""
    compile_constraint(constraint, _Bytes())


class _NoTokenizer:
    strips_first_space = False

    def id_of(self, text: str) -> None:
        """No text is a token."""


class _Bytes(Vocabulary):
    """Every byte as a token."""

    def __init__(self) -> None:
        from llguidance import LLTokenizer

        self._bytes = LLTokenizer("byte")
        nothing: Any = _NoTokenizer()
        super().__init__(nothing, self._bytes.vocab_size, (self._bytes.eos_token,))

    @property
    def library(self) -> LLTokenizer:
        return self._bytes
