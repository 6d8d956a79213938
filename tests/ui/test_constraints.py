"""What answers are held to: the picker, the commands, the panel, and answers that are JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from textual.widgets import Input, Select, Static

from flarechat.config import Settings
from flarechat.constraining import ANY_JSON
from flarechat.errors import FlarechatError
from flarechat.protocol import ConstraintResult
from flarechat.ui import constraints, jsontext
from flarechat.ui.answers import Located, json_blocks
from flarechat.ui.format import UNICODE
from flarechat.ui.screens.constraint import ConstraintScreen
from flarechat.ui.widgets import turn
from flarechat.ui.widgets.lines import HeaderState, header_text
from flarechat.ui.widgets.turn import TailView
from tests.fakes import Play, ScriptedEngine, calls, words
from tests.ui.harness import Chat, chatting, check_snapshot, played

PERSON = '{"name": "Ada Stone", "lamps": 3, "tags": [], "address": {"city": "Rome"}}'
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}}}'


def held_rounds(text: str) -> list[Play]:
    """A text in rounds that a grammar helped with."""
    pieces = [text[at : at + 5] for at in range(0, len(text), 5)]
    plays = []
    for at in range(0, len(pieces), 3):
        taken = tuple(pieces[at : at + 3])
        forced = min(at % 2 * 2, len(taken) - 1)
        plays.append(Play(taken, 4, "grammar", forced=forced, removed=1, redrawn=at == 3))
    return plays


def person_engine(text: str = PERSON, error: str = "", *, reason: str = "stop") -> ScriptedEngine:
    result = ConstraintResult(kind="json-schema", satisfied=not error, error=error)
    return ScriptedEngine([held_rounds(text)], constraint=result, reason=reason)


async def say(chat: Chat, text: str) -> None:
    """Give a command and wait for what it does aside."""
    await chat.say(text)
    await chat.app.workers.wait_for_complete()
    await chat.beat()


def written(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.write_text(text, "utf-8")
    return str(file)


@played
async def test_each_command_holds_the_next_answers_to_something(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    schema, lark = written(tmp_path, "p.json", SCHEMA), written(tmp_path, "y.lark", 'start: "y"')
    async with chatting(engine, size=(120, 36)) as chat:
        for command, label in (
            ("/json", "JSON"),
            (f"/schema {schema}", "schema p.json"),
            ("/regex [0-9]+", "regex [0-9]+"),
            (f"/grammar {lark}", "grammar y.lark"),
            ("/unconstrained", ""),
        ):
            await say(chat, command)
            assert label == chat.bridge.held and label in chat.text.splitlines()[0], command
            await chat.say("hi")
            await chat.answer()
            await say(chat, "/show info")
            assert f"held to  {label or 'nothing'}" in chat.text

        asked = [request.constraint for request in engine.requests]
        assert [ANY_JSON, SCHEMA, "[0-9]+", 'start: "y"', None] == [
            asked[0], *(held and held.text for held in asked[1:])
        ]  # fmt: skip
        assert ["grammar", "regex", "schema", "json"] == [c.form for c in chat.bridge.recent]
        await say(chat, "/json")
        await chat.press("ctrl+n")
        await chat.beat()
        assert 2 == len(chat.screen.tabs.panes) and "JSON" == chat.bridge.held
        await say(chat, "/free")
        await chat.press("f7")
        assert "JSON" == chat.bridge.held


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/schema", "The schema needs a file."),
        ("/schema /nowhere.json", "/nowhere.json cannot be read: No such file"),
        ("/schema {folder}/broken.json", "broken.json: The JSON schema is not JSON"),
        ("/schema {folder}/typo.json", "enforced at /properties/a: type is 'strin'"),
        ("/schema {folder}/binary.json", "cannot be read: it is not UTF-8 at byte 0"),
        ("/regex (", "The regular expression '(' cannot be enforced"),
        ("/grammar {folder}/bad.lark", "bad.lark: The grammar cannot be used: %json"),
        ("/grammar a\0b", "The grammar ab cannot be read: No such file"),
    ],
)
def test_what_is_wrong_is_said_at_once_and_changes_nothing(
    command: str, said: str, tmp_path: Path
) -> None:
    written(tmp_path, "broken.json", '{"type": ')
    written(tmp_path, "typo.json", '{"properties": {"a": {"type": "strin"}}}')
    written(tmp_path, "bad.lark", 'start: a\na: %json {"type": "string"}')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")

    @played
    async def run() -> None:
        async with chatting(size=(100, 30)) as chat:
            await say(chat, "/json")
            await say(chat, command.format(folder=tmp_path))
            shown = "".join(line.strip() + " " for line in chat.text.splitlines())
            assert said.replace(" ", "") in shown.replace(" ", ""), shown
            assert "JSON" == chat.bridge.held

    run()


@played
async def test_the_picker_chooses_refuses_in_the_form_and_offers_what_was_used(
    tmp_path: Path,
) -> None:
    schema, engine = written(tmp_path, "p.json", SCHEMA), ScriptedEngine()
    async with chatting(engine, size=(100, 30)) as chat:
        await chat.press("f8")
        form = chat.app.screen
        assert isinstance(form, ConstraintScreen)
        form.query_one("#form", Select).value = "regex"
        form.query_one("#source", Input).value = "("
        form.query_one("#source", Input).focus()
        await chat.press("enter")
        await chat.app.workers.wait_for_complete()
        refused = str(form.query_one("#problem", Static).visual)
        form.query_one("#source", Input).value = "a+"
        form.query_one("#tools", Input).value = "calculator"
        form.query_one("#choice", Input).value = "nobody"
        await chat.press("enter")
        await chat.app.workers.wait_for_complete()
        unknown = str(form.query_one("#problem", Static).visual)
        form.query_one("#choice", Input).value = "required"
        await chat.press("enter")
        await chat.app.workers.wait_for_complete()
        await chat.beat()

        assert "The regular expression '(' cannot be enforced" in refused
        assert "nobody is unknown" in unknown
        assert chat.app.screen is chat.screen and "regex a+" == chat.bridge.held
        assert (("calculator",), "required") == (
            chat.bridge.settings.tools, chat.bridge.settings.tool_choice,
        )  # fmt: skip
        await chat.say("hi")
        await chat.answer()
        assert () == engine.requests[0].tools

        await say(chat, f"/schema {schema}")
        await say(chat, "/free")
        await chat.say("hi")
        await chat.answer()
        assert ("calculator", "required") == (
            engine.requests[1].tools[0].name, engine.requests[1].tool_choice,
        )  # fmt: skip
        await chat.press("f8")
        chat.app.screen.query_one("#recent", Select).value = "1"
        await chat.pilot.pause()
        chat.app.screen.query_one("#source", Input).focus()
        await chat.press("enter")
        await chat.app.workers.wait_for_complete()
        await chat.beat()
        assert "regex a+" == chat.bridge.held

        await chat.press("f8", "escape")
        assert "regex a+" == chat.bridge.held


@played
async def test_the_settings_from_the_start_hold(tmp_path: Path) -> None:
    settings = Settings(theme="dark", json_schema=written(tmp_path, "p.json", SCHEMA))
    engine = ScriptedEngine()
    async with chatting(engine, settings=settings) as chat:
        await chat.app.workers.wait_for_complete()
        await chat.beat(3)
        assert "schema p.json" == chat.bridge.held
        await chat.say("hi")
        await chat.answer()
        await say(chat, "/free")
        await chat.say("hi")
        await chat.answer()
        first, second = engine.requests
        assert first.constraint and SCHEMA == first.constraint.text and second.constraint is None


@played
async def test_the_panel_says_what_holds_where_the_answer_is_and_what_came_of_it() -> None:
    async with chatting(person_engine(), size=(120, 36)) as chat:
        assert "Constraint ─" not in chat.text
        await say(chat, "/json")
        chosen = chat.text
        await chat.say("Who?")
        await chat.beat(3)
        under_way = chat.text
        await chat.answer()
        done = chat.text

        assert "from the next answer on" in chosen and "History copy" in chosen
        assert "Acceptance by depth" not in chosen
        assert "a value is to come at $.lamps" in under_way and "satisfied" not in under_way
        assert "total" in under_way and "grammar       6        4       4  67%" in under_way
        assert "whole: an object" in done and "satisfied  parses" in done
        assert "forced 4  removed 5  redrawn 1" in done
        await say(chat, "/free")
        await chat.say("And?")
        await chat.answer()
        assert "Acceptance by depth" in chat.text and "satisfied" not in chat.text


@played
async def test_an_answer_that_was_cut_off_says_where() -> None:
    cut = person_engine(PERSON[:40], "The answer ended before it was whole.", reason="length")
    async with chatting(cut, size=(120, 36)) as chat:
        await say(chat, "/json")
        await chat.say("Who?")
        await chat.answer()
        shown = chat.text

        assert "not satisfied  incomplete at 1:41" in shown
        assert "Line 1, column 41: it ends here" in shown and '  "lamps": 3,' in shown
        assert "The answer ended before it was whole." in shown
        caret = next(line for line in shown.splitlines() if line[:60].strip("│ ") == "^")
        above = shown.splitlines()[shown.splitlines().index(caret) - 1]
        assert above[:60].rstrip().endswith(PERSON[:40].rstrip()[-12:])


@played
async def test_json_is_shown_over_lines_and_copied_as_it_was_written() -> None:
    async with chatting(person_engine(), size=(100, 30)) as chat:
        await chat.say("Who?")
        await chat.beat(5)
        growing = chat.text
        await chat.answer()
        await chat.say("/copy")
        await chat.beat()

        assert '  "name": "Ada' in growing and "Line 1" not in growing
        assert '   "address": {' in chat.text and '     "city": "Rome"' in chat.text
        assert PERSON == chat.app.clipboard
        assert PERSON == chat.bridge.conversation.turns[-1].text


@played
async def test_text_with_braces_in_it_stays_text() -> None:
    engine = ScriptedEngine([words("[see below] and {this}\n\n{ok} then")])
    async with chatting(engine) as chat:
        await chat.say("Hi")
        await chat.answer()
        assert "[see below] and {this}" in chat.text and "{ok} then" in chat.text
        assert "Line 1" not in chat.text


@played
async def test_the_telemetry_screen_has_the_panel_too() -> None:
    async with chatting(person_engine()) as chat:
        await say(chat, "/json")
        await chat.say("Who?")
        await chat.answer()
        compact = chat.text
        await chat.press("ctrl+t")
        await chat.pilot.pause(0.1)

        assert "JSON forced 4 removed 5 satisfied" in compact
        assert "Constraint" in chat.text and "satisfied  parses" in chat.text


@played
async def test_the_constraint_looks_as_stored() -> None:
    for size in ((120, 36), (80, 24)):
        async with chatting(person_engine(), size=size) as chat:
            await say(chat, "/json")
            await chat.say("Who ordered what?")
            await chat.answer()
            chat.app.clear_notifications()
            await chat.beat()
            check_snapshot(f"constraint-{size[0]}x{size[1]}", chat.text)


@played
async def test_calls_are_counted_in_the_panel() -> None:
    made = calls(("c1", "calculator", {"expression": "1+1"}))
    settings = Settings(theme="dark", tools=("calculator,clock",))
    async with chatting(ScriptedEngine([made]), settings=settings, size=(120, 36)) as chat:
        await chat.app.workers.wait_for_complete()
        await chat.say("Hi")
        await chat.beat(6)
        assert "a call waits for you" in chat.text and "tools 2" in chat.text
        assert "1 call" in chat.text


def test_the_header_keeps_what_holds_as_long_as_it_can() -> None:
    state = HeaderState(
        "scripted-1m", "some-chat", used=12, context=2048, held="schema person.json"
    )
    for width in (120, 80, 60):
        shown = header_text(state, width, UNICODE)
        assert "schema pers" in shown and width == len(shown)


# Reading JSON


VALUE = {"a": [1, -2.5e10, True, None, 'x"\\\né', {"": []}, [[], [1]]], "b": {"c d": -0.0}}


def test_what_is_whole_is_laid_out_and_says_the_same() -> None:
    for value in (VALUE, [], {}, "x", 0, None, [VALUE] * 3):
        for written_as in (json.dumps(value), json.dumps(value, indent=1)):
            reading = jsontext.read(written_as)
            assert reading.whole and value == json.loads(reading.pretty)
    spelled = '{"a":1.50,"a":"\\u00e9"}'
    assert '{\n  "a": 1.50,\n  "a": "\\u00e9"\n}' == jsontext.read(spelled).pretty


def test_every_beginning_is_incomplete_and_none_is_broken() -> None:
    text = json.dumps(VALUE)
    for end in range(len(text)):
        reading = jsontext.read(text[:end])
        assert not reading.whole and not reading.broken, text[:end]
        assert reading.place == jsontext.Place(1, end + 1, text[:end])


@pytest.mark.parametrize("text", [
    '{"a" 1}', '{"a": 1 "b"}', "[1,]", '{"a": 01}', '{"a": "x\ny"}', '{"a": 1}x', "Hi",
    '{"a": "\\x"}', "[1 2]", "{1: 2}", "]", '{"a": tru}', "[+1]", "['a']", '{"a": 1,}',
])  # fmt: skip
def test_what_is_broken_is_found_where_pythons_reader_finds_it(text: str) -> None:
    reading = jsontext.read(text)
    with pytest.raises(json.JSONDecodeError) as error:
        json.loads(text)
    assert reading.broken and reading.place
    # Python names the beginning of a text, a word or a number, or the comma before a closing mark.
    at = error.value.pos
    offset = sum(len(line) + 1 for line in text.split("\n")[: reading.place.line - 1])
    assert at <= offset + reading.place.column - 1 <= at + 4, (at, reading)


def test_the_words_say_where_the_text_ends() -> None:
    for text, said in (
        ('{"a": [1, {"b c": "x', 'inside a text at $.a[1]["b c"]'),
        ('{"a": [1, 2], "b', "inside a name at $"),
        ("[[], [7, -", "inside a number at $[1][1]"),
        ('{"a": {"b": tr', "inside a word at $.a.b"),
        ('{"a": 1', "a comma or } is to come at $"),
        ("[1] 2", "broken at $"),
        ("[]", "whole: a list"),
    ):
        assert said == jsontext.read(text).state, text


def test_the_caret_stands_below_the_place_behind_wide_characters() -> None:
    *_, located = json_blocks('{"名前": "東京" ?}')
    shown, caret, *_ = (line.plain for line in located.lines(60))
    assert cell_len(shown[: shown.index("?")]) == caret.index("^")


def test_the_place_is_shown_whatever_the_width() -> None:
    text = json.dumps({"key": "x" * 200}) + " ?" + "y" * 50
    for width in (20, 40, 100):
        *_, located = json_blocks(text)
        assert isinstance(located, Located)
        shown, caret, *said = (line.plain for line in located.lines(width))
        assert "?" == shown[caret.index("^")] and len(shown) <= width
        assert "column 213" in " ".join(said)


def test_reading_is_linear() -> None:
    for text in ("[" * 60_000, '{"a": "' + '\\"' * 30_000, "[" + "1," * 30_000, "[-" * 30_000):
        assert len(jsontext.read(text).pretty) < 50 * len(text)


def test_settings_give_up_what_the_chat_took() -> None:
    found, free = constraints.taken_from(Settings(json_answer=True, temperature=0.5))
    assert found and "JSON" == found.label and Settings(temperature=0.5) == free
    assert (None, free) == constraints.taken_from(free)
    with pytest.raises(FlarechatError):
        constraints.taken_from(dataclasses.replace(free, regex="("))


def test_long_json_is_laid_out_seldom_while_it_comes_and_short_json_at_every_beat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tail, now = TailView(UNICODE), [0.0]
    laid_out: list[float] = []
    monkeypatch.setattr(tail, "_show", lambda blocks, below: laid_out.append(now[0]))
    monkeypatch.setattr(turn, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def beats(text: str, count: int = 20) -> int:
        laid_out.clear()
        for _ in range(count):
            tail.feed(text, below=False)
            now[0] += 0.1
        return len(laid_out)

    long = '{"a": [' + '"word", ' * 2500
    assert (20, 2, 20) == (beats('{"a": ['), beats(long), beats('{"a": ['))
