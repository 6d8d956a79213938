"""The whole way once: keys into the screen, the real model behind its process, words out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from flarechat.chat import Turn
from flarechat.config import Settings
from flarechat.launch import open_engine
from flarechat.tools.toolbox import Toolbox
from flarechat.ui.app import FlarechatApp
from flarechat.ui.opening import LateEngine
from flarechat.ui.widgets.question import QUIET_S
from tests.ui.harness import answered, played

PATIENCE_S = 120


@pytest.mark.network
@pytest.mark.slow
def test_a_question_typed_into_the_chat_is_answered_by_the_real_model(smollm2: Path) -> None:
    @played
    async def run() -> None:
        app = FlarechatApp(settings, engine)
        async with app.run_test(size=(120, 36)) as pilot:
            await answered(app, pilot, "What is the capital of France?", PATIENCE_S)
            turn = app.bridge.conversation.turns[-1]

            assert "Paris" in turn.text
            assert turn.finished is not None
            assert app.bridge.conversation.totals.emitted == turn.finished.usage.completion_tokens
            assert "IDLE" == app.bridge.state

    settings = Settings(model=str(smollm2), temperature=0.0, max_tokens=24)
    with closing(LateEngine(lambda progress: open_engine(settings, progress))) as engine:
        run()


@pytest.mark.network
@pytest.mark.slow
def test_verbs_over_the_real_model_and_tokens_that_spell_what_was_said(smollm2: Path) -> None:
    @played
    async def run() -> None:
        app = FlarechatApp(settings, engine)
        async with app.run_test(size=(120, 36)) as pilot:

            async def ended(*known: Turn) -> Turn:
                """The last turn, once it is none of these and has ended."""
                await until(lambda: last() not in known and not app.bridge.busy)
                return last()

            def last() -> Turn:
                return app.bridge.conversation.turns[-1]

            async def until(reached: Callable[[], bool]) -> None:
                end = time.monotonic() + PATIENCE_S
                while not reached():
                    assert time.monotonic() < end, app.bridge.state
                    await pilot.pause(0.1)

            await answered(app, pilot, "Tell me about the sea, please.", PATIENCE_S)
            first = await ended()
            short, few = first.text, len(first.tokens)
            await pilot.press("shift+tab", "c")
            await until(lambda: len(first.tokens) > few)
            longer = await ended()
            await pilot.press("shift+tab", "r")
            again = await ended(first)
            await pilot.press("shift+tab", "i")
            await until(lambda: app.board.texts.keys() >= set(again.tokens))
            texts = [app.board.texts[token] for token in again.tokens]
            await pilot.press("escape", "k", "e")
            app.chat.prompt.put("What is the capital of France?")
            await pilot.press("enter")
            edited = await ended(first, again)

            assert longer is first and first.text.startswith(short) and few < len(first.tokens)
            assert again is not first and again.text.startswith(short)
            assert again.text == "".join(texts)
            assert "Paris" in edited.text
            assert [2, 2] == [
                app.bridge.conversation.place(turn)[1]
                for turn in (again, app.bridge.conversation.turns[0])
            ]

    settings = Settings(model=str(smollm2), temperature=0.0, max_tokens=24, ctx=512)
    with closing(LateEngine(lambda progress: open_engine(settings, progress))) as engine:
        run()


@pytest.mark.network
@pytest.mark.slow
def test_two_chats_and_a_fan_are_answered_at_once_by_the_real_model(smollm2: Path) -> None:
    @played
    async def run() -> None:
        app = FlarechatApp(settings, engine)
        async with app.run_test(size=(120, 36)) as pilot:
            await answered(app, pilot, "What is the capital of France?", PATIENCE_S)
            app.chat.prompt.put("/fan 2 Name a colour.")
            await pilot.press("enter")
            end = time.monotonic() + PATIENCE_S
            while app.bridge.busy or not app.bridge.conversation.fan:
                assert time.monotonic() < end, app.bridge.state
                await pilot.pause(0.1)
            one, two = app.bridge.conversation.fan
            await pilot.press("2", "enter", "ctrl+n")
            await answered(app, pilot, "What is the capital of Italy?", PATIENCE_S)

            assert one.text and two.text and one.text != two.text
            assert "Rome" in app.bridge.conversation.turns[-1].text
            assert two is app.chat.tabs.panes[0].bridge.conversation.turns[-1]

    settings = Settings(
        model=str(smollm2), temperature=0.8, seed=3, max_tokens=24, ctx=512, concurrency=2
    )
    with closing(LateEngine(lambda progress: open_engine(settings, progress))) as engine:
        run()


@pytest.mark.network
@pytest.mark.slow
def test_the_real_model_answers_under_a_schema_and_calls_the_calculator(smollm2: Path) -> None:
    @played
    async def run() -> None:
        app = FlarechatApp(settings, engine)
        async with app.run_test(size=(120, 36)) as pilot:

            async def until(reached: Callable[[], object]) -> None:
                end = time.monotonic() + PATIENCE_S
                while not reached():
                    assert time.monotonic() < end, app.bridge.state
                    await pilot.pause(0.1)

            async def say(text: str) -> None:
                app.chat.prompt.put(text)
                await pilot.press("enter")
                await pilot.pause()

            talk = app.bridge.conversation
            await until(lambda: app.bridge.held)
            await answered(app, pilot, "Ada lives in Rome.", PATIENCE_S)
            held = talk.turns[-1]
            await say("/free")
            await say("/tools calculator")
            await until(lambda: app.bridge.toolbox.tools)
            await say("/tools choice required")
            await until(lambda: app.bridge.settings.tool_choice == "required")
            await say("17*23")
            await until(lambda: talk.waiting)
            await pilot.pause(QUIET_S + 0.2)
            await pilot.press("y", "enter")
            await until(lambda: not app.bridge.busy or (talk.waiting and len(talk.turns) > 5))
            asked, result, answer = talk.turns[3:6]
            [call] = asked.calls

            assert held.finished and held.finished.constraint
            assert held.finished.constraint.satisfied and held.finished.constraint.forced
            assert "Rome" == json.loads(held.text)["city"]
            assert ("calculator", call.id, "tool") == (call.name, result.call, result.role)
            assert Toolbox.of(["calculator"]).run(call).text == result.text
            assert "assistant" == answer.role and answer.tokens

    schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}}
    schema |= {"required": ["city"], "additionalProperties": False}
    settings = Settings(
        model=str(smollm2), temperature=0.0, max_tokens=64, ctx=1024, json_schema=json.dumps(schema)
    )
    with closing(LateEngine(lambda progress: open_engine(settings, progress))) as engine:
        run()
