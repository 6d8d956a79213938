"""What is legal at a place: masks, drafts, forced runs; by brute force over the vocabulary."""

from __future__ import annotations

import json
import random

import pytest

from flarechat.engine.grammar import Matcher, Vocabulary, compile_constraint
from flarechat.protocol import Constraint
from tests.engine.grammar.conftest import EOS, SPARE
from tests.engine.grammar.schemas import CASES, SHORT, listed
from tests.engine.grammar.walks import bits, walk

PERSON = listed("hello", "name", hello=SHORT, name={"enum": ["the", "then", 12]})


def matcher_of(vocabulary: Vocabulary, schema: object) -> Matcher:
    text = json.dumps(schema)
    return compile_constraint(Constraint(kind="json-schema", text=text), vocabulary).matcher()


def behind(matcher: Matcher, vocabulary: Vocabulary, text: str) -> Matcher:
    matcher.advance(vocabulary.encoded(text.encode()))
    return matcher


@pytest.mark.parametrize("case", CASES[::6], ids=lambda case: case.name)
def test_a_token_is_allowed_exactly_where_its_bit_is_set(
    case: object, vocabulary: Vocabulary
) -> None:
    matcher = compile_constraint(case.constraint, vocabulary).matcher()  # type: ignore[attr-defined]
    tokens = walk(matcher.copy(), vocabulary, random.Random(5), b'"{}[],: 01a') or []

    for token in tokens[:12]:
        legal = bits(matcher.mask())
        assert legal == [n for n in range(-1, vocabulary.columns + 9) if matcher.allows(n)]
        matcher.advance((token,))


def test_a_mask_has_a_bit_for_every_column_and_none_for_one_without_a_token(
    vocabulary: Vocabulary,
) -> None:
    mask = matcher_of(vocabulary, True).mask()
    spare = range(vocabulary.columns - SPARE, vocabulary.columns)

    assert (vocabulary.columns + 7) // 8 == len(mask)
    assert set() == set(spare).intersection(bits(mask))


def test_control_tokens_are_never_legal_but_the_end_where_the_text_is_whole(
    vocabulary: Vocabulary,
) -> None:
    matcher = matcher_of(vocabulary, {"type": "integer"})
    control = set(vocabulary.tokenizer.control.values())

    assert set() == control.intersection(bits(matcher.mask()))
    behind(matcher, vocabulary, "12")
    assert {EOS} == control.intersection(bits(matcher.mask()))
    assert ("may end here", True, False) == (matcher.state, matcher.accepting, matcher.stopped)
    matcher.advance((EOS,))
    assert ("whole", True) == (matcher.state, matcher.stopped)


def test_a_text_that_nothing_can_follow_is_whole(vocabulary: Vocabulary) -> None:
    matcher = behind(matcher_of(vocabulary, listed("a", a={})), vocabulary, '{"a": 1')

    assert ("goes on", False) == (matcher.state, matcher.stopped)
    behind(matcher, vocabulary, "}")
    assert ("whole", True, []) == (matcher.state, matcher.stopped, matcher.forced(7))
    assert not any(map(matcher.allows, range(vocabulary.columns)))


def test_forced_tokens_are_the_text_as_it_is_encoded_and_each_alone_is_legal(
    vocabulary: Vocabulary,
) -> None:
    matcher = matcher_of(vocabulary, PERSON)
    run = matcher.forced(99)

    assert vocabulary.tokenizer.encode_plain('{"hello": "') == run
    assert 100 < len(bits(after(matcher, run).mask()))
    for token in run:
        assert [token] == bits(matcher.mask())
        matcher.advance((token,))


def after(matcher: Matcher, tokens: list[int]) -> Matcher:
    ahead = matcher.copy()
    ahead.advance(tokens)
    return ahead


def test_of_a_forced_run_as_much_is_given_as_was_asked_for(vocabulary: Vocabulary) -> None:
    matcher = matcher_of(vocabulary, PERSON)
    whole = matcher.forced(99)

    assert [whole[:n] for n in range(4)] == [matcher.forced(n) for n in range(4)]


def test_another_cut_of_forced_bytes_is_not_legal_though_it_fits(vocabulary: Vocabulary) -> None:
    matcher = behind(matcher_of(vocabulary, PERSON), vocabulary, '{"')
    letters = [vocabulary.tokenizer.id_of(letter) for letter in "hello"]
    hello = vocabulary.tokenizer.id_of("hello")

    assert matcher.fits(letters) and matcher.fits([hello])
    assert (0, 1) == (matcher.legal(letters), matcher.legal([hello]))


def test_where_two_encodings_are_open_the_last_token_is_not_forced(vocabulary: Vocabulary) -> None:
    matcher = behind(matcher_of(vocabulary, PERSON), vocabulary, '{"hello": "", "name": "')
    the = vocabulary.tokenizer.encode_plain("the")
    run = matcher.forced(9)

    assert run == the[: len(run)]
    assert 1 < len(bits(after(matcher, [*run, *the[len(run) :]]).mask()))


def test_drafts_are_cut_to_their_legal_beginning_and_nothing_is_changed(
    vocabulary: Vocabulary,
) -> None:
    matcher = matcher_of(vocabulary, {"type": "array", "items": {"type": "integer"}})
    draft = vocabulary.encoded(b"[1, 23, x")

    before = matcher.mask()
    assert len(draft) - 1 == matcher.legal(draft)
    assert 0 == matcher.legal([EOS])
    assert before == matcher.mask()


def test_what_follows_the_end_is_not_legal(vocabulary: Vocabulary) -> None:
    matcher = matcher_of(vocabulary, {"const": 1})
    draft = [*vocabulary.encoded(b"1"), EOS, EOS]

    assert 1 == matcher.legal(draft)
    assert 2 == matcher_of(vocabulary, {"type": "integer"}).legal(draft)


def test_a_copy_goes_its_own_way(vocabulary: Vocabulary) -> None:
    matcher = matcher_of(vocabulary, {"enum": ["a", "b"]})
    other = behind(matcher.copy(), vocabulary, '"a"')

    assert (True, False) == (other.stopped, matcher.stopped)
    assert matcher.legal(vocabulary.encoded(b'"b"')) == 3


def test_going_on_behind_what_does_not_fit_is_a_fault_of_the_program(
    vocabulary: Vocabulary,
) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        matcher_of(vocabulary, {"const": 1}).advance((5,))
