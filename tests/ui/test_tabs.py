"""Several chats in one window: opening, streaming at once, waiting, marks, closing, resuming."""

from __future__ import annotations

import pytest

from flarechat.config import Settings
from flarechat.errors import EngineError
from flarechat.protocol import ErrorInfo, Failed
from flarechat.sessions import store
from flarechat.sessions.session import Session
from flarechat.ui.format import UNICODE
from flarechat.ui.widgets.lines import Header
from flarechat.ui.widgets.tabbar import TabBar, TabState, tab_texts
from flarechat.ui.widgets.transcript import Transcript
from flarechat.ui.widgets.turn import TailView, TurnView
from tests.fakes import ScriptedEngine, words
from tests.ui import scenes
from tests.ui.harness import Chat, chatting, check_snapshot, played

FIRST, SECOND = "alpha beta gamma delta epsilon zeta", "one two three four five six"


def two(lanes: int = 2, **kw: int) -> ScriptedEngine:
    return ScriptedEngine([words(FIRST), words(SECOND)], lanes=lanes, **kw)


def bar(chat: Chat) -> str:
    """The row of tabs, "" while it is hidden."""
    row = chat.screen.query_one(TabBar)
    return str(row.render()) if row.display else ""


async def ask_in_two_tabs(chat: Chat) -> None:
    """A question in each of two tabs, the second one shown."""
    await chat.say("first question")
    await chat.beat(2)
    await chat.press("ctrl+n")
    await chat.say("second question")


@played
async def test_a_new_chat_opens_beside_one_with_turns_and_in_place_of_an_empty_one() -> None:
    async with chatting() as chat:
        await chat.press("ctrl+n")
        alone = len(chat.screen.tabs.panes), bar(chat)
        await chat.say("hello")
        await chat.answer()
        await chat.press("ctrl+n")
        await chat.beat()

        assert (1, "") == alone
        assert "1 hello" in bar(chat) and "[2 new chat]" in bar(chat)
        assert "Type a message" in chat.text and "Hello there." not in chat.text
        assert chat.prompt.has_focus


@played
async def test_two_chats_stream_at_once_each_into_its_own_transcript_and_session() -> None:
    async with chatting(two()) as chat:
        await ask_in_two_tabs(chat)
        await chat.beat(4)
        second = chat.text
        await chat.press("f7")
        await chat.beat()
        first = chat.text
        for _ in range(8):
            await chat.beat()
        await chat.press("f9")

        assert "one two" in second and "alpha" not in second
        assert "alpha beta gamma delta epsilon" in first and "one two" not in first
        assert SECOND in chat.text
        for name, answer in (("first-question", FIRST), ("second-question", SECOND)):
            assert answer == Session(store.find(name)).tree.path()[-1].text


@played
async def test_a_hidden_chat_draws_nothing_until_it_is_shown_again() -> None:
    async with chatting(two()) as chat:
        await ask_in_two_tabs(chat)
        hidden = chat.screen.tabs.panes[0]
        view, tail = hidden.transcript.query(TurnView).last(), hidden.transcript.query_one(TailView)
        before = list(tail.parts)
        await chat.beat(12)
        during = list(tail.parts), list(view.parts)
        await chat.press("f7")

        assert FIRST == hidden.bridge.conversation.turns[-1].text
        assert (before, []) == during
        assert FIRST in chat.text and [] == tail.parts


@played
async def test_what_went_on_in_a_hidden_chat_is_marked_until_it_is_looked_at() -> None:
    async with chatting(two(), size=(120, 36)) as chat:
        await ask_in_two_tabs(chat)
        await chat.beat(2)
        writing = bar(chat)
        await chat.beat(8)
        ended = bar(chat)
        await chat.press("f9")
        await chat.beat()

        assert "1 first question writing" in writing and "[2 second question writing]" in writing
        assert "1 first question new" in ended and "[2 second question]" in ended
        assert "[1 first question]" in bar(chat)


@played
async def test_without_a_free_lane_a_chat_waits_and_says_so() -> None:
    async with chatting(two(lanes=1)) as chat:
        await ask_in_two_tabs(chat)
        await chat.beat()
        waiting, state = chat.text, chat.screen.query_one(Header).state
        await chat.beat(14)
        later = chat.text

        assert "WAITING" == state.state and state.detail.startswith("for a free lane")
        assert "Model  waiting for a free lane" in waiting
        assert "All lanes of the engine are taken" in waiting
        assert "[2 second question waiting]" in waiting
        assert SECOND in later and "lane" not in later.split("Speculation")[0]


@played
async def test_escape_stops_the_answer_of_the_chat_shown_only() -> None:
    engine = two()
    async with chatting(engine) as chat:
        await ask_in_two_tabs(chat)
        await chat.beat(2)
        await chat.press("escape")
        await chat.beat(8)
        other = chat.screen.tabs.panes[0].bridge.conversation

        assert [engine.requests[1].id] == engine.cancelled
        assert "stopped" == chat.bridge.conversation.turns[-1].status
        assert ("complete", FIRST) == (other.turns[-1].status, other.turns[-1].text)


@played
async def test_a_chat_opened_in_a_tab_stands_at_its_end_and_earlier_prompts_are_known() -> None:
    scenes.save_chat("long ago", turns=20)
    async with chatting() as chat:
        await chat.say("hello")
        await chat.answer()
        await chat.say("/resume long-ago")
        await chat.beat()
        shown = chat.text
        await chat.press("ctrl+n", "up")
        newest = chat.prompt.text
        await chat.press("up", "up")

        assert "#40" in shown and "#1 " not in shown
        assert ("long ago", "hello") == (newest, chat.prompt.text)


@played
async def test_every_chat_keeps_its_own_draft_settings_queue_and_remarks() -> None:
    async with chatting(two()) as chat:
        await ask_in_two_tabs(chat)
        await chat.say("/set temperature 0.3")
        await chat.say("queued here")
        await chat.say("/show system")
        chat.prompt.put("half written")
        await chat.press("f7")
        first = chat.text, chat.prompt.text, chat.bridge.settings.temperature, chat.bridge.queue
        await chat.press("f9")
        await chat.beat()

        assert ("", None, []) == first[1:]
        assert "No system prompt" not in first[0]
        assert ("half written", 0.3) == (chat.prompt.text, chat.bridge.settings.temperature)
        assert ["queued here"] == chat.bridge.queue
        assert "No system prompt is set." in chat.text


@played
async def test_the_panels_show_the_chat_that_is_shown_and_its_lanes() -> None:
    engine = ScriptedEngine([words(FIRST * 4), scenes.speculative(scenes.ANSWER)], lanes=2)
    async with chatting(engine, size=(120, 36)) as chat:
        await ask_in_two_tabs(chat)
        await chat.beat(9)
        second = chat.text
        await chat.press("f7")
        await chat.beat()

        assert "2 lanes" in second
        assert "MTP           0" in chat.text and "MTP           0" not in second


@played
async def test_closing_a_chat_that_streams_stops_and_saves_it() -> None:
    engine = two()
    async with chatting(engine) as chat:
        await ask_in_two_tabs(chat)
        await chat.beat(4)
        await chat.press("ctrl+d")
        left = len(chat.screen.tabs.panes), bar(chat)
        await chat.beat(8)
        saved = Session(store.find("second-question")).tree.path()[-1]

        assert (1, "") == left
        assert [engine.requests[1].id] == engine.cancelled
        assert "one two" in saved.text
        assert FIRST in chat.text and chat.prompt.has_focus
        held = chat.bridge.conversation.name
        await chat.say("/resume second-question")
        assert 2 == len(chat.screen.tabs.panes) and held != chat.bridge.conversation.name


@played
async def test_a_tab_with_a_draft_or_waiting_messages_is_not_closed() -> None:
    async with chatting(two()) as chat:
        await ask_in_two_tabs(chat)
        chat.prompt.put("x")
        await chat.press("home", "ctrl+d")
        emptied = chat.prompt.text
        await chat.say("wait for me")
        await chat.press("ctrl+d")
        await chat.beat()

        assert "" == emptied
        assert 2 == len(chat.screen.tabs.panes)
        assert "Messages wait to be sent in this tab." in chat.text


@played
async def test_a_chat_that_is_open_is_gone_to_and_another_opens_in_a_tab() -> None:
    scenes.save_chat("saved before")
    async with chatting() as chat:
        await chat.say("hello")
        await chat.answer()
        await chat.say("/resume saved-before")
        opened = chat.bridge.conversation.name, len(chat.screen.tabs.panes)
        await chat.say("/resume hello")
        back = chat.bridge.conversation.name, len(chat.screen.tabs.panes)
        await chat.pick("ctrl+o", "enter")
        await chat.pilot.pause()

        assert ("saved-before", 2) == opened
        assert ("hello", 2) == back
        assert 2 == len(chat.screen.tabs.panes)


@pytest.mark.usefixtures("home")
def test_open_chats_cannot_be_deleted_from_the_list() -> None:
    @played
    async def run() -> None:
        scenes.save_chat("saved before")
        async with chatting() as chat:
            await chat.say("hello")
            await chat.answer()
            await chat.say("/resume saved-before")
            await chat.pick("ctrl+o", "delete")
            await chat.press("down", "delete")

            assert 2 == chat.text.count("(open)")
            assert 2 == len(store.listed())

    run()


@played
async def test_the_tab_command_lists_goes_opens_closes_and_refuses() -> None:
    async with chatting(two(), size=(100, 40)) as chat:
        await chat.say("/tab close")
        await chat.say("first question")
        await chat.say("/tab new")
        await chat.say("/tab 1")
        at_first = chat.screen.tabs.at
        await chat.say("/tab next")
        at_second = chat.screen.tabs.at
        for line in ("/tab", "/tab 7", "/tab sideways"):
            await chat.say(line)
        shown = chat.text
        await chat.say("/tab close")

        assert (0, 1, 1) == (at_first, at_second, len(chat.screen.tabs.panes))
        assert "This is the only tab." in chat.text
        assert "1 first question" in shown and "2 new chat" in shown
        assert "There is no tab 7. Tabs are 1 to 2." in shown
        assert "/tab sideways is unknown." in shown


@played
async def test_a_tab_is_a_button_too() -> None:
    async with chatting(two()) as chat:
        await ask_in_two_tabs(chat)
        await chat.pilot.click("#tabs", offset=(3, 0))
        await chat.pilot.pause()

        assert 0 == chat.screen.tabs.at


@played
async def test_an_engine_that_dies_is_told_where_it_was_asked_and_ends_every_answer() -> None:
    engine = two()
    async with chatting(engine) as chat:
        await ask_in_two_tabs(chat)
        await chat.beat(3)
        engine._live.clear()
        engine._events.append(Failed(error=ErrorInfo.of(EngineError("It died."))))
        await chat.beat(2)
        here, prompt = chat.text, chat.prompt.text
        await chat.press("f7")
        await chat.beat()

        assert 1 == here.count("Error: It died.")
        assert ("second question", "first question") == (prompt, chat.prompt.text)
        assert 1 == chat.text.count("Error: It died.") and "alpha" in chat.text


@played
async def test_leaving_saves_every_chat() -> None:
    engine = two()
    async with chatting(engine) as chat:
        await ask_in_two_tabs(chat)
        await chat.beat(3)
        await chat.press("ctrl+q")

    first = Session(store.find("first-question")).tree.path()[-1]
    second = Session(store.find("second-question")).tree.path()[-1]
    assert first.text.startswith("alpha beta") and second.text.startswith("one")
    assert {request.id for request in engine.requests} == set(engine.cancelled)


@played
async def test_restarting_is_refused_while_any_chat_is_answered() -> None:
    async with chatting(two()) as chat:
        await ask_in_two_tabs(chat)
        await chat.press("escape")
        await chat.beat(2)
        await chat.say("/restart")
        await chat.beat()

        assert "Press esc first, in every tab." in chat.text


@played
async def test_a_tab_opened_while_the_engine_starts_anew_waits_for_it() -> None:
    engine = ScriptedEngine([words("ok"), words("again")])
    async with chatting(engine) as chat:
        await chat.say("hello")
        await chat.answer()
        await chat.say("/restart")
        await chat.press("ctrl+n")
        restarting = chat.bridge.state
        await chat.say("early")
        await chat.answer()
        error = ErrorInfo.of(EngineError("It died."))
        engine._events.append(Failed(error=error))
        await chat.beat()
        await chat.press("ctrl+n")

        assert ("LOADING", "ERROR") == (restarting, chat.bridge.state)
        assert "again" == chat.screen.tabs.panes[1].bridge.conversation.turns[-1].text


@played
async def test_a_theme_is_the_windows() -> None:
    async with chatting(two(), settings=Settings(theme="dark")) as chat:
        await ask_in_two_tabs(chat)
        await chat.say("/set theme light")
        await chat.press("f7")

        assert "light" == chat.bridge.settings.theme


@played
async def test_there_is_an_end_to_tabs() -> None:
    async with chatting(ScriptedEngine([words("ok")])) as chat:
        for n in range(10):
            await chat.say(f"question {n}")
            await chat.answer()
            await chat.press("ctrl+n")
        await chat.beat()

        assert 9 == len(chat.screen.tabs.panes)
        assert "9 tabs are open. Close one first" in " ".join(chat.text.split())
        assert 9 == len(list(chat.screen.query(Transcript)))


@pytest.mark.parametrize("size", [(120, 36), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_tabs_look_as_stored(size: tuple[int, int]) -> None:
    @played
    async def run() -> None:
        async with chatting(two(), size=size) as chat:
            await ask_in_two_tabs(chat)
            await chat.press("ctrl+n")
            await chat.say("And what about a third one that is rather long?")
            await chat.beat(2)
            check_snapshot(f"tabs-{size[0]}x{size[1]}", chat.text)

    run()


def test_states_are_words_where_there_is_room_and_signs_where_not() -> None:
    tabs = [TabState("One long title here", "writing"), TabState("Two", "new"), TabState("Three")]

    assert ["[1 One long title here writing]", " 2 Two new ", " 3 Three "] == tab_texts(
        tabs, 0, 120, UNICODE
    )
    assert [" 1 One lon… ~ ", "[2 Two +]", " 3 Three "] == tab_texts(tabs, 1, 46, UNICODE)
    for width in range(20, 130):
        assert len(" ".join(tab_texts(tabs * 3, 4, width, UNICODE))) <= max(width, 9 * 7)
