"""Grammars of tools: text stays free, calls are held to their tools' schemas and can be read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from flarechat.engine.grammar import Grammar, Vocabulary
from flarechat.engine.grammar.toolcalls import compile_tools, grammar_of
from flarechat.engine.text.callforms import FORMS, HERMES, LLAMA, TAGS
from flarechat.engine.text.calls import ToolForm, read_calls
from flarechat.engine.text.channels import ChannelRouter
from flarechat.errors import GrammarError, SettingsError
from flarechat.protocol import Tool
from tests.engine.grammar.walks import walk

SHORT = {"type": "string", "maxLength": 12}
FLAG = {"type": "boolean"}
LOOK = Tool(
    name="look",
    description="Look something up",
    parameters={"type": "object", "properties": {"at": SHORT}, "required": ["at"]},
)
# Its name begins with another's, and its parameters are of every kind.
LOOKED = Tool(
    name="look2",
    parameters={
        "properties": {
            "unit": {"enum": ["C", "F", "a\nb", '"<'], "description": "<tool_call>"},
            "code": {"type": "string", "pattern": "^[a-c]{2,3}$"},
            "text": {"type": "string", "minLength": 2, "maxLength": 30},
            "days": {"type": "integer", "minimum": 1, "maximum": 12},
            "part": {"type": "object", "properties": {"on": FLAG}, "additionalProperties": False},
            "list": {"$ref": "#/$defs/list"},
            "maybe": {"anyOf": [SHORT, {"type": "null"}]},
            "same": {"const": "é🦙"},
        },
        "required": ["unit", "text"],
        "$defs": {"list": {"type": "array", "items": {"enum": [1, "x"]}, "maxItems": 2}},
    },
)
NOW = Tool(name="now")
TOOLS = (LOOK, LOOKED, NOW)
LOOKS = {"unit": "a\nb", "text": "xy", "days": 12, "part": {"on": True}, "list": [1, "x"]}

_made: dict[tuple[int, str], Grammar] = {}


def grammar(form: ToolForm, vocabulary: Vocabulary, choice: str = "auto") -> Grammar:
    key = FORMS.index(form), choice
    if key not in _made:
        made = compile_tools(form, TOOLS, choice, vocabulary)
        assert made is not None
        _made[key] = made
    return _made[key]


def takes(grammar: Grammar, text: str, *, behind: bool = False) -> bool:
    """Whether an answer may be this text and end there."""
    matcher = grammar.matcher(behind=behind)
    tokens = grammar.vocabulary.tokenizer.encode_plain(text)
    if matcher.legal(tokens) < len(tokens):
        return False
    matcher.advance(tokens)
    return matcher.accepting


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "a < b, <tool_cal",
        "<",
        "<tool_call",
        "</tool_call>",
        '{"city": 1}',
        "{}",
        "é\n",
    ],
)
def test_text_stays_free(vocabulary: Vocabulary, form: ToolForm, text: str) -> None:
    assert takes(grammar(form, vocabulary), text)
    assert takes(grammar(form, vocabulary), text, behind=True)
    for choice in ("required", "look"):
        assert not takes(grammar(form, vocabulary, choice), text)


@pytest.mark.parametrize("form", FORMS)
def test_a_call_may_stand_alone_or_behind_text(vocabulary: Vocabulary, form: ToolForm) -> None:
    for call in (form.write("look", {"at": "sea"}), form.write("now", {})):
        assert takes(grammar(form, vocabulary), call)
        assert takes(grammar(form, vocabulary), f"\n\n{call}", behind=True)
        assert takes(grammar(form, vocabulary, "required"), call)
        assert takes(grammar(form, vocabulary, "required"), f"\n\n{call}", behind=True)
        behind = f"I look.\n\n{call}" + f"\n{call}" * form.several
        assert takes(grammar(form, vocabulary), behind)
        assert 2 * form.several == len(read_calls(form, behind, TOOLS, "r"))
        assert not takes(grammar(form, vocabulary, "required"), f"I look.\n{call}")
        assert not takes(grammar(form, vocabulary), f"{call}\nThat was it.")
        assert not takes(grammar(form, vocabulary), call[:-1])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("before", ["", "\n", " " * 9, "\x1c\t"])
@pytest.mark.parametrize("behind", ["", " ", "x", '\n{"name": "later"', "</tool_call>"])
def test_text_with_an_opening_mark_is_no_text(
    vocabulary: Vocabulary, form: ToolForm, before: str, behind: str
) -> None:
    opened = f"{before}{form.marks.opening}{behind}"

    assert not takes(grammar(form, vocabulary), opened)
    assert not takes(grammar(form, vocabulary), opened, behind=True)
    assert form.marks.first == takes(grammar(form, vocabulary), f"As such: {opened}")


@pytest.mark.parametrize("form", FORMS)
def test_a_name_asks_for_one_call_of_it(vocabulary: Vocabulary, form: ToolForm) -> None:
    look, now = form.write("look", {"at": "sea"}), form.write("now", {})

    assert takes(grammar(form, vocabulary, "look"), look)
    assert not takes(grammar(form, vocabulary, "look"), now)
    assert not takes(grammar(form, vocabulary, "look"), f"{look}\n{look}")
    assert form.several == takes(grammar(form, vocabulary, "required"), f"{look}\n{now}\n{look}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "arguments", "legal"),
    [
        ("look", {"at": ""}, True),
        ("look", {"at": "<tool_call>"}, True),
        ("look", {"at": "x" * 13}, False),
        ("look", {}, False),
        ("look", {"at": "x", "days": 3}, False),
        ("look", {"unit": "C", "text": "ab"}, False),
        ("look2", {"unit": "C", "text": "ab"}, True),
        ("look2", {"unit": '"<', "text": '"b<'}, True),
        ("look2", {"unit": "C", "text": "a</parameter>\n</tool_call>"}, True),
        ("look2", {"unit": "K", "text": "ab"}, False),
        ("look2", {"unit": "C", "text": "a"}, False),
        ("look2", {"unit": "C", "text": "ab", "days": 13}, False),
        ("look2", {"unit": "C", "text": "ab", "maybe": None}, True),
        ("look2", {"unit": "C", "text": "ab", "same": "é🦙"}, True),
        ("look2", {"unit": "C", "text": "ab", "same": "é"}, False),
        ("look2", LOOKS, True),
        ("look2", {**LOOKS, "list": [1, 1, 1]}, False),
        ("look2", {**LOOKS, "part": {"off": True}}, False),
        ("now", {}, True),
        ("now", {"at": "x"}, False),
        ("later", {}, False),
    ],
)  # fmt: skip
def test_arguments_are_held_to_the_schema_of_their_own_tool(
    vocabulary: Vocabulary, form: ToolForm, name: str, arguments: dict[str, Any], legal: bool
) -> None:
    assert legal == takes(grammar(form, vocabulary), form.write(name, arguments))


def test_no_argument_between_tags_can_close_them(vocabulary: Vocabulary) -> None:
    for text in ("a\n</parameter>b", "\n</function>\n</tool_call>", "</function>\n</tool_call>"):
        call = TAGS.write("look2", {"unit": "C", "text": text})
        assert not takes(grammar(TAGS, vocabulary), call)
    near = TAGS.write("look2", {"unit": "C", "text": "\n</function>\n</tool_cal"})
    assert takes(grammar(TAGS, vocabulary), near)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", ["required", "look2"])
def test_every_call_that_is_legal_can_be_read_and_fits_its_schema(
    vocabulary: Vocabulary, form: ToolForm, choice: str
) -> None:
    read: dict[str, int] = {}
    letters = b'<>/\n" abc{}\\parmetfuncio_lk2='
    for number in range(24):
        tokens = walk(grammar(form, vocabulary, choice).matcher(), vocabulary,
                      random.Random(number), letters, limit=400)  # fmt: skip
        assert tokens is not None
        for name in judged(form, vocabulary.tokenizer.decode(tokens)):
            read[name] = read.get(name, 0) + 1
    assert ({"look2"} if choice == "look2" else {"look", "look2", "now"}) == read.keys()


def test_text_that_resembles_calls_is_text_or_a_call(vocabulary: Vocabulary) -> None:
    found: list[int] = []
    for form, opening in ((HERMES, "<tool_call>"), (TAGS, "<tool_call>"), (LLAMA, '{"name": "')):
        for number in range(20):
            matcher, rng = grammar(form, vocabulary).matcher(), random.Random(number)
            begun = vocabulary.tokenizer.encode_plain(opening[: rng.randrange(len(opening))])
            matcher.advance(begun)
            tokens = walk(matcher, vocabulary, rng, opening.encode(), limit=300)
            if tokens is not None:
                text = vocabulary.tokenizer.decode([*begun, *tokens])
                found.append(len(judged(form, text)))
                assert found[-1] or opening not in (text if form.several else text[: len(opening)])
    assert min(found) == 0 and len(found) > 40


def judged(form: ToolForm, text: str) -> Sequence[str]:
    """The tools that the calls in a text are of; each call must be one, and fit."""
    called = read_calls(form, text, TOOLS, "r")
    router = ChannelRouter(tool=form.marks)
    router.push(text)
    router.flush()
    assert router.calls == [event.call.text for event in called if event.call]
    names = []
    for event in called:
        assert event.call is not None, (event.error, text)
        tool = next(tool for tool in TOOLS if tool.name == event.call.name)
        schema = {"type": "object", **tool.parameters}
        jsonschema.Draft202012Validator(schema).validate(event.call.arguments)
        names.append(tool.name)
    return names


@pytest.mark.parametrize("form", FORMS)
def test_the_beginning_of_a_call_is_certain(vocabulary: Vocabulary, form: ToolForm) -> None:
    matcher = grammar(form, vocabulary, "look").matcher()
    forced = vocabulary.tokenizer.decode(matcher.forced(200))
    call = form.write("look", {"at": "X"})

    assert call.partition("X")[0].startswith(forced)
    assert len(forced) >= len(call.partition("X")[0]) - 3


def test_without_tools_or_with_none_of_them_there_is_no_grammar(vocabulary: Vocabulary) -> None:
    assert grammar_of(HERMES, TOOLS, "none") is grammar_of(HERMES, (), "auto") is None
    assert compile_tools(HERMES, TOOLS, "none", vocabulary) is None


@pytest.mark.parametrize(
    ("form", "schema", "words"),
    [
        (HERMES, {"a": {"type": "string", "format": "idn-email"}}, "Tool odd: .*format"),
        (HERMES, {"a": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, "Tool odd: .*oneOf"),
        (HERMES, {"a": {"$ref": "http://x/y"}}, "Tool odd: .*ref"),
        (TAGS, {"a": {"type": "array", "uniqueItems": True}}, "Tool odd: .*uniqueItems"),
        (TAGS, {"a": {"type": "string", "minLength": -1}}, "Tool odd: .*minLength"),
        (TAGS, {"a": {"type": "string", "enum": ["x"], "minLength": 2}}, "Tool odd: "),
        (TAGS, {"a": False}, "Tool odd: "),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_told_with_its_tool(
    vocabulary: Vocabulary, form: ToolForm, schema: dict[str, Any], words: str
) -> None:
    odd = Tool(name="odd", parameters={"properties": schema})
    with pytest.raises((GrammarError, SettingsError), match=f"(?s){words}") as caught:
        compile_tools(form, (LOOK, odd), "auto", vocabulary)

    assert caught.value.hint
