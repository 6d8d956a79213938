"""The chat screen under real keys, over a scripted engine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flarechat.config import Settings
from flarechat.errors import EngineError, ModelError, SessionError
from flarechat.protocol import ErrorInfo, Failed
from flarechat.sessions import store
from flarechat.sessions.session import SessionWriter
from flarechat.ui.app import FlarechatApp
from flarechat.ui.screens.small import TooSmallScreen
from flarechat.ui.widgets.lines import Header
from flarechat.ui.widgets.transcript import Transcript
from flarechat.ui.widgets.turn import NoteView, TailView, TurnView
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


@pytest.mark.parametrize("command", ["/new", "/clear", "/resume saved-before"])
def test_leaving_a_chat_gives_queued_text_back_to_the_prompt(command: str) -> None:
    @played
    async def run() -> None:
        scenes.save_chat("saved before")
        async with chatting(ScriptedEngine([words("a b c d e f")])) as chat:
            await chat.say("one")
            await chat.beat(2)
            await chat.say("two")
            await chat.say("three")
            await chat.say(command)
            await chat.beat(2)

            assert "two\n\nthree" == chat.prompt.text
            assert "You (queued)" not in chat.text

    run()


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
async def test_a_new_chat_starts_empty_and_leaves_the_old_one_saved() -> None:
    async with chatting() as chat:
        await chat.say("remember me")
        await chat.answer()
        await chat.press("ctrl+n")

        assert [] == chat.bridge.conversation.turns
        assert "Type a message" in chat.text
        assert ["remember-me"] == [info.name for info in store.listed()]


@played
async def test_a_chat_is_resumed_by_name_and_by_continue() -> None:
    scenes.save_chat("remember me")
    async with chatting(resume="remember-me") as chat:
        named = chat.text
    async with chatting(continue_last=True) as chat:
        continued = chat.text

    for text in (named, continued):
        assert "remember me" in text and "Hello there." in text


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"resume": "nowhere"}, "There is no session 'nowhere'."),
        ({"resume": "in-use"}, "in-use"),
        ({"continue_last": True}, "no"),
    ],
)
def test_a_chat_that_cannot_be_opened_ends_the_app_with_one_sentence(
    wanted: dict[str, Any], said: str
) -> None:
    @played
    async def run() -> None:
        held = []
        if "in-use" in wanted.values():
            scenes.save_chat("in use")
            held.append(SessionWriter.open(store.find("in-use"))[0])
        app = FlarechatApp(Settings(theme="dark"), ScriptedEngine(), **wanted)
        async with app.run_test() as pilot:
            await pilot.pause()
        for writer in held:
            writer.close()

        assert 2 == app.return_code
        assert isinstance(app.problem, SessionError)
        assert said in str(app.problem)

    run()


@played
async def test_a_torn_session_is_opened_with_a_notice() -> None:
    scenes.save_chat("torn page")
    with store.find("torn-page").open("a") as file:
        file.write('{"type":"user","id":"x","tex')
    async with chatting(resume="torn-page") as chat:
        assert "Hello there." in chat.text
        assert "torn-page" in chat.text and "line" in " ".join(
            note.render().plain for note in chat.screen.query(NoteView)
        )


@played
async def test_a_long_chat_mounts_its_newest_turns_and_older_ones_when_scrolled_to() -> None:
    scenes.save_chat("long talk", turns=80)
    async with chatting(resume="long-talk") as chat:
        newest = len(chat.screen.query(TurnView))
        end = chat.text
        chat.screen.transcript.scroll_home(animate=False)
        await chat.pilot.pause()
        await chat.pilot.pause()
        older = len(chat.screen.query(TurnView))
        numbers = [view.number for view in chat.screen.query(TurnView)]

        assert (60, 120) == (newest, older)
        assert "#160" in end
        assert list(range(41, 161)) == numbers


@played
async def test_a_locked_session_is_named_and_the_present_chat_stays() -> None:
    async with chatting() as owner:
        await owner.say("mine")
        await owner.answer()
        async with chatting() as other:
            await other.say("/resume mine")
            await other.beat()

            assert "Error: " in other.text and "mine" in other.text
            assert [] == other.bridge.conversation.turns


@played
async def test_the_panels_show_the_figures_of_the_round_totals() -> None:
    async with chatting(scenes.engine(), size=(120, 36)) as chat:
        await chat.say("go")
        await chat.answer()
        await chat.say("again")
        await chat.answer()
        totals, shown = chat.bridge.conversation.totals, chat.text
        source = totals.summary().by_source

        assert totals.emitted == totals.accepted + totals.rounds - totals.clipped
        row = next(line for line in shown.splitlines() if "total  " in line)
        figures = row.split("total")[1].split()
        assert [str(totals.offered), str(totals.accepted), str(totals.emitted)] == figures[:3]
        assert f"{source['mtp'].offered:>7}{source['mtp'].accepted:>9}" in shown
        assert f"{totals.rounds} rounds" in shown
        assert f"{totals.cost_ms(1):.1f}" in shown
        assert f"{totals.emitted} tok " in shown.splitlines()[-2]


@played
async def test_a_copy_names_the_turn_it_came_from() -> None:
    async with chatting(scenes.engine()) as chat:
        await chat.say("go")
        await chat.answer()
        await chat.say("again")
        await chat.beat(3)
        turn = chat.bridge.conversation.turns[1]

        assert "turn #2" == chat.screen.name_origin(turn.id)
        assert "another chat" == chat.screen.name_origin("elsewhere")


@played
async def test_drafting_switched_off_shows_a_badge_with_its_reason() -> None:
    async with chatting(size=(120, 36)) as chat:
        await chat.say("/spec off")
        await chat.beat(2)

        assert "SPEC OFF" in chat.text
        assert "draft tokens set to 0" in chat.text


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
async def test_quitting_saves_the_partial_turn() -> None:
    engine = ScriptedEngine([words("one two three four")])
    async with chatting(engine) as chat:
        await chat.say("count")
        await chat.beat(3)
        await chat.press("ctrl+q")
    async with chatting(continue_last=True) as chat:
        turn = chat.bridge.conversation.turns[-1]

    assert ("partial", "one two") == (turn.status, turn.text)


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
