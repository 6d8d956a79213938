"""Nothing that a constraint lets through fails its judge, and what would is refused by name."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from flarechat.engine.grammar import Vocabulary, compile_constraint
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


@pytest.mark.parametrize("schema, answer", SILENT)
def test_what_the_library_alone_lets_through_is_not_legal(
    schema: str, answer: str, vocabulary: Vocabulary
) -> None:
    matcher = compile_constraint(Constraint(kind="json-schema", text=schema), vocabulary).matcher()
    tokens = vocabulary.encoded(answer.encode())

    assert not matcher.fits(tokens)
    assert matcher.legal(tokens) < len(tokens)
