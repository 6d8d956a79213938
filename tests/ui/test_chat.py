"""The chat screen under real keys, over a scripted engine."""

from __future__ import annotations

import dataclasses

from flarechat.errors import EngineError, ModelError
from flarechat.protocol import ErrorInfo, Failed
from flarechat.ui.screens.small import TooSmallScreen
from flarechat.ui.widgets.lines import Header
from flarechat.ui.widgets.transcript import Transcript
from flarechat.ui.widgets.turn import TailView, TurnView
from tests.fakes import ScriptedEngine, words
from tests.ui import scenes
from tests.ui.harness import Chat, chatting, played

LONG = "\n\n".join(f"Paragraph {n} of a long answer." for n in range(40))


class Silent(ScriptedEngine):
    """An engine that never gets ready."""

    def start(self) -> None:
        pass


def state(chat: Chat) -> str:
    return chat.screen.query_one(Header).state.state


@played
async def test_typed_text_is_sent_and_its_answer_streams_into_the_transcript() -> None:
    async with chatting(ScriptedEngine([words("Hello **you** there.")])) as chat:
        await chat.press(*"hi", "enter")
        await chat.beat(3)
        halfway = chat.text
        await chat.answer()

        assert "hi" == chat.bridge.engine.requests[0].messages[-1].content
        assert "Hello" in halfway and "there." not in halfway
        assert "Hello you there." in chat.text
        assert "IDLE" == state(chat)
        assert "" == chat.prompt.text


@played
async def test_the_state_is_a_word_in_every_phase() -> None:
    engine = ScriptedEngine([words("one two three")])
    async with chatting(engine) as chat:
        seen = [state(chat)]
        await chat.say("go")
        await chat.beat()
        seen.append(state(chat))
        await chat.beat()
        seen.append(state(chat))
        await chat.press("escape")
        await chat.beat(2)
        seen.append(state(chat))

        assert ["IDLE", "PREFILL", "GEN", "STOPPED"] == seen


@played
async def test_escape_keeps_the_partial_answer_and_marks_it_stopped() -> None:
    engine = ScriptedEngine([words("one two three four five")])
    async with chatting(engine) as chat:
        await chat.say("count")
        await chat.beat(3)
        await chat.press("escape")
        await chat.beat(2)
        turn = chat.bridge.conversation.turns[-1]

        assert [turn.id] == engine.cancelled
        assert ("stopped", "one two") == (turn.status, turn.text)
        assert "Model  stopped" in chat.text


@played
async def test_escape_before_the_model_is_ready_ends_the_turn_on_screen_too() -> None:
    async with chatting(Silent()) as chat:
        await chat.say("early")
        await chat.say("later")
        await chat.press("escape")
        await chat.beat()

        assert "Model  stopped" in chat.text and "writing" not in chat.text
        assert "end cancelled" in chat.text
        assert "later" == chat.prompt.text


@played
async def test_a_message_sent_while_busy_waits_in_the_queue_and_follows() -> None:
    engine = ScriptedEngine([words("first answer"), words("second answer")])
    async with chatting(engine) as chat:
        await chat.say("one")
        await chat.beat(2)
        await chat.say("two")
        queued = chat.text
        await chat.answer()

        assert "You (queued)  two" in queued
        assert ["one", "two"] == [r.messages[-1].content for r in engine.requests]
        assert "You (queued)" not in chat.text and "second answer" in chat.text


@played
async def test_stopping_gives_queued_text_back_to_the_prompt() -> None:
    async with chatting(ScriptedEngine([words("a b c d e f")])) as chat:
        await chat.say("one")
        await chat.beat(2)
        await chat.say("two")
        await chat.say("three")
        await chat.press("escape")
        await chat.beat(3)

        assert "two\n\nthree" == chat.prompt.text
        assert 1 == len(chat.bridge.engine.requests)


@played
async def test_a_finished_turn_is_one_widget_and_equals_a_fresh_parse() -> None:
    async with chatting(scenes.engine()) as chat:
        await chat.say("go")
        await chat.answer()
        await chat.say(scenes.QUESTION)
        await chat.beat(4)
        streaming = len(chat.screen.query("#transcript *"))
        await chat.answer()
        views = list(chat.screen.query(TurnView))
        fresh = TurnView(views[-1].turn, 4, chat.app.marks)

        assert streaming == len(chat.screen.query("#transcript *"))
        assert 4 == len(views)
        assert [line.plain for line in fresh.lines(70)] == [
            line.plain for line in views[-1].lines(70)
        ]
        assert [] == chat.screen.query_one(TailView).parts


@played
async def test_escape_codes_of_the_model_never_reach_the_screen() -> None:
    evil = "safe \x1b[31mred\x1b]0;title\x07 \x9b2J [bold]markup[/bold] \x00end"
    async with chatting(ScriptedEngine([words(evil)])) as chat:
        await chat.say("attack")
        await chat.beat(4)
        streaming = chat.text
        await chat.answer()
        for shown in (streaming, chat.text, str(chat.screen.query_one(Transcript).render())):
            assert not [c for c in shown if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160]

        assert "[bold]markup[/bold]" in chat.text


@played
async def test_scrolling_up_stops_following_and_end_follows_again() -> None:
    engine = ScriptedEngine([words(LONG)], rounds_per_drain=20)
    async with chatting(engine, size=(80, 24)) as chat:
        await chat.say("long")
        await chat.beat(6)
        await chat.press("pageup")
        await chat.beat(2)
        scrolled = chat.text
        await chat.answer()
        left_behind = not chat.screen.transcript.following
        await chat.press("end")
        await chat.beat()

        assert "new  End = follow" in scrolled
        assert left_behind
        assert "Paragraph 39" in chat.text and "End = follow" not in chat.text


@played
async def test_following_keeps_the_end_of_a_growing_answer_in_view() -> None:
    engine = ScriptedEngine([words(LONG)], rounds_per_drain=20)
    async with chatting(engine, size=(80, 24)) as chat:
        await chat.say("long")
        await chat.answer()

        assert "Paragraph 39" in chat.text


@played
async def test_an_engine_that_fails_is_an_error_state_and_the_next_send_restarts_it() -> None:
    engine = ScriptedEngine([words("never"), words("back again")])
    async with chatting(engine) as chat:
        await chat.say("question")
        await chat.beat()
        error = EngineError("The model process died (signal 11).", "Send again to restart it.")
        engine._live.clear()
        engine._events.append(Failed(error=ErrorInfo.of(error)))
        await chat.beat(2)
        failed, returned = chat.text, chat.prompt.text
        await chat.press("enter")
        restarting = chat.bridge.state
        await chat.answer()

        assert "● ERROR" in failed
        assert 1 == failed.count("Error: The model process died (signal 11).")
        assert "LOADING" == restarting
        assert "question" == returned
        assert "back again" in chat.text and "IDLE" == state(chat)


@played
async def test_a_model_that_does_not_load_is_said_and_sets_the_exit_code() -> None:
    missing = ModelError("The model 'x' is not here.", "Pull it.")
    async with chatting(ScriptedEngine(failure=missing)) as chat:
        shown = chat.text
        await chat.press("ctrl+q")

    assert "Error: The model 'x' is not here. Pull it." in " ".join(shown.split())
    assert chat.app.problem is not None
    assert 3 == chat.app.problem.exit_code


@played
async def test_a_refused_turn_gives_the_text_back() -> None:
    engine = ScriptedEngine([words("never")])
    async with chatting(engine) as chat:
        await chat.say("too long")
        turn = engine._live.popleft()
        error = ErrorInfo(kind="PromptTooLongError", message="Too long.", hint="Shorten it.")
        engine._events.append(dataclasses.replace(turn._close(), reason="error", error=error))
        await chat.beat(2)

        assert "too long" == chat.prompt.text
        assert "Too long. Shorten it." in chat.text
        assert "ERROR" == state(chat)


@played
async def test_ctrl_c_stops_then_clears_then_asks_and_twice_quits() -> None:
    engine = ScriptedEngine([words("one two three four")])
    async with chatting(engine) as chat:
        await chat.say("count")
        await chat.beat(2)
        await chat.press("ctrl+c")
        await chat.beat(2)
        stopped = state(chat)
        chat.prompt.put("draft")
        await chat.press("ctrl+c")
        cleared = chat.prompt.text
        await chat.press("ctrl+c")
        still_on = chat.app.is_running
        await chat.press("ctrl+c")

        assert ("STOPPED", "", True) == (stopped, cleared, still_on)
        assert chat.app._exit


@played
async def test_a_terminal_too_small_says_so_and_comes_back() -> None:
    async with chatting(size=(80, 24)) as chat:
        await chat.say("hi")
        await chat.pilot.resize_terminal(20, 5)
        await chat.pilot.pause()
        small, shown = isinstance(chat.app.screen, TooSmallScreen), chat.text
        await chat.pilot.resize_terminal(80, 24)
        await chat.answer()

        assert small
        assert "20x5 is too small: flarechat needs 36x10." == " ".join(shown.split())
        assert "Hello there." in chat.text
