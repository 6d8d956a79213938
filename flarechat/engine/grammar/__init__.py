"""Grammar: constraints that an answer satisfies, token by token.

Owns what a constraint means: its text is compiled strictly, or refused in one sentence, and then
followed by a matcher that knows which tokens are legal. Knows no tensor; llguidance is imported
when the first constraint is compiled.
"""

from __future__ import annotations

from flarechat.engine.grammar.compiled import Grammar, compile_constraint
from flarechat.engine.grammar.judge import GrammarJudge
from flarechat.engine.grammar.matcher import Matcher
from flarechat.engine.grammar.vocabulary import Vocabulary

__all__ = ["Grammar", "GrammarJudge", "Matcher", "Vocabulary", "compile_constraint"]
