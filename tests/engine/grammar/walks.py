"""Random answers under a constraint, without a model: at each place some legal token."""

from __future__ import annotations

import random
from collections.abc import Sequence

from flarechat.engine.grammar import Matcher, Vocabulary

CLOSING = b'"]}'


def bits(mask: bytes) -> list[int]:
    """The tokens whose bits are set."""
    return [8 * at + bit for at, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]


def walk(
    matcher: Matcher, vocabulary: Vocabulary, rng: random.Random, letters: bytes = b"",
    limit: int = 60,
) -> list[int] | None:  # fmt: skip
    """Tokens of one answer, drawn from `letters` mostly; None where it finds no end.

    Behind `limit` tokens it takes what closes a text, a list or an object.
    """
    said = vocabulary.tokenizer.token_bytes
    tokens: list[int] = []
    while len(tokens) < 4 * limit:
        if matcher.stopped:
            return tokens
        legal = bits(matcher.mask())
        assert legal, "some token is legal while a text is not whole"
        ends = vocabulary.eos.intersection(legal)
        choice = [token for token in legal if token not in ends]
        if ends and (not choice or len(tokens) >= limit or rng.random() < 0.3):
            return tokens
        if len(tokens) >= limit:
            choice = [token for token in choice if said(token) in closing()] or choice
        elif letters and rng.random() < 0.9:
            choice = [token for token in choice if set(said(token)) <= set(letters)] or choice
        tokens.append(rng.choice(choice))
        matcher.advance(tokens[-1:])
    return None


def closing() -> Sequence[bytes]:
    return [CLOSING[at : at + 1] for at in range(len(CLOSING))]
