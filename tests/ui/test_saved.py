"""Chats that are left, saved and opened again, over a scripted engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flarechat.config import Settings
from flarechat.errors import SessionError
from flarechat.sessions import store
from flarechat.sessions.session import SessionWriter
from flarechat.ui.app import FlarechatApp
from flarechat.ui.widgets.turn import NoteView, TurnView
from tests.fakes import ScriptedEngine, words
from tests.ui import scenes
from tests.ui.harness import chatting, played


@played
async def test_leaving_a_chat_in_its_place_gives_queued_text_back_to_the_prompt() -> None:
    async with chatting(ScriptedEngine([words("a b c d e f")])) as chat:
        await chat.say("one")
        await chat.beat(2)
        await chat.say("two")
        await chat.say("three")
        await chat.say("/clear")
        await chat.beat(2)

        assert "two\n\nthree" == chat.prompt.text
        assert "You (queued)" not in chat.text


@pytest.mark.parametrize("command", ["/new", "/resume saved-before"])
def test_another_chat_opens_beside_one_whose_queue_goes_on(command: str) -> None:
    @played
    async def run() -> None:
        scenes.save_chat("saved before")
        engine = ScriptedEngine([words("a b c d e f")])
        async with chatting(engine) as chat:
            await chat.say("one")
            await chat.beat(2)
            await chat.say("two")
            await chat.say(command)
            opened = chat.prompt.text, "You (queued)" in chat.text
            await chat.beat(12)

            assert ("", False) == opened
            assert ["one", "two"] == [r.messages[-1].content for r in engine.requests]

    run()


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
async def test_a_title_given_in_the_chat_is_kept_searched_and_shown_in_its_tab() -> None:
    async with chatting(size=(100, 30)) as chat:
        await chat.say("/title too early")
        await chat.beat()
        early = chat.text
        await chat.say("hello")
        await chat.answer()
        await chat.say("/title  Plans for\x1b the garden ")
        await chat.say("/tab new")
        await chat.beat()
        tabs = chat.text.splitlines()[1]
    info = store.listed()[0]
    async with chatting(resume="hello") as chat:
        resumed = chat.bridge.title
        await chat.say("/title")
        cleared = chat.bridge.title
        chat.bridge.conversation.retitle("a\x1b\nb")
        chat.bridge.conversation.retitle("")
        lines = store.find("hello").read_text("utf-8").splitlines()

    assert "This chat has no file to keep a title in." in early
    assert "Plans for the garden" in tabs
    assert ("hello", "Plans for the garden") == (info.name, info.title)
    assert ("Plans for the garden", "hello") == (resumed, cleared)
    assert "hello" == store.listed()[0].title
    assert ["a b", ""] == [json.loads(line)["title"] for line in lines[-2:]]
