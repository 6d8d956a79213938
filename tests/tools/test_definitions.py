"""The file of tools: both forms, both spellings, and every fault a sentence with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flarechat.errors import SettingsError
from flarechat.tools.definitions import load

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Tell it.", "parameters": SCHEMA}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tools.json"


def test_both_spellings_and_both_forms_say_the_same(file: Path, tmp_path: Path) -> None:
    whole = {"type": "function", "function": {**WEATHER, "strict": True}, "command": ["cat"]}
    flat = {**WEATHER, "command": ["cat"], "timeout": 2, "output_limit": 9}
    file.write_text(json.dumps([whole]))
    other = tmp_path / "b.json"
    other.write_text(json.dumps({"tools": [flat]}))
    toml = tmp_path / "c.toml"
    toml.write_text(
        '[[tools]]\nname = "weather"\ndescription = "Tell it."\ncommand = ["cat"]\n'
        'timeout = 2.0\noutput_limit = 9\n[tools.parameters]\ntype = "object"\n'
        'required = ["city"]\nproperties.city.type = "string"\n'
    )

    [first], [second], [third] = load([str(file)]), load([str(other)]), load([str(toml)])

    assert first.tool == second.tool == third.tool
    assert second == third
    assert (("cat",), 30.0, 16384) == (first.command, first.timeout, first.output_limit)
    assert (2.0, 9, False) == (second.timeout, second.output_limit, second.by_hand)


def test_a_tool_without_a_command_is_answered_by_hand(file: Path) -> None:
    file.write_text(json.dumps([WEATHER]))

    [tool] = load([str(file)])

    assert tool.by_hand


def test_built_in_tools_are_had_by_name_and_from_a_file(file: Path) -> None:
    file.write_text(json.dumps([{"builtin": "clock", "name": "now", "description": "It."}]))

    found = load(["calculator, clock", str(file)])

    assert ["calculator", "clock", "now"] == [one.tool.name for one in found]
    assert "It." == found[2].tool.description
    assert not any(one.by_hand for one in found)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("x", "tool 1: it is no object"),
        ({}, "tool 1: name is missing"),
        ({"name": 3}, "tool 1: name is 3, not a text"),
        ({"name": "a b"}, r"tool 1 \(a b\): 'a b' cannot be the name of a tool"),
        ({"name": "auto"}, "'auto' cannot be the name"),
        ({"name": "w", "descripton": ""}, r"\(w\): descripton is unknown. Did you mean descrip"),
        ({"name": "w", "xyz": ""}, "xyz is unknown. There are name, "),
        ({"function": {"name": "w", "timeout": 3}}, r"\(w\): function.timeout is unknown"),
        ({"function": 3}, "function is no object"),
        ({"name": "w", "type": "retrieval"}, "type is 'retrieval'"),
        ({"name": "w", "description": None}, "description is None, not a text"),
        ({"name": "w", "parameters": []}, r"parameters is \[\], not an object"),
        ({"name": "w", "parameters": {"type": "array"}}, "are of type 'array'"),
        ({"name": "w", "command": "ls -l"}, "command is 'ls -l', not a list of texts"),
        ({"name": "w", "command": []}, r"command is \[\], not a list"),
        ({"name": "w", "command": ["ls", "a\ud800"]}, "command is .*, not a list of texts"),
        ({"name": "w", "command": ["cat", 1]}, "not a list of texts"),
        ({"name": "w", "command": ["cat", "a\0"]}, "not a list of texts"),
        ({"name": "w", "command": ["no-such-program-x"]}, "no program 'no-such-program-x'"),
        ({"name": "w", "command": ["cat"], "timeout": 0}, "timeout is 0"),
        ({"name": "w", "command": ["cat"], "timeout": 601}, "timeout is 601"),
        ({"name": "w", "command": ["cat"], "timeout": True}, "timeout is True"),
        ({"name": "w", "command": ["cat"], "output_limit": 0}, "output_limit is 0"),
        ({"name": "w", "command": ["cat"], "output_limit": 1.5}, "output_limit is 1.5"),
        ({"name": "w", "command": ["cat"], "output_limit": 2**21}, "output_limit is 2097152"),
        ({"name": "w", "timeout": 3}, "timeout is given, but no command"),
        ({"name": "w", "folder": "."}, "folder is for read_file alone"),
        ({"builtin": "shell"}, "builtin is 'shell'"),
        ({"builtin": ["clock"]}, "builtin is"),
        ({"builtin": "clock", "command": ["cat"]}, "command is given for the builtin clock"),
        ({"builtin": "clock", "folder": "."}, "folder is given for the builtin clock"),
        ({"builtin": "read_file"}, "folder is missing"),
        ({"builtin": "read_file", "folder": "nowhere"}, "nowhere' is no folder"),
    ],
)
def test_a_fault_of_a_tool_is_a_sentence_with_its_place(
    file: Path, entry: Any, sentence: str
) -> None:
    file.write_text(json.dumps([entry]))

    with pytest.raises(SettingsError, match=sentence) as caught:
        load([str(file)])

    assert caught.value.message.startswith(f"{file}, tool 1")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not valid JSON: .*line 1 column 2"),
        ("[NaN]", "NaN is no number"),
        ('[{"name": "a", "name": "b"}]', "an object has 'name' twice"),
        ("{}", "has no list of tools"),
        ('{"tools": [], "more": 1}', "has no list of tools"),
        ("[]", "names no tool"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "9" * 5000 + "]", "is not valid JSON"),
        ('[{"name": "w"}, {"name": "w"}]', "Two tools of .* are named 'w'"),
    ],
)
def test_a_fault_of_the_file_is_a_sentence(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)

    with pytest.raises(SettingsError, match=sentence):
        load([str(file)])


def test_faults_of_other_sources_are_sentences(tmp_path: Path) -> None:
    toml = tmp_path / "t.toml"
    toml.write_text("[[tools]\n")
    when = tmp_path / "when.toml"
    when.write_text('[[tools]]\nname = "w"\nparameters = {default = 1979-05-27}\n')
    raw = tmp_path / "raw.json"
    raw.write_bytes(b"\xff")
    for source, sentence in (
        (str(toml), "is not valid TOML: .*line 1"),
        (str(when), "cannot be written as JSON"),
        (str(raw), "not UTF-8 at byte 0"),
        (str(tmp_path / "none.json"), "No such file"),
        (str(tmp_path), "cannot be read"),
        ("calculater", "cannot be read"),
        ("read_file", "does not say which folder"),
        ("clock,clock", "are named 'clock'"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            load([source])
    with pytest.raises(SettingsError, match="Two tools of clock and clock,calculator"):
        load(["clock", "clock,calculator"])
