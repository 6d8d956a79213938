"""Limits of what is compiled, and what is said of regular expressions and grammars."""

from __future__ import annotations

import json
import random
import time

import pytest

from flarechat.engine.grammar import Vocabulary, compile_constraint, compiled
from flarechat.errors import GrammarError, SettingsError
from flarechat.protocol import Constraint
from tests.engine.grammar.walks import walk


def refused(vocabulary: Vocabulary, kind: str, text: str) -> str:
    with pytest.raises(GrammarError) as error:
        compile_constraint(Constraint(kind=kind, text=text), vocabulary)
    assert "\n" not in error.value.message
    return error.value.message


def test_three_thousand_levels_are_a_sentence_at_once(vocabulary: Vocabulary) -> None:
    vocabulary.library  # noqa: B018  made before the clock runs
    levels = 3000
    text = '{"items":' * levels + "{}" + "}" * levels
    began = time.perf_counter()
    message = refused(vocabulary, "json-schema", text)

    assert "3,001 levels" in message
    assert time.perf_counter() - began < 1


def test_what_is_nested_as_deep_as_is_taken_compiles(vocabulary: Vocabulary) -> None:
    text = '{"items":' * 89 + "{}" + "}" * 89

    compile_constraint(Constraint(kind="json-schema", text=text), vocabulary)
    assert "91 levels" in refused(vocabulary, "json-schema", '{"items":' * 90 + "{}" + "}" * 90)


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "not JSON"), ('{"a": 1, "a": 2}', "'a' comes twice"), ('{"minimum": NaN}', "NaN"),
        ('{"const": ' + "9" * 5000 + "}", "not JSON"), ("[" * 200, "200 levels"),
        ('{"title": "' + "x" * (1 << 18) + '"}', "characters long"),
        (json.dumps({"anyOf": [{"const": n} for n in range(5001)]}), "5,000 subschemas"),
        (json.dumps({"allOf": [{"anyOf": [{"properties": {f"a{n}": {"type": "null"}}},
                                           {"properties": {f"b{n}": {"type": "null"}}}]}
                               for n in range(18)]}), "too large"),
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_is_no_schema_or_too_large_a_one_is_a_sentence(
    text: str, words: str, vocabulary: Vocabulary
) -> None:
    assert words in refused(vocabulary, "json-schema", text)


def test_what_takes_too_long_is_given_up(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "SECONDS", 0.05)
    monkeypatch.setattr(compiled, "prepared", lambda text: time.sleep(1))

    assert "longer than 0.05 s" in refused(vocabulary, "json-schema", "{}")


def test_json_is_one_line_with_a_blank_behind_commas_and_colons(vocabulary: Vocabulary) -> None:
    schema = {"const": {"a": [1, {"b": []}], "c": {}}}
    constraint = Constraint(kind="json-schema", text=json.dumps(schema))
    tokens = walk(
        compile_constraint(constraint, vocabulary).matcher(), vocabulary, random.Random(1)
    )

    assert json.dumps(schema["const"]) == vocabulary.tokenizer.decode(tokens or ())


@pytest.mark.parametrize("text", ["(a", "(?=a)b", r"(a)\1", "a^b", "[z-a]", "a{3,2}"])
def test_a_regular_expression_that_cannot_be_enforced_is_a_sentence(
    text: str, vocabulary: Vocabulary
) -> None:
    assert "regular expression" in refused(vocabulary, "regex", text)


@pytest.mark.parametrize(
    "text, words",
    [
        ('start: "a" <|im_end|>', "<|im_end|>"), ("start: <[2]>", "<[2]>"),
        ('start: %json {"not": {}}', "%json"), ('%llguidance {}\nstart: "a"', "%llguidance"),
        ('start: "a" @other', "@other"), ('\nstart[temperature=0.5]: "a"', "line 2"),
        ("start: a\na: a", "no text satisfies it"), ("start: missing", "missing"),
        ('other: "a"', "no start rule"), ("start: (", "grammar"), ("root ::= (", "grammar"),
        ("root ::= missing", "missing"),
    ],
)  # fmt: skip
def test_a_grammar_that_reaches_past_the_text_or_says_nothing_is_a_sentence(
    text: str, words: str, vocabulary: Vocabulary
) -> None:
    assert words in refused(vocabulary, "grammar", text)


@pytest.mark.parametrize(
    "text",
    [
        '// a "%json" <x>\nstart: "<a@b>" NUMBER\nNUMBER: /[0-9]{1,3}/  # @c',
        'root ::= "<a@b>" number # %json\nnumber ::= [0-9] [0-9]? [0-9]?',
    ],
)
def test_a_grammar_is_taken_in_both_forms(text: str, vocabulary: Vocabulary) -> None:
    grammar = compile_constraint(Constraint(kind="grammar", text=text), vocabulary)
    rng = random.Random(2)

    for _ in range(5):
        answer = vocabulary.tokenizer.decode(walk(grammar.matcher(), vocabulary, rng) or ())
        assert answer.startswith("<a@b>") and answer[5:].isdigit() and len(answer) < 9


def test_a_constraint_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(SettingsError, match="json-schema, regex, grammar"):
        Constraint(kind="xml", text="")


STRINGS = {f"name{number}": {"type": "string"} for number in range(560)}


@pytest.mark.parametrize(
    ("schema", "place", "count"),
    [
        ({"properties": STRINGS}, "its root", "560"),
        ({"properties": STRINGS, "required": ["name3"]}, "its root", "556"),
        (
            {"properties": {"in": {"type": "object", "properties": STRINGS}}},
            "/properties/in",
            "560",
        ),
    ],
    ids=["all", "behind", "inside"],
)
def test_more_optional_properties_than_can_be_followed_are_refused_at_once(
    vocabulary: Vocabulary, schema: dict[str, object], place: str, count: str
) -> None:
    """The library says so only where the properties come."""
    text = json.dumps({"type": "object", "additionalProperties": False, **schema})
    message = refused(vocabulary, "json-schema", text)

    assert f"enforced at {place}: it has {count} properties in a row" in message


def test_optional_properties_between_required_ones_are_followed(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": STRINGS, "required": [*STRINGS][::2]}
    text = json.dumps({**schema, "additionalProperties": False})

    assert compile_constraint(Constraint(kind="json-schema", text=text), vocabulary)


def test_what_fails_behind_what_is_certain_is_refused_at_once(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_MANY", len(STRINGS))
    monkeypatch.setattr(compiled, "_TRIED", 0)
    text = json.dumps({"type": "object", "properties": STRINGS, "additionalProperties": False})
    message = refused(vocabulary, "json-schema", text)

    assert "cannot be enforced: it has too many alternatives at one place" in message


def test_no_place_is_said_where_not_all_were_tried(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = {"oneOf": [{"type": "string", "minLength": 1}, {"type": "string", "maxLength": 3}]}
    many = {f"deep{number}": {"properties": {"x": {}}} for number in range(9)}
    for tried, where in ((50, " at /properties/it:"), (3, " at /properties/it:"), (0, ":")):
        monkeypatch.setattr(compiled, "_TRIED", tried)
        message = refused(
            vocabulary, "json-schema", json.dumps({"properties": {**many, "it": inner}})
        )
        assert f"cannot be enforced{where}" in message
