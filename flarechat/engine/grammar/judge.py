"""Judges an answer's tokens by a constraint, beginning behind the thinking.

Owns where the constraint begins: at once, or behind the closing mark of thinking, which may come in
the middle of a round or of a token. Before it, nothing is illegal but to end. An answer ends with
the token that nothing can follow, or with an end-of-sequence token where the text is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from flarechat.engine.grammar.compiled import Grammar
from flarechat.engine.grammar.matcher import Matcher
from flarechat.engine.judge import Verdict
from flarechat.engine.text.thinking import CLOSE, OPEN, ends_in_thinking, thinks
from flarechat.errors import ConstraintError, GrammarError
from flarechat.protocol import ConstraintResult

_CLOSE = CLOSE.encode()
OPENING, THINKING, INSIDE = "opening", "thinking", "inside"


class GrammarJudge:
    """The judge of one answer to `prompt`, which has none of the answer in it.

    With `thinking` a model that has the marks may open its thinking by the first token.
    """

    def __init__(self, grammar: Grammar, prompt: Sequence[int], *, thinking: bool = True) -> None:
        self.grammar = grammar
        tokenizer = grammar.vocabulary.tokenizer
        phase = INSIDE
        if ends_in_thinking(tokenizer, prompt):
            phase = THINKING
        elif thinking and thinks(tokenizer):
            phase = OPENING
        self._place = _Place(grammar, phase)
        self._ahead: tuple[tuple[int, ...], _Place] = ((), self._place)

    @property
    def state(self) -> str:
        """Where the answer is, in words: thinking, goes on, may end here, whole."""
        if self._place.phase == THINKING:
            return THINKING
        return self._place.matcher.state

    @property
    def active(self) -> bool:
        """Whether the constraint has begun."""
        return self._place.phase == INSIDE

    @property
    def ended(self) -> bool:
        """Whether nothing can follow what is final of the answer."""
        return self._place.ended

    def begin(self, tokens: Sequence[int]) -> None:
        """Go behind what stands of an answer that goes on; GrammarError if it does not fit."""
        if not self._place.follow(tokens):
            raise GrammarError(
                "What stands of the answer does not satisfy the constraint.",
                "Answer again from the beginning, or go on without the constraint.",
            )

    def judge(self, tokens: Sequence[int]) -> Verdict:
        """What becomes of these tokens, behind those that were kept. Changes nothing."""
        place, kept = self._place.copy(), 0
        try:
            for token in tokens:
                if not place.allows(token):
                    return Verdict(kept, place.mask())
                place.advance(token)
                kept += 1
                if place.ended:
                    break
        except ConstraintError as error:
            return Verdict(kept, fault=error.message)
        self._ahead = tuple(tokens[:kept]), place
        return Verdict(kept, ended=place.ended)

    def kept(self, tokens: Sequence[int]) -> bool:
        """These tokens, which were judged, are final; whether the answer has ended with the last of
        them. ConstraintError where they cannot be followed."""
        seen, place = self._ahead
        if seen == tuple(tokens) and seen:
            self._place = place
        else:
            for token in tokens:
                self._place.advance(token)
        self._ahead = (), self._place
        return self._place.ended

    def legal(self, tokens: Sequence[int]) -> int:
        """How many of these drafts, from the first, are legal one behind the other. Where the
        constraint cannot be followed along them, so many as were: they were not said."""
        place, count = self._place.copy(), 0
        with suppress(ConstraintError):
            for token in tokens:
                if place.ended or not place.allows(token):
                    break
                place.advance(token)
                count += 1
        return count

    def forced(self, limit: int) -> list[int]:
        """Up to `limit` tokens that come next for certain."""
        return self._place.matcher.forced(limit) if self.active else []

    def result(self, *, forced: int = 0, removed: int = 0, redrawn: int = 0) -> ConstraintResult:
        """What became of the constraint, with the counts of the answer's rounds."""
        satisfied = self._place.phase != THINKING and self._place.whole
        error = "" if satisfied else _UNFINISHED[self._place.phase]
        return ConstraintResult(
            kind=self.grammar.constraint.kind, satisfied=satisfied, forced=forced,
            removed=removed, redrawn=redrawn, error=error,
        )  # fmt: skip


_UNFINISHED = {
    OPENING: "The answer ended before it began.",
    THINKING: "The answer ended while the model was thinking.",
    INSIDE: "The answer ended before the constraint was satisfied.",
}


class _Place:
    """A place in an answer: its phase, the matcher, and of thinking the bytes that may begin the
    closing mark."""

    def __init__(self, grammar: Grammar, phase: str) -> None:
        self._grammar, self.phase, self._held = grammar, phase, b""
        self.matcher: Matcher = grammar.matcher(behind=phase == THINKING)
        opening = grammar.vocabulary.tokenizer.id_of(OPEN)
        self._opening = opening if phase == OPENING else None

    def copy(self) -> _Place:
        other = object.__new__(_Place)
        other._grammar, other.phase, other._held = self._grammar, self.phase, self._held
        other._opening = self._opening
        other.matcher = self.matcher.copy()
        return other

    @property
    def ended(self) -> bool:
        return self.phase == INSIDE and self.matcher.stopped

    @property
    def whole(self) -> bool:
        return self.matcher.accepting or self.matcher.stopped

    def allows(self, token: int) -> bool:
        if self.phase == THINKING:
            return self._thinkable(token)
        return token == self._opening or self.matcher.allows(token)

    def advance(self, token: int) -> None:
        """Go on behind a legal token."""
        if self.phase != THINKING:
            self.phase = THINKING if token == self._opening else INSIDE
            self._opening = None
            if self.phase == INSIDE:
                self.matcher.advance((token,))
            else:
                self.matcher = self._grammar.matcher(behind=True)
            return
        thought, mark, rest = self._with(token)
        if mark:
            self.phase, self._held = INSIDE, b""
            self.matcher.advance(self._grammar.vocabulary.encoded(rest))
        else:
            self._held = thought[1 - len(_CLOSE) :]

    def follow(self, tokens: Sequence[int]) -> bool:
        """Go on behind tokens that stand; False where their bytes do not fit."""
        for token in tokens:
            if self.ended and token in self._grammar.vocabulary.eos:
                continue
            if self.phase == THINKING or token == self._opening:
                fits = self.allows(token)
            else:
                fits = self.matcher.fits((token,))
            if not fits:
                return False
            self.advance(token)
        return True

    def mask(self) -> bytes:
        bits = bytearray(self.matcher.mask()) if self.phase != THINKING else self._thinkable_bits()
        if self._opening is not None:
            bits[self._opening // 8] |= 1 << self._opening % 8
        return bytes(bits)

    def _with(self, token: int) -> tuple[bytes, bytes, bytes]:
        said = self._grammar.vocabulary.tokenizer.token_bytes(token)
        return (self._held + said).partition(_CLOSE)

    def _thinkable(self, token: int) -> bool:
        """Whether thinking may go on with a token: any but an end, or an end of thinking whose
        rest does not fit the constraint."""
        vocabulary = self._grammar.vocabulary
        if token in vocabulary.eos or not 0 <= token < vocabulary.columns:
            return False
        if not vocabulary.tokenizer.token_bytes(token):
            return vocabulary.tokenizer.is_control(token)
        _, mark, rest = self._with(token)
        return not mark or not rest or self.matcher.fits(vocabulary.encoded(rest))

    def _thinkable_bits(self) -> bytearray:
        bits = bytearray(self._grammar.vocabulary.thinkable)
        for token in self._grammar.vocabulary.closing:
            if not self._thinkable(token):
                bits[token // 8] &= ~(1 << token % 8)
        return bits
