"""A conversation whose model calls tools: rounds of calls, leave, limits, saving and resuming."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from flarechat.asking import messages_of
from flarechat.chat import Conversation
from flarechat.config import Settings
from flarechat.errors import UsageError
from flarechat.protocol import Called, EngineDoor, Tool, ToolCall
from flarechat.sessions import export, store
from flarechat.sessions.importing import import_file
from flarechat.sessions.session import Session
from flarechat.sessions.turns import Turn
from flarechat.tools.definitions import Definition, load
from flarechat.tools.toolbox import Toolbox
from tests.fakes import MODEL, ScriptedEngine, calls, words

SLOW = Definition(tool=Tool(name="slow"), command=("sleep", "60"))
BOX = Toolbox([*load(["calculator"]), SLOW, Definition(tool=Tool(name="hand"))])
SUM = ("c1", "calculator", {"expression": "17*23"})
ASKED = (*words("Let me see."), *calls(SUM))


def talking(
    engine: EngineDoor, settings: Settings | None = None, name: str | None = None, **kw: Any
) -> Conversation:
    conversation = (
        Conversation.resume(engine, settings or Settings(), name)
        if name
        else Conversation.new(engine, settings or Settings(), **kw)
    )
    conversation.bind(MODEL)
    conversation.toolbox, conversation.allowed = BOX, {"calculator", "slow"}
    return conversation


def step(conversation: Conversation, engine: ScriptedEngine) -> list[Turn]:
    for event in engine.drain():
        conversation.apply(event)
    return conversation.tend()


def play(conversation: Conversation, engine: ScriptedEngine, seconds: float = 10) -> list[Turn]:
    """Go on until all is done or the user is asked; the turns that were added."""
    added, until = [], time.monotonic() + seconds
    while conversation.busy and not conversation.waiting:
        assert time.monotonic() < until, "it does not end"
        added += step(conversation, engine)
        conversation.wait_for_tool(0.01)
    return added


def told(engine: ScriptedEngine, number: int = -1) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in engine.requests[number].messages]


def test_a_call_is_run_its_result_goes_back_and_the_model_answers() -> None:
    engine = ScriptedEngine([ASKED, words("It is 391.")])
    conversation = talking(engine, Settings(tool_choice="required"))
    conversation.send("17 times 23?")

    result, answer = play(conversation, engine)

    user, asked, *rest = conversation.turns
    assert [result, answer] == rest
    assert ("tool_calls", "complete", "Let me see.") == (asked.reason, asked.status, asked.text)
    assert ("tool", "c1", "calculator", "done", "391") == (
        result.role, result.call, result.name, result.reason, result.text,
    )  # fmt: skip
    assert [user.id, asked.id, result.id] == [turn.parent for turn in conversation.turns[1:]]
    assert ("It is 391.", "stop") == (answer.text, answer.reason)
    first, second = engine.requests
    assert (BOX.tools, "required") == (first.tools, first.tool_choice)
    assert (BOX.tools, "auto") == (second.tools, second.tool_choice)
    assert [("user", "17 times 23?"), ("assistant", "Let me see."), ("tool", "391")] == told(engine)
    assert (asked.calls, "c1") == (second.messages[1].calls, second.messages[2].call)
    assert tuple(asked.tokens) == second.messages[1].tokens
    assert answer is conversation.shown
    conversation.close()


def test_a_choice_of_no_tools_stays_one() -> None:
    engine = ScriptedEngine([ASKED, words("ok")])
    conversation = talking(engine, Settings(tool_choice="none"))
    conversation.send("Hi")
    play(conversation, engine)
    conversation.close()

    assert ["none", "none"] == [request.tool_choice for request in engine.requests]


def test_an_answer_without_text_is_told_for_its_calls() -> None:
    engine = ScriptedEngine([calls(SUM, ("c2", "calculator", {"expression": "1/0"})), words("ok")])
    conversation = talking(engine)
    conversation.send("Hi")
    play(conversation, engine)
    conversation.close()

    assert [
        ("user", "Hi"),
        ("assistant", ""),
        ("tool", "391"),
        ("tool", "Error: A division by zero has no value."),
    ] == told(engine)


def test_the_user_is_asked_and_a_refusal_goes_back() -> None:
    engine = ScriptedEngine([ASKED, words("Pity.")])
    conversation = talking(engine)
    conversation.allowed = set()
    conversation.send("Hi")
    play(conversation, engine)

    assert (SUM[0], True) == (conversation.waiting and conversation.waiting.id, conversation.busy)
    with pytest.raises(UsageError, match="A tool is still being called"):
        conversation.send("more")
    with pytest.raises(UsageError, match="The tool calculator is run by flarechat"):
        conversation.answer_call("391")
    conversation.refuse()
    result, answer = play(conversation, engine)
    conversation.close()

    assert ("refused", "Pity.") == (result.reason, answer.text)
    assert ("tool", "Error: the user did not allow this call.") == told(engine)[-1]
    with pytest.raises(UsageError, match="No call of a tool waits"):
        conversation.refuse()


def test_leave_for_always_holds_for_later_turns() -> None:
    engine = ScriptedEngine([ASKED, words("ok"), ASKED, words("ok")])
    conversation = talking(engine)
    conversation.allowed = set()
    conversation.send("Hi")
    play(conversation, engine)
    conversation.allow(always=True)
    play(conversation, engine)

    conversation.send("Again")
    play(conversation, engine)
    conversation.close()

    assert ["391"] * 2 == [turn.text for turn in conversation.turns if turn.role == "tool"]


def test_a_tool_is_answered_by_hand() -> None:
    engine = ScriptedEngine([calls(("c", "hand", {})), words("ok")])
    conversation = talking(engine)
    conversation.send("Hi")
    play(conversation, engine)

    assert conversation.by_hand
    with pytest.raises(UsageError, match="The tool hand is answered by hand"):
        conversation.allow()
    conversation.answer_call("by me")
    play(conversation, engine)
    conversation.close()

    assert ("tool", "by me") == told(engine)[-1]


def test_the_rounds_of_a_turn_are_bounded() -> None:
    asked = [calls((f"c{n}", "calculator", {"expression": str(n)})) for n in range(9)]
    engine = ScriptedEngine([*asked[:3], words("ok"), *asked[3:]])
    conversation = talking(engine, Settings(tool_rounds=3))
    conversation.send("Hi")
    play(conversation, engine)
    assert ("ok", []) == (conversation.turns[-1].text, conversation.notices)

    conversation.send("Again")
    play(conversation, engine)
    conversation.close()

    assert ["tool_calls"] * 4 == [t.reason for t in conversation.turns[8:] if t.role != "tool"][1:]
    assert 6 == sum(1 for turn in conversation.turns if turn.role == "tool")
    assert "The model called tools in 4 answers" in conversation.notices[0]


def test_the_very_same_call_is_run_three_times_in_a_turn() -> None:
    engine = ScriptedEngine([calls(SUM)])
    conversation = talking(engine, Settings(tool_rounds=5))
    conversation.send("Hi")
    play(conversation, engine)
    conversation.close()

    outcomes = [turn.reason for turn in conversation.turns if turn.role == "tool"]
    assert ["done"] * 3 + ["unrun"] * 2 == outcomes


def test_stopping_ends_a_running_tool_and_the_turn() -> None:
    engine = ScriptedEngine([calls(("c", "slow", {}), SUM), words("ok")])
    conversation, began = talking(engine), time.monotonic()
    conversation.send("Hi")
    while not conversation.running:
        step(conversation, engine)

    conversation.stop()

    assert not conversation.busy
    assert time.monotonic() - began < 5
    assert ("tool", "stopped") == (conversation.turns[-1].role, conversation.turns[-1].reason)
    conversation.send("Never mind.")
    play(conversation, engine)
    conversation.close()
    assert [
        ("tool", "Error: the user stopped it."),
        ("tool", "Error: this call was not run."),
        ("user", "Never mind."),
    ] == told(engine)[2:]


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_the_calls_of_an_answer_that_was_cut_off_are_not_run(reason: str) -> None:
    engine = ScriptedEngine([ASKED], reason=reason)
    conversation = talking(engine)
    conversation.send("Hi")
    play(conversation, engine)
    conversation.send("More")
    conversation.close()

    assert reason == conversation.turns[1].reason
    assert [("tool", "Error: this call was not run."), ("user", "More")] == told(engine)[2:]


def test_a_call_that_is_none_is_a_notice() -> None:
    engine = ScriptedEngine([words("a b")])
    conversation = talking(engine)
    turn = conversation.send("Hi")

    conversation.apply(Called(request=turn.id, error="It is no JSON.", text="<tool_call>"))
    play(conversation, engine)
    conversation.close()

    assert ["The model wrote a call that is none: It is no JSON."] == conversation.notices
    assert ("stop", ()) == (turn.reason, turn.calls)


def test_calls_of_a_fan_wait_until_one_is_picked() -> None:
    engine = ScriptedEngine([ASKED, ASKED, words("ok")], lanes=4)
    conversation = talking(engine)
    conversation.fan_out("Hi", 2)
    play(conversation, engine)
    assert (False, 2) == (conversation.busy, len(engine.requests))

    conversation.pick(1)
    result, answer = play(conversation, engine)
    conversation.close()

    assert ("391", "ok") == (result.text, answer.text)


def test_a_fan_of_nothing_but_calls_is_picked_from_by_the_user() -> None:
    engine = ScriptedEngine([calls(SUM), calls(SUM), words("ok")], lanes=4)
    conversation = talking(engine)
    fan = conversation.fan_out("Hi", 2)
    play(conversation, engine)
    open_still = list(conversation.fan)
    conversation.close()

    assert fan == open_still and 2 == len(engine.requests)


def test_calls_that_a_file_has_are_never_run() -> None:
    engine = ScriptedEngine([ASKED], lanes=4)
    conversation = talking(engine)
    conversation.fan_out("Hi", 2)
    play(conversation, engine)
    conversation.close()

    again = talking(engine, name="hi")
    again.pick(1)
    busy = again.busy
    again.close()

    assert not busy


def test_a_session_keeps_calls_and_results() -> None:
    engine = ScriptedEngine([ASKED, words("It is 391.")])
    conversation = talking(engine)
    conversation.send("Hi")
    play(conversation, engine)
    conversation.close()

    session = Session(store.find("hi"))

    assert [] == session.notices
    kept = session.tree.path()
    assert [turn.role for turn in kept] == ["user", "assistant", "tool", "assistant"]
    for turn, read in zip(conversation.turns, kept, strict=True):
        assert (turn.calls, turn.call, turn.name, turn.reason, turn.text) == (
            read.calls, read.call, read.name, read.reason, read.text,
        )  # fmt: skip
    assert messages_of(conversation.turns, None) == messages_of(kept, None)


def torn(name: str, kind: str, count: int = 1) -> None:
    """Cut a session's file before the last `count` lines of a kind and all behind the first."""
    path = store.find(name)
    lines = path.read_bytes().splitlines(keepends=True)
    at = [n for n, line in enumerate(lines) if json.loads(line).get("type") == kind][-count]
    path.write_bytes(b"".join(lines[:at]))


@pytest.mark.parametrize("count", [1, 2])
def test_resuming_between_calls_and_results_tells_what_was_not_run(count: int) -> None:
    made = calls(SUM, ("c2", "calculator", {"expression": "2"}))
    engine = ScriptedEngine([made, words("ok")])
    conversation = talking(engine)
    conversation.send("Hi")
    play(conversation, engine)
    conversation.close()
    torn("hi", "tool", count)

    again = talking(engine, name="hi")
    again.send("And?")
    play(again, engine)
    again.close()

    unrun = ("tool", "Error: this call was not run.")
    results = [("tool", "391"), ("tool", "2")][: 2 - count] + [unrun] * count
    assert [("user", "Hi"), ("assistant", ""), *results, ("user", "And?")] == told(engine)
    assert [] == again.notices


def test_a_turn_that_ended_behind_a_result_is_gone_on_with() -> None:
    engine = ScriptedEngine([ASKED, words("It is 391.")])
    conversation = talking(engine)
    conversation.send("Hi")
    play(conversation, engine)
    conversation.close()
    torn("hi", "assistant")

    again = talking(engine, name="hi")
    assert again.unanswered
    answer = again.continue_answer()
    play(again, engine)
    again.close()

    assert ("It is 391.", ("tool", "391")) == (answer.text, told(engine)[-1])


def test_a_failed_answer_behind_results_leaves_them() -> None:
    user, asked = Turn("u", None, "user", "q"), Turn("a", "u", "assistant", "")
    asked.calls = (ToolCall(id="c", name="x"),)
    result = Turn("t", "a", "tool", "r", call="c", name="x")
    failed = Turn("f", "t", "assistant", "", status="error")

    got = messages_of([user, asked, result, failed, Turn("v", "f", "user", "w")], None)

    assert ["q", "", "r", "w"] == [message.content for message in got]


DEEP = json.loads('{"a":' * 200 + "1" + "}" * 200)


@pytest.mark.parametrize(
    "change",
    [
        {"calls": 3},
        {"calls": [3]},
        {"calls": [{"id": "c1", "name": "x"}]},
        {"calls": [{"id": "c1", "name": "x", "arguments": []}]},
        {"calls": [{"id": "c1", "name": "x", "arguments": {}}] * 2},
        {"calls": [{"id": "c1", "name": "x", "arguments": DEEP}]},
    ],
)
def test_calls_that_make_no_sense_are_left_out_and_their_text_stays(change: dict[str, Any]) -> None:
    engine = ScriptedEngine([ASKED, words("It is 391.")])
    conversation = talking(engine)
    conversation.send("Hi")
    play(conversation, engine)
    conversation.close()
    path = store.find("hi")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line | (change if line.get("text") == "Let me see." else {}) for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    messages = messages_of(Session(path).tree.path(), None)

    assert ["Hi", "Let me see.\n\nIt is 391."] == [message.content for message in messages]
    assert not any(message.calls for message in messages)


def test_results_of_no_call_are_not_told() -> None:
    alien = Turn("t", "u", "tool", "r", call="zzz", name="x")

    got = messages_of([Turn("u", None, "user", "q"), alien, Turn("v", "t", "user", "w")], None)

    assert ["q\n\nw"] == [message.content for message in got]


def test_what_is_exported_is_imported_with_its_calls(tmp_path: Path) -> None:
    made = calls(SUM, ("c2", "calculator", {"expression": "`x` <b>\x9b"}))
    engine = ScriptedEngine([(*words("See:"), *made), words("It is 391.")])
    conversation = talking(engine)
    conversation.send("Hi")
    play(conversation, engine)
    conversation.close()
    session = Session(store.find("hi"))
    before = messages_of(session.tree.path(), None)

    for kind in ("openai", "sharegpt"):
        file = tmp_path / f"{kind}.json"
        file.write_bytes(export.exported(session, kind, all_branches=False))
        [taken], _ = import_file(file)
        again = messages_of(Session(store.find(taken.name)).tree.path(), None)
        assert ((), [m.content for m in before]) == (taken.notices, [m.content for m in again])
        assert [[(c.name, c.arguments) for c in m.calls] for m in before] == [
            [(c.name, c.arguments) for c in m.calls] for m in again
        ]

    written = json.loads((tmp_path / "openai.json").read_text())["messages"]
    assert ["user", "assistant", "tool", "tool", "assistant"] == [m["role"] for m in written]
    assert {"id": "c1", "type": "function", "function": {
        "name": "calculator", "arguments": '{"expression": "17*23"}'
    }} == written[1]["tool_calls"][0]  # fmt: skip
    assert ("c1", "391") == (written[2]["tool_call_id"], written[2]["content"])


def test_what_is_exported_for_reading_shows_calls_and_results() -> None:
    made = calls(SUM, ("c2", "calculator", {"expression": "`x` <b>"}))
    engine = ScriptedEngine([(*words("See:"), *made), words("It is 391.")])
    conversation = talking(engine)
    conversation.send("Hi")
    play(conversation, engine)
    conversation.close()
    session = Session(store.find("hi"))

    markdown = export.exported(session, "markdown", all_branches=False).decode()
    html = export.exported(session, "html", all_branches=False).decode()

    assert 'See:\n\n→ `calculator {"expression": "17*23"}`\n' in markdown
    assert '→ `` calculator {"expression": "`x` <b>"} ``\n' in markdown
    assert "## Tool calculator\n\n```\n391\n```\n" in markdown
    assert "## Tool calculator [failed]\n" in markdown
    assert '<article class="tool">\n<h2>Tool calculator</h2>\n<div class="text">391</div>' in html
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
