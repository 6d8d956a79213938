"""Nothing that a constraint lets through fails its judge, and what would is refused by name."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from flarechat.engine.grammar import Vocabulary, compile_constraint
from flarechat.engine.grammar.formats import FORMATS
from flarechat.errors import EXIT_USAGE, GrammarError
from flarechat.protocol import Constraint
from tests.engine.grammar.schemas import CASES, REFUSED, Case
from tests.engine.grammar.walks import walk

LETTERS = (b'{}[]",: 01.-ab', b'{}[]",: 0123.-eab\\u0061', b"")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_answer_satisfies_its_constraint(case: Case, vocabulary: Vocabulary) -> None:
    grammar = compile_constraint(case.constraint, vocabulary)
    rng = random.Random(case.name)
    walks = [walk(grammar.matcher(), vocabulary, rng, LETTERS[n % 3]) for n in range(12)]
    answers = [vocabulary.tokenizer.decode(tokens) for tokens in walks if tokens is not None]

    assert answers
    assert [] == [answer for answer in answers if not case.holds(answer)]


def test_there_are_fifty_cases() -> None:
    assert 50 == len({case.name for case in CASES})


@pytest.mark.parametrize("schema, word, place", REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_enforced_is_named_with_its_place(
    schema: Any, word: str, place: str, vocabulary: Vocabulary
) -> None:
    with pytest.raises(GrammarError) as refusal:
        compile_constraint(Constraint(kind="json-schema", text=json.dumps(schema)), vocabulary)

    message = refusal.value.message
    assert EXIT_USAGE == refusal.value.exit_code
    assert place in message.split(":")[0]
    assert word in message.partition(":")[2]
    assert "\n" not in message and message.endswith(".")


SILENT = (
    ('{"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}, '
     '"type": "object"}', '{"\\u0061": null}'),
    ('{"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": '
     '{"type": "null"}, "type": "object"}', '{"a\\ue000": null}'),
    ('{"type": "string", "format": "date"}', '"2021-02-29"'),
    ('{"type": "string", "format": "date"}', '"0000-01-01"'),
    ('{"type": "string", "format": "date-time"}', '"2020-01-01T22:15:60Z"'),
    ('{"type": "string", "format": "hostname"}', json.dumps(".".join(["a" * 60] * 5))),
    ('{"type": "string", "pattern": "^.$"}', '"\u2028"'),
    ('{"type": "string", "pattern": "^\\\\s$"}', '"\x85"'),
)  # fmt: skip


WRONG = {
    "date": "2023-02-30", "time": "24:00:00Z", "date-time": "2023-02-28 10:00:00Z",
    "duration": "P", "email": "a..b@c.d", "hostname": "a-", "ipv4": "256.1.1.1",
    "ipv6": "1::2::3", "uuid": "0f00afa0-f0aa-0afa-ffaf-00aaf001fa0", "uri": "a b",
}  # fmt: skip
RIGHT = {
    "date": "2024-02-29", "time": "23:59:59.5+02:00", "date-time": "2023-02-28T10:00:00Z",
    "duration": "P1DT2H", "email": "a.b@c.d", "hostname": "a-b.c", "ipv4": "255.1.1.0",
    "ipv6": "1::2", "uuid": "0f00afa0-f0aa-0afa-ffaf-00aaf001fa00", "uri": "http://a/b?c#d",
}  # fmt: skip


def test_every_format_takes_what_is_right_and_not_what_is_wrong(vocabulary: Vocabulary) -> None:
    assert set(FORMATS) == set(RIGHT) == set(WRONG)
    for name in FORMATS:
        schema = json.dumps({"type": "string", "format": name})
        grammar = compile_constraint(Constraint(kind="json-schema", text=schema), vocabulary)
        right, wrong = (
            grammar.matcher().fits(vocabulary.encoded(json.dumps(texts[name]).encode()))
            for texts in (RIGHT, WRONG)
        )

        assert (name, True, False) == (name, right, wrong)


@pytest.mark.parametrize("schema, answer", SILENT)
def test_what_the_library_alone_lets_through_is_not_legal(
    schema: str, answer: str, vocabulary: Vocabulary
) -> None:
    matcher = compile_constraint(Constraint(kind="json-schema", text=schema), vocabulary).matcher()
    tokens = vocabulary.encoded(answer.encode())

    assert not matcher.fits(tokens)
    assert matcher.legal(tokens) < len(tokens)
