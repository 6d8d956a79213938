"""Calls of tools in the chat: the question, leave, results, and tools that misbehave."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flarechat.config import Settings
from flarechat.sessions import store
from flarechat.sessions.session import Session
from flarechat.ui.widgets.prompt import Prompt
from flarechat.ui.widgets.question import Question
from tests.fakes import Play, ScriptedEngine, calls, words
from tests.ui.harness import Chat, chatting, check_snapshot, played

SUM = ("c1", "calculator", {"expression": "17*23"})
CALCULATOR = Settings(theme="dark", tools=("calculator",))


def calculating(*more: Any) -> ScriptedEngine:
    return ScriptedEngine([(*words("Let me see."), *calls(SUM)), *(more or [words("It is 391.")])])


async def until(chat: Chat, true: Callable[[], bool], seconds: float = 10) -> None:
    """Beat until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, chat.text
        await chat.beat()
        await asyncio.sleep(0.005)
    await chat.beat()


def question(chat: Chat) -> Question:
    """The question of the chat shown."""
    return chat.screen.tabs.current.question


async def typed(chat: Chat, *keys: str, gap: float = 0.2) -> None:
    """Press keys one by one, so many seconds between them."""
    for key in keys:
        chat.clock.now += gap
        await chat.press(key)


async def asked(chat: Chat, text: str = "17 times 23?") -> Question:
    """Send a message and wait until a call waits for the user, and a while longer."""
    found = question(chat)
    await chat.say(text)
    await until(chat, lambda: found.waits)
    await chat.beat(3)
    return found


async def at_rest(chat: Chat) -> None:
    await until(chat, lambda: not chat.bridge.busy)


def tool_file(folder: Path, script: str = "", **more: Any) -> str:
    """A file with one tool, "odd": a script of Python, or answered by hand without one."""
    tool: dict[str, Any] = {"name": "odd", "description": "Odd.", **more}
    if script:
        tool["command"] = [sys.executable, "-c", script]
    file = folder / "my tools.json"
    file.write_text(json.dumps([tool]), "utf-8")
    return shlex.quote(str(file))


def odd_engine(*made: Sequence[Any]) -> ScriptedEngine:
    return ScriptedEngine([calls(("c1", "odd", {})), *(made or [words("I see.")])])


async def odd(folder: Path, script: str, **more: Any) -> tuple[str, str]:
    """Have a tool called and allowed; what the model was told, and the screen at the end."""
    engine = odd_engine()
    async with chatting(engine, size=(100, 40)) as chat:
        await chat.say(f"/tools {tool_file(folder, script, **more)}")
        await chat.app.workers.wait_for_complete()
        await asked(chat)
        await chat.press("y", "enter")
        await at_rest(chat)
        return engine.requests[1].messages[-1].content, chat.text


@played
async def test_the_calculator_is_asked_for_allowed_run_and_told() -> None:
    engine = calculating()
    async with chatting(engine, settings=CALCULATOR, size=(100, 32)) as chat:
        await asked(chat)
        waiting, state = chat.text, chat.bridge.state
        await chat.press("y", "enter")
        await at_rest(chat)
        done = chat.text

        assert "The model wants to call calculator" in waiting and '"17*23"' in waiting
        assert "y yes" in waiting and "ASKING calculator" in waiting and "ASKING" == state
        assert "calls calculator" in done and "Tool calculator" in done and "391" in done
        assert "It is 391." in done and "The model wants" not in done
        assert ("tool", "391") == (
            engine.requests[1].messages[-1].role, engine.requests[1].messages[-1].content,
        )  # fmt: skip
        assert chat.prompt.has_focus and "IDLE" == chat.bridge.state
        [saved] = [Session(info.path) for info in store.listed()]
        roles = [turn.role for turn in saved.tree.path()]
        assert ["user", "assistant", "tool", "assistant"] == roles


@played
async def test_a_no_goes_to_the_model_and_always_asks_no_more_in_this_chat_only() -> None:
    engine = calculating((*words("Again."), *calls(SUM)), words("Fine."), calls(SUM), words("Ok."))
    async with chatting(engine, settings=CALCULATOR, size=(100, 70)) as chat:
        found = await asked(chat)
        await chat.press("n", "enter")
        await until(chat, lambda: len(engine.requests) == 2 and found.waits)
        refused = engine.requests[1].messages[-1].content
        await chat.beat(3)
        await chat.press("a", "enter")
        await at_rest(chat)
        ran = engine.requests[2].messages[-1].content
        await chat.say("and now")
        await at_rest(chat)

        assert "Error: the user did not allow this call." == refused
        assert "not allowed" in chat.text
        assert "391" == ran == engine.requests[4].messages[-1].content
        assert {"calculator"} == chat.bridge.conversation.allowed
        await chat.press("ctrl+n")
        await chat.beat()
        assert set() == chat.bridge.conversation.allowed
        assert ["calculator"] == [tool.name for tool in chat.bridge.toolbox.tools]


@played
async def test_a_question_is_not_answered_by_typing() -> None:
    async with chatting(calculating(), settings=CALCULATOR) as chat:
        found = question(chat)
        await chat.say("17 times 23?")
        chat.prompt.put("wa")
        await until(chat, lambda: found.waits)
        await chat.beat(3)
        await chat.press(*"y an")
        written = chat.prompt.text
        assert "wa" + "y an" == written and found.waits and chat.prompt.has_focus
        assert "shift+tab, then y yes" in chat.text

        for word in ("you", "any", "no way", "a b", "yy", "yn"):
            chat.prompt.empty()
            await chat.press("shift+tab")
            await chat.beat(3)
            await typed(chat, *word)
            assert word == chat.prompt.text and found.waits and chat.prompt.has_focus
        await typed(chat, "enter")
        assert ["yn"] == chat.bridge.queue and found.waits


@played
async def test_a_letter_marks_the_answer_and_enter_gives_it() -> None:
    async with chatting(calculating(), settings=CALCULATOR, size=(100, 32)) as chat:
        found = await asked(chat)
        assert "y yes   a always in this chat   n no, then enter" in chat.text
        assert "shift+tab" not in chat.text
        await typed(chat, "y")
        await chat.beat(4)
        assert "enter: yes, run it" in chat.text and "y yes" not in chat.text and found.waits
        await typed(chat, "backspace")
        assert "y yes" in chat.text and found.has_focus
        await typed(chat, "enter")
        assert found.waits and chat.prompt.has_focus and not chat.prompt.text
        assert "shift+tab, then y yes" in chat.text
        await chat.press("shift+tab")
        await chat.beat(3)
        await typed(chat, "y", "enter")
        await at_rest(chat)
        assert not found.waits and "391" in [turn.text for turn in chat.bridge.conversation.turns]


@played
async def test_a_question_takes_no_key_when_it_has_just_come_or_got_the_focus() -> None:
    async with chatting(calculating(), settings=CALCULATOR) as chat:
        found = question(chat)
        await chat.say("17 times 23?")
        await until(chat, lambda: found.waits and found.has_focus)
        found.hush()
        await typed(chat, "y", "enter")
        assert found.waits and ["y"] == chat.bridge.queue

        await chat.beat(3)
        await chat.press("shift+tab")
        await typed(chat, "y", "enter")
        assert found.waits and ["y", "y"] == chat.bridge.queue

        await chat.press("shift+tab")
        await chat.beat(3)
        await typed(chat, "y")
        await chat.press("ctrl+n")
        await chat.beat(3)
        await chat.press("f7")
        assert found.has_focus and "y yes" in chat.text
        await typed(chat, "enter")
        assert found.waits
        await chat.press("f9")
        await chat.press("f7")
        await typed(chat, "y", "enter")
        assert found.waits and ["y", "y", "y"] == chat.bridge.queue


@played
async def test_escape_at_a_question_runs_nothing_and_ends_the_turn() -> None:
    engine = calculating()
    async with chatting(engine, settings=CALCULATOR) as chat:
        found = await asked(chat)
        await chat.press("escape")
        await chat.beat(2)

        assert not chat.bridge.busy and "STOPPED" == chat.bridge.state and not found.display
        assert 1 == len(engine.requests) and chat.prompt.has_focus
        await chat.say("go on")
        await chat.answer()
        assert "Error: this call was not run." in [m.content for m in engine.requests[1].messages]


@played
async def test_a_tool_answered_by_hand_asks_for_its_result(tmp_path: Path) -> None:
    engine = odd_engine()
    async with chatting(engine, size=(100, 32)) as chat:
        await chat.say(f"/tools {tool_file(tmp_path)}")
        await chat.app.workers.wait_for_complete()
        found = await asked(chat)
        shown = chat.text
        field = found.query_one(Prompt)
        field.burst_gap = 0.0
        await typed(chat, *"mine")
        assert "mine" == chat.prompt.text and not field.text
        chat.prompt.empty()
        await chat.press("shift+tab")
        await typed(chat, "enter")
        assert chat.prompt.has_focus
        await chat.press("shift+tab")
        await chat.beat(3)
        await chat.press("enter", *"two", "ctrl+j", *"lines", "enter")
        await at_rest(chat)

        assert "asks you for the result of odd" in shown and "enter: write the result" in shown
        assert "two\nlines" == engine.requests[1].messages[-1].content
        assert "I see." in chat.text and chat.prompt.has_focus


@played
async def test_escape_stops_a_tool_that_hangs(tmp_path: Path) -> None:
    async with chatting(odd_engine(), size=(100, 32)) as chat:
        await chat.say(f"/tools {tool_file(tmp_path, 'import time; time.sleep(60)')}")
        await chat.app.workers.wait_for_complete()
        await asked(chat)
        await chat.press("y", "enter")
        await until(chat, lambda: chat.bridge.state == "TOOL")
        running = chat.text
        question(chat).focus()
        await chat.beat(3)
        await chat.press("y")
        assert "y" == chat.prompt.text
        await chat.press("escape")
        await chat.beat(2)

        assert "Running odd" in running and "esc stops it" in running
        assert not chat.bridge.busy and "STOPPED" == chat.bridge.state
        assert "Tool odd  stopped" in chat.text and "Running odd" not in chat.text


@played
async def test_a_tool_that_takes_too_long_fails(tmp_path: Path) -> None:
    told, shown = await odd(tmp_path, "import time; time.sleep(60)", timeout=0.2)
    assert "Error: odd was ended, as it took more than 0.2 s." == told
    assert "Tool odd  failed" in shown and "more than 0.2 s" in shown


@played
async def test_a_flood_is_cut_and_folded(tmp_path: Path) -> None:
    told, shown = await odd(tmp_path, "print('x\\n' * 100000)", output_limit=400)
    assert "[cut here: 400 bytes are the most that is kept]" in told and len(told) < 500
    assert "more lines; t in turn mode shows them" in shown


@played
async def test_status_1_is_told_with_what_stderr_said(tmp_path: Path) -> None:
    told, shown = await odd(tmp_path, "import sys; sys.exit('no such city')")
    assert "Error: odd ended with status 1.\nno such city" == told
    assert "Tool odd  failed" in shown and "no such city" in shown


@played
async def test_escape_codes_are_harmless_in_results_names_and_arguments(tmp_path: Path) -> None:
    told, shown = await odd(tmp_path, r"print('\x1b]0;owned\x07\x1b[31mred\x1b[0m \x9b2Jend')")
    assert "red end" == told and "red end" in shown and "owned" not in shown

    evil = calls(("c1", "odd", {"text": "\x1b[2J\x9b31m<b>[/] \u202egnp.exe"}))
    async with chatting(ScriptedEngine([evil, words("ok")]), size=(100, 32)) as chat:
        await chat.say(f"/tools {tool_file(tmp_path, 'pass')}")
        await chat.app.workers.wait_for_complete()
        await asked(chat)
        drawn = chat.text
        assert "<b>[/]" in drawn and not any(code in drawn for code in "\x1b\x9b\u202e")
        assert drawn.count(r"\u202egnp.exe") == 2, "in the transcript and in the question"
        await chat.press("n", "enter")
        await at_rest(chat)
        assert not any(code in chat.text for code in "\x1b\x9b")


@played
async def test_t_shows_all_of_a_long_result(tmp_path: Path) -> None:
    engine = odd_engine()
    async with chatting(engine, size=(100, 40)) as chat:
        script = "print('\\n'.join(f'line {n}' for n in range(20)))"
        await chat.say(f"/tools {tool_file(tmp_path, script)}")
        await chat.app.workers.wait_for_complete()
        await asked(chat)
        await chat.press("y", "enter")
        await at_rest(chat)
        folded = chat.text
        await chat.press("shift+tab", "k", "t")

        assert "line 7" in folded and "line 19" not in folded and "12 more lines" in folded
        assert "line 19" in chat.text and "more lines" not in chat.text


@played
async def test_a_question_in_a_hidden_tab_is_said_in_its_tab_and_waits() -> None:
    engine = calculating()
    async with chatting(engine, settings=CALCULATOR, size=(120, 36)) as chat:
        await chat.say("first")
        await chat.press("ctrl+n")
        hidden = chat.screen.tabs.panes[0]
        await until(chat, lambda: hidden.bridge.state == "ASKING")
        chat.prompt.put("y")
        await chat.press("y")

        assert "asks" in chat.text.splitlines()[1] and "yy" == chat.prompt.text
        await chat.press("f7")
        found = question(chat)
        await chat.beat(3)
        assert found.has_focus and "The model wants to call calculator" in chat.text
        await chat.press("y", "enter")
        await until(chat, lambda: not hidden.bridge.busy)
        assert "It is 391." in chat.text


@played
async def test_the_question_looks_as_stored() -> None:
    for size in ((120, 36), (80, 24)):
        async with chatting(calculating(), settings=CALCULATOR, size=size) as chat:
            await asked(chat)
            check_snapshot(f"question-{size[0]}x{size[1]}", chat.text)


@played
async def test_the_keys_are_seen_in_a_small_terminal(tmp_path: Path) -> None:
    long = calls(("c1", "odd", {f"argument {n}": "x" * 30 for n in range(9)}))
    async with chatting(ScriptedEngine([long]), size=(40, 12)) as chat:
        await chat.say(f"/tools {tool_file(tmp_path, 'pass')}")
        await chat.app.workers.wait_for_complete()
        await asked(chat)

        assert "y yes  a always  n no, then enter" in chat.text and "runs: " in chat.text
        assert "wants to call odd" in chat.text


@played
async def test_what_was_allowed_is_forgotten_when_tools_are_given_anew(tmp_path: Path) -> None:
    engine = ScriptedEngine([calls(("c1", "odd", {})), words("a"), calls(("c2", "odd", {}))])
    async with chatting(engine, size=(100, 40)) as chat:
        await chat.say(f"/tools {tool_file(tmp_path, 'print(1)')}")
        await chat.app.workers.wait_for_complete()
        await asked(chat)
        await chat.press("a", "enter")
        await at_rest(chat)
        await chat.say(f"/tools {tool_file(tmp_path, 'print(2)')}")
        await chat.app.workers.wait_for_complete()
        found = await asked(chat)

        assert set() == chat.bridge.conversation.allowed and "print(2)" in chat.text
        chat.bridge.answer_call("c1", "yes")
        await chat.beat(2)
        assert found.waits


@played
async def test_a_call_is_seen_while_it_is_written() -> None:
    written = [Play((text,), channel="tool") for text in ("<tool_call>", '{"name": "cal', "c\x1b")]
    engine = ScriptedEngine([(*words("Let me."), *written, *calls(SUM))])
    async with chatting(engine, settings=CALCULATOR) as chat:
        await chat.say("Hi")
        await chat.beat(6)
        growing = chat.text
        await until(chat, lambda: question(chat).waits)

        assert "Let me." in growing and "Writing a call" in growing
        assert '<tool_call>{"name": "calc' in growing and "\x1b" not in growing
        assert "Writing a call" not in chat.text and "calls calculator" in chat.text


@played
async def test_wrong_tools_are_a_sentence_and_change_nothing(tmp_path: Path) -> None:
    async with chatting(settings=CALCULATOR, size=(100, 32)) as chat:
        bad = tmp_path / "bad.json"
        bad.write_text('[{"name": "a b"}]', "utf-8")
        for wrong in (str(bad), "/nowhere.json", "choice other", "'open"):
            await chat.say(f"/tools {wrong}")
            await chat.app.workers.wait_for_complete()
        await chat.beat()

        shown = " ".join(chat.text.split())
        assert "tool 1 (a b): 'a b' cannot be the name of a tool." in shown
        assert "/nowhere.json cannot be read" in shown and "--tool-choice other is unknown" in shown
        assert "A quote in 'open is not closed." in shown
        assert ("calculator",) == chat.bridge.settings.tools
        await chat.say("/tools off")
        await chat.app.workers.wait_for_complete()
        assert () == chat.bridge.settings.tools == chat.bridge.toolbox.tools


@played
async def test_the_call_of_a_picked_answer_is_asked_about_with_the_focus() -> None:
    engine = ScriptedEngine([calls(SUM), calls(SUM), words("It is 391.")], lanes=4)
    async with chatting(engine, settings=CALCULATOR, size=(100, 32)) as chat:
        await chat.say("/fan 2 17 times 23?")
        await chat.app.workers.wait_for_complete()
        await at_rest(chat)
        found = question(chat)
        assert 2 == len(chat.bridge.conversation.fan) and not found.waits
        await chat.press("enter")
        await chat.beat(3)

        assert found.waits and found.has_focus
        await chat.press("y", "enter")
        await at_rest(chat)
        assert "It is 391." in chat.text
