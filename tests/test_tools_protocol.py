"""Tools in the protocol: what a definition may be, and calls over the pipe."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flarechat.errors import SettingsError
from flarechat.protocol import (
    Called,
    Message,
    Request,
    Submit,
    Tool,
    ToolCall,
    decode,
    encode,
    to_dict,
)

WEATHER = Tool(
    name="weather",
    description="Tell it",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        value = {"items": value}
    return value


def test_a_tool_is_defined_as_chat_templates_know_it() -> None:
    assert {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tell it",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    } == WEATHER.definition
    assert {"name": "now", "parameters": {"type": "object", "properties": {}}} == Tool(
        name="now"
    ).definition["function"]


@pytest.mark.parametrize(
    ("parameters", "others"),
    [
        ({}, False),
        ({"properties": {"a": {}}}, False),
        ({"properties": {}, "additionalProperties": True}, True),
        ({"properties": {}, "additionalProperties": {"type": "null"}}, {"type": "null"}),
        ({"properties": {}, "anyOf": [{}]}, None),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, None),
    ],
)
def test_a_tool_takes_no_arguments_that_it_does_not_name(
    parameters: dict[str, Any], others: Any
) -> None:
    assert others == Tool(name="f", parameters=parameters).schema.get("additionalProperties")


@pytest.mark.parametrize("name", ["", "a b", "a\n", 'a"', "x" * 65, "é", "auto", "none"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="cannot be the name of a tool"):
        Tool(name=name)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "array"}, "of type 'array'"),
        (nested(3000), "deeper than 64 levels"),
        ({"default": float("nan")}, "cannot be written as JSON"),
        ({"default": object()}, "cannot be written as JSON"),
    ],
)
def test_parameters_that_describe_no_object_are_refused(
    parameters: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        Tool(name="deep", parameters=parameters)

    assert "tool deep" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("choice", ["auto", "none", "required", "weather"])
def test_a_choice_is_a_word_or_a_tool(choice: str) -> None:
    request = Request(id="r", messages=(), tools=(WEATHER,), tool_choice=choice)

    assert (() if choice == "none" else (WEATHER,)) == request.offered


@pytest.mark.parametrize(
    ("tools", "choice", "words"),
    [
        ((WEATHER,), "wether", "--tool-choice wether is unknown"),
        ((), "required", "--tool-choice required needs tools"),
        ((WEATHER, WEATHER), "auto", "Two tools are named weather"),
    ],
)
def test_any_other_choice_is_refused(tools: tuple[Tool, ...], choice: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Request(id="r", messages=(), tools=tools, tool_choice=choice)


def test_tools_calls_and_results_pass_the_pipe_whole() -> None:
    call = ToolCall(id="r-1", name="weather", arguments={"city": ["é", {"a": None}]}, text="<c>")
    messages = (
        Message(role="assistant", content="", calls=(call,)),
        Message(role="tool", content="17 degrees", call="r-1"),
    )
    submit = Submit(request=Request(id="r", messages=messages, tools=(WEATHER,)))

    assert submit == decode(encode(submit))
    for event in (Called(request="r", call=call), Called(request="r", error="No.", text="<c>")):
        assert event == decode(encode(event))
        assert "tool_call" == to_dict(event)["event"] == json.loads(encode(event))["event"]
