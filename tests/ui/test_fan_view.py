"""Several answers to one message on the screen: side by side, one at a time, picked, stopped."""

from __future__ import annotations

import pytest
from textual import events

from flarechat.protocol import ErrorInfo, Finished
from flarechat.sessions import store
from flarechat.sessions.session import Session
from flarechat.ui.format import ASCII
from flarechat.ui.widgets.fan import AnswerColumn, FanView
from tests.fakes import ScriptedEngine, words
from tests.ui.harness import Chat, chatting, check_snapshot, played

RED, GREEN, BLUE = "red is the first answer", "green is another answer", "blue"


def three(lanes: int = 4) -> ScriptedEngine:
    return ScriptedEngine([words(RED), words(GREEN), words(BLUE)], lanes=lanes)


async def fanned(chat: Chat, beats: int = 3, line: str = "/fan 3 Name a colour.") -> FanView:
    """Ask three ways and let the answers begin."""
    await chat.say(line)
    await chat.beat(beats)
    return chat.screen.tabs.current.fan


@played
async def test_answers_stream_side_by_side_in_a_wide_terminal() -> None:
    async with chatting(three(), size=(120, 36)) as chat:
        fan = await fanned(chat)
        row = next(line for line in chat.text.splitlines() if "red is" in line)

        assert "green is" in row and "blue" in row
        assert fan.has_focus
        assert 3 == len(chat.bridge.engine.requests)
        assert "mode fan 3" in chat.text
        assert "> 1 writing" in chat.text and "3 done" in chat.text


@played
async def test_in_a_narrow_terminal_a_number_shows_one_at_a_time() -> None:
    async with chatting(three()) as chat:
        await fanned(chat)
        first = chat.text
        await chat.press("2")
        second = chat.text
        await chat.press("right", "right")

        assert "red is" in first and "green" not in first
        assert "green is" in second and "red" not in second
        assert "[2 writing]" in second
        assert "[1 writing]" in chat.text


@played
async def test_an_answer_is_picked_by_key_and_the_chat_goes_on_with_it() -> None:
    engine = three()
    async with chatting(engine, size=(120, 36)) as chat:
        await fanned(chat, 12)
        done = chat.text
        await chat.press("2", "enter")
        picked = chat.text
        await chat.say("And why?")
        await chat.answer()
        contents = [message.content for message in engine.requests[-1].messages]

        assert ["Name a colour.", GREEN, "And why?"] == contents
        assert "#2 5 tok" in done
        assert "‹ 2/3 ›" in picked and GREEN in picked and RED not in picked
        assert not chat.screen.tabs.current.fan.display


@played
async def test_an_answer_is_marked_and_picked_with_the_mouse() -> None:
    async with chatting(three(), size=(120, 36)) as chat:
        fan = await fanned(chat, 12)
        columns = list(fan.query(AnswerColumn))
        await chat.pilot.click(columns[2], offset=(3, 3))
        await chat.pilot.pause()
        marked = chat.bridge.conversation.marked
        bar = str(fan.query_one("#fan-bar").render())
        await chat.pilot.click("#fan-bar", offset=(bar.index("go on with 3"), 0))
        await chat.pilot.pause()

        assert 2 == marked
        assert BLUE == chat.bridge.conversation.turns[-1].text


@played
async def test_picking_while_they_stream_stops_the_others_and_goes_on_with_the_one() -> None:
    engine = three()
    async with chatting(engine) as chat:
        await fanned(chat)
        await chat.press("2", "enter")
        focused = chat.prompt.has_focus
        await chat.beat(8)
        statuses = {
            t.text: t.status for t in Session(store.find("name-a-colour")).tree.turns.values()
        }

        assert focused
        assert GREEN in chat.text
        assert ("stopped", "complete") == (statuses["red is"], statuses[GREEN])
        assert [engine.requests[0].id] == engine.cancelled


@played
async def test_until_one_is_picked_sending_is_refused_and_the_text_given_back() -> None:
    engine = three()
    async with chatting(engine, size=(120, 36)) as chat:
        await fanned(chat, 12)
        await chat.press("tab")
        await chat.say("And why?")
        await chat.beat()
        refused, prompt = chat.text, chat.prompt.text
        await chat.say("/pick 1")
        await chat.say("And why?")

        assert "There are 3 answers to choose from. Pick one first: /pick 1" in refused
        assert "And why?" == prompt
        assert 4 == len(engine.requests)
        assert RED == engine.requests[-1].messages[1].content


@played
async def test_escape_stops_all_answers_and_the_choice_stays() -> None:
    engine = three()
    async with chatting(engine, size=(120, 36)) as chat:
        await fanned(chat)
        await chat.press("escape")
        await chat.beat(3)
        fan = chat.screen.tabs.current.fan

        assert {r.id for r in engine.requests[:2]} == set(engine.cancelled)
        assert ["stopped", "stopped", "complete"] == [turn.status for turn in fan.turns]
        assert "> 1 stopped" in chat.text and "STOPPED" in chat.text
        await chat.press("enter")
        assert "red is" in chat.text and not fan.display


@pytest.mark.parametrize(
    ("line", "lanes", "said"),
    [
        (
            "/fan 3 Go",
            2,
            "The engine gives 2 answers at a time; a fan of 3 needs 3. Start flarechat",
        ),
        ("/fan 2 Go", 1, "one answer at a time; a fan of 2 needs 2. Start flarechat with --conc"),
        ("/fan 9 Go", 4, "A fan has 2 to 4 answers, not 9."),
        ("/fan many", 4, "/fan needs a number."),
        ("/fan 2", 4, "There is no message to answer again."),
    ],
)
def test_a_fan_that_cannot_be_is_refused_and_the_line_given_back(
    line: str, lanes: int, said: str
) -> None:
    @played
    async def run() -> None:
        async with chatting(three(lanes), size=(100, 30)) as chat:
            await fanned(chat, 1, line)

            assert said in " ".join(chat.text.split())
            assert (line, []) == (chat.prompt.text, chat.bridge.engine.requests)

    run()


@played
async def test_an_answer_without_a_lane_says_that_it_waits() -> None:
    engine = three(lanes=3)
    async with chatting(engine, size=(120, 36)) as chat:
        await chat.say("first")
        await chat.beat(2)
        await chat.press("ctrl+n")
        await fanned(chat, 2)
        waiting = chat.text
        await chat.beat(12)

        assert "3 waiting for a free lane" in waiting
        assert "3 done" in chat.text


@played
async def test_a_fan_left_open_is_offered_again_when_the_chat_is_resumed() -> None:
    async with chatting(three()) as chat:
        await fanned(chat, 12)
    async with chatting(three(), resume="name-a-colour", size=(120, 36)) as chat:
        offered = chat.text
        await chat.press("3", "enter")
    async with chatting(three(), resume="name-a-colour") as chat:
        shown = chat.text

    assert RED in " ".join(offered.split()) and BLUE in offered and "mode fan 3" in offered
    assert "‹ 3/3 ›" in shown and BLUE in shown and "red is" not in shown


@played
async def test_the_answers_not_picked_can_be_looked_at_and_gone_on_with() -> None:
    engine = three()
    async with chatting(engine) as chat:
        await fanned(chat, 12)
        await chat.press("enter")
        await chat.press("shift+tab", "right_square_bracket")
        other = chat.text
        await chat.press("right_square_bracket", "right_square_bracket")
        await chat.press("escape")
        await chat.say("And why?")
        await chat.answer()

        assert "‹ 2/3 ›" in other and GREEN in other and RED not in other
        await chat.screen.show_conversation()
        assert 1 == chat.prompt.past.count("And why?")
        assert BLUE == engine.requests[-1].messages[1].content


@played
async def test_the_last_message_is_asked_again_in_several_ways() -> None:
    engine = ScriptedEngine([words("before"), words(RED), words(GREEN)], lanes=2)
    async with chatting(engine, size=(120, 36)) as chat:
        await chat.say("Name a colour.")
        await chat.answer()
        await fanned(chat, 12, "/fan 2")
        fan = chat.text
        await chat.press("enter")

        assert "before" not in fan and RED in " ".join(fan.split())
        assert ["Name a colour."] == [m.content for m in engine.requests[-1].messages]
        assert "‹ 2/3 ›" in chat.text


@played
async def test_answers_that_all_fail_leave_no_choice_and_give_the_text_back() -> None:
    engine = three()
    async with chatting(engine) as chat:
        await chat.say("/fan 2 too long")
        engine._live.clear()
        error = {"kind": "PromptTooLongError", "message": "Too long.", "hint": "Shorten it."}
        engine._events.extend(
            Finished.unplayed(request.id, "error", ErrorInfo(**error))
            for request in engine.requests
        )
        await chat.beat(2)

        assert [] == chat.bridge.conversation.fan
        assert "too long" == chat.prompt.text
        assert 1 == chat.text.count("Too long. Shorten it.") and "ERROR" in chat.text


@played
async def test_a_hidden_fan_is_marked_and_drawn_when_it_is_shown() -> None:
    async with chatting(three(), size=(120, 36)) as chat:
        await fanned(chat, 2)
        await chat.press("ctrl+n")
        await chat.beat(12)
        bar = chat.text.splitlines()[1]
        await chat.press("f7")

        assert "1 Name a colour. choose" in bar
        assert RED in " ".join(chat.text.split()) and chat.screen.tabs.current.fan.has_focus


@pytest.mark.parametrize("size", [(120, 36), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_fan_looks_as_stored(size: tuple[int, int]) -> None:
    @played
    async def run() -> None:
        async with chatting(three(), size=size) as chat:
            await fanned(chat, 4)
            await chat.press("2")
            await chat.beat()
            check_snapshot(f"fan-{size[0]}x{size[1]}", chat.text)
            await chat.pilot.resize_terminal(20, 5)
            await chat.pilot.pause()
            await chat.pilot.resize_terminal(*size)
            await chat.pilot.pause()
            check_snapshot(f"fan-{size[0]}x{size[1]}", chat.text)

    run()


@played
async def test_a_fan_in_ascii_uses_nothing_else() -> None:
    async with chatting(three(), size=(120, 36), marks=ASCII) as chat:
        await fanned(chat, 4)

        assert [] == [c for c in chat.text if ord(c) > 126]


@played
async def test_where_states_do_not_fit_in_the_row_every_answer_has_its_number_there() -> None:
    engine = ScriptedEngine([words(text) for text in (RED, GREEN, BLUE, "grey")], lanes=4)
    async with chatting(engine, size=(40, 12)) as chat:
        await fanned(chat, 2, "/fan 4 Name a colour.")
        await chat.press("4")
        row = next(line for line in chat.text.splitlines() if "[4" in line)

        assert row.startswith("  1   2   3  [4 ")


@played
async def test_a_message_begun_over_a_fan_lands_in_the_prompt_and_picks_nothing() -> None:
    async with chatting(three()) as chat:
        fan = await fanned(chat, 12)
        await chat.press("2")
        for key in "But why?":
            chat.app.post_message(events.Key(key, key))
        await chat.pilot.pause()
        await chat.press("enter")

        assert "But why?" == chat.prompt.text and chat.prompt.has_focus
        assert 3 == len(chat.bridge.conversation.fan) and fan.display and 1 == fan.marked
        assert "Pick one" in " ".join(chat.text.split())
