"""Tokens as the library sees them: bytes, doubles, tokenizers that take a blank away."""

from __future__ import annotations

import json
from typing import Any

from flarechat.engine.grammar import Vocabulary, compile_constraint
from flarechat.engine.text.tokenizer import Tokenizer, added_token, bpe
from flarechat.protocol import Constraint
from tests.engine.grammar.walks import bits
from tests.engine.text.test_tokenizer import sentencepiece
from tests.models import tiny


def regex(vocabulary: Vocabulary, text: str) -> Any:
    return compile_constraint(Constraint(kind="regex", text=text), vocabulary)


def doubled() -> Tokenizer:
    """A byte-level tokenizer with an added token of the same bytes as one of its own."""
    table = {word: number for number, word in enumerate(tiny.vocabulary())}
    merges = [merge.split(" ") for merge in tiny.MERGES]
    added = [added_token(n, text, special=True) for n, text in enumerate(tiny.SPECIALS)]
    added += [added_token(len(table), " the", special=False)]
    return Tokenizer(json.dumps(bpe(table, merges, added, "qwen2")))


def test_it_is_made_once_when_it_is_asked_for(vocabulary: Vocabulary) -> None:
    fresh = Vocabulary(vocabulary.tokenizer, vocabulary.columns, (2, 0))

    assert fresh._library is None
    assert fresh.library is fresh.library
    assert [0, 2] == sorted(fresh.library.eos_tokens)


def test_every_end_is_legal_where_the_text_is_whole(vocabulary: Vocabulary) -> None:
    fresh = Vocabulary(vocabulary.tokenizer, vocabulary.columns, (2, 0))
    matcher = regex(fresh, "1*").matcher()

    assert [0, 2] == [token for token in bits(matcher.mask()) if token < 3]
    assert all(map(matcher.allows, (0, 2)))


def test_of_tokens_with_the_same_bytes_the_one_that_is_encoded_is_legal() -> None:
    tokenizer = doubled()
    vocabulary = Vocabulary(tokenizer, tokenizer.vocabulary, (2,))
    said = tokenizer.encode_plain(" the")
    same = [n for n in range(tokenizer.vocabulary) if tokenizer.token_bytes(n) == b" the"]
    certain, open_place = (
        regex(vocabulary, " thex").matcher(),
        regex(vocabulary, " the|x").matcher(),
    )

    assert 2 == len(same) and 1 == len(said)
    assert said == certain.forced(9)[:1]
    for matcher in (certain, open_place):
        assert said == [n for n in same if matcher.allows(n)]
        assert set(said) == set(same).intersection(bits(matcher.mask()))


def test_bytes_are_kept_where_the_tokenizer_would_compose_them() -> None:
    tokenizer = doubled()
    vocabulary = Vocabulary(tokenizer, tokenizer.vocabulary, (2,))
    text = "e\u0301 the"

    assert text != tokenizer.decode(tokenizer.encode_plain(text))
    assert text.encode() == b"".join(map(tokenizer.token_bytes, vocabulary.encoded(text.encode())))
    assert regex(vocabulary, text).matcher().fits(vocabulary.encoded(text.encode()))


def test_where_a_tokenizer_takes_a_blank_away_it_comes_first_and_only_at_the_beginning() -> None:
    tokenizer = sentencepiece()
    vocabulary = Vocabulary(tokenizer, tokenizer.vocabulary + 3, (2,))
    grammar = regex(vocabulary, "aa b")
    first = grammar.matcher().forced(9)

    assert tokenizer.encode_plain("aa")[:1] == first[:1]
    assert "aa b" == tokenizer.decode(first)
    assert b"aa b" == b"".join(map(tokenizer.token_bytes, vocabulary.encoded(b"aa b")))
    behind = grammar.matcher(behind=True)
    assert behind.fits(vocabulary.encoded(b"\n\naa b")) and behind.fits(vocabulary.encoded(b"aa b"))
    assert not behind.fits(vocabulary.encoded(b"\n\n\n\n\naa b"))
    assert [] == behind.forced(9)
