"""Edit, answer again, continue, branch, undo: by keys, by mouse and by commands."""

from __future__ import annotations

from flarechat.chat import Turn
from flarechat.ui.widgets.turn import TurnView
from tests.fakes import ScriptedEngine, words
from tests.ui.harness import Chat, chatting, played

APPLE, PEAR, PLUM = (words(f"an answer of {fruit}") for fruit in ("apples", "pears", "plums"))


def three() -> ScriptedEngine:
    return ScriptedEngine([APPLE, PEAR, PLUM])


async def asked(chat: Chat, *texts: str) -> list[Turn]:
    """Send messages, wait for their answers; the turns there are then."""
    for text in texts:
        await chat.say(text)
        await chat.answer()
    return chat.bridge.conversation.turns


def texts(chat: Chat) -> list[str]:
    return [turn.text for turn in chat.bridge.conversation.turns]


@played
async def test_an_edited_message_is_sent_beside_the_old_one_and_arrows_lead_between_them() -> None:
    async with chatting(three()) as chat:
        await asked(chat, "one", "two")
        chat.prompt.put("a draft")
        await chat.press("shift+tab", "k", "k", "k", "e")
        editing, title = chat.prompt.text, chat.text
        await chat.say("uno")
        await chat.answer()
        edited, shown = texts(chat), chat.text
        await chat.press("shift+tab", "k", "left_square_bracket")
        back = texts(chat)

        assert "one" == editing and "esc leaves it" in title
        assert ["uno", "an answer of plums"] == edited
        assert "‹ 2/2 ›" in shown and "two" not in shown and "pears" not in shown
        assert ["one", "an answer of apples", "two", "an answer of pears"] == back
        assert "‹ 1/2 ›" in chat.text and "an answer of pears" in chat.text
        assert "a draft" == chat.prompt.text
        assert ["user"] == [m.role for m in chat.bridge.engine.requests[-1].messages]


@played
async def test_escape_leaves_an_edit_and_gives_the_draft_back() -> None:
    async with chatting(three()) as chat:
        before = list(await asked(chat, "one"))
        chat.prompt.put("a draft")
        await chat.press("shift+tab", "k", "e", "escape")
        draft = chat.prompt.text
        await chat.say("next")
        await chat.answer()

        assert "a draft" == draft and "Message" in chat.text
        assert "next" == chat.bridge.conversation.turns[-2].text
        assert before == chat.bridge.conversation.turns[: len(before)]


@played
async def test_a_message_that_begins_with_a_slash_is_edited_as_it_was_typed() -> None:
    async with chatting(three()) as chat:
        await asked(chat, "//help is a word")
        await chat.say("/edit")
        loaded = chat.prompt.text
        await chat.press("enter")
        await chat.answer()

        assert "//help is a word" == loaded
        assert ["/help is a word", "an answer of pears"] == texts(chat)


@played
async def test_an_edit_while_the_model_answers_is_refused_and_stays_in_the_prompt() -> None:
    async with chatting(three()) as chat:
        await asked(chat, "one")
        await chat.say("two")
        await chat.say("/edit 1")
        await chat.say("uno")
        refused = chat.text, chat.prompt.text
        await chat.answer()
        await chat.press("enter")
        await chat.answer()

        assert "still under way" in refused[0] and "uno" == refused[1]
        assert ["uno", "an answer of plums"] == texts(chat)


@played
async def test_r_answers_again_and_both_arrows_can_be_clicked() -> None:
    async with chatting(three()) as chat:
        await asked(chat, "one")
        await chat.press("shift+tab", "r")
        await chat.answer()
        again = texts(chat)
        await click(chat, "‹")
        first = texts(chat), chat.text
        await click(chat, "›")

        assert ["one", "an answer of pears"] == again
        assert ["one", "an answer of apples"] == first[0] and "‹ 1/2 ›" in first[1]
        assert again == texts(chat) and "‹ 2/2 ›" in chat.text
        assert chat.prompt.has_focus


async def click(chat: Chat, sign: str) -> None:
    """Click on an arrow."""
    rows = chat.text.splitlines()
    row = next(n for n, line in enumerate(rows) if sign in line)
    await chat.pilot.click(offset=(rows[row].index(sign), row))
    await chat.pilot.pause()


@played
async def test_the_way_back_to_a_branch_is_the_one_taken_last() -> None:
    async with chatting(three()) as chat:
        await asked(chat, "one", "two")
        await chat.say("/regen 2")
        await chat.answer()
        other = texts(chat)
        await chat.say("/other prev 2")

        assert ["one", "an answer of plums"] == other
        assert ["one", "an answer of apples", "two", "an answer of pears"] == texts(chat)


@played
async def test_c_goes_on_with_a_stopped_answer_only() -> None:
    engine = ScriptedEngine([words("one two three four"), words(" and more")])
    async with chatting(engine) as chat:
        await chat.say("count")
        await chat.beat(3)
        await chat.press("escape")
        await chat.beat(2)
        stopped = chat.text
        await chat.press("shift+tab", "c")
        await chat.beat()
        going = chat.text
        await chat.answer()
        ended = texts(chat)
        await chat.say("/continue")
        await chat.beat()

        assert "Model  stopped" in stopped
        assert "Model  writing" in going and "one two" in going
        assert ["count", "one two and more"] == ended
        assert "assistant" == engine.requests[-1].messages[-1].role
        assert "ended by itself" in chat.text
        assert "one two and more" in chat.text


@played
async def test_an_answer_that_is_not_the_last_does_not_go_on() -> None:
    async with chatting(three()) as chat:
        await asked(chat, "one", "two")
        await chat.press("shift+tab", "k", "k", "c")

        assert "Only the last answer goes on." in chat.text
        assert 2 == len(chat.bridge.engine.requests)


@played
async def test_b_goes_on_from_a_turn_and_redo_leads_back_until_something_is_said() -> None:
    async with chatting(three()) as chat:
        before = list(await asked(chat, "one", "two"))
        await chat.press("shift+tab", "k", "k", "b")
        short = texts(chat), chat.text
        await chat.say("/redo")
        back = list(chat.bridge.conversation.turns)
        await chat.say("/branch 2")
        await asked(chat, "three")
        await chat.say("/redo")

        assert ["one", "an answer of apples"] == short[0]
        assert "an answer of pears" not in short[1]
        assert before == back
        assert ["one", "an answer of apples", "three", "an answer of plums"] == texts(chat)
        assert "There is nothing to bring back." in chat.text


@played
async def test_undo_takes_back_turn_by_turn_and_redo_brings_them_back_in_order() -> None:
    async with chatting(three()) as chat:
        before = list(await asked(chat, "one", "two"))
        await chat.press("shift+tab", "u")
        once = texts(chat), chat.text
        await chat.say("/undo")
        twice = texts(chat), chat.text
        await chat.say("/undo")
        refused = chat.text
        await chat.say("/redo")
        await chat.press("shift+tab", "U")

        assert ["one", "an answer of apples"] == once[0] and "two" not in once[1]
        assert [] == twice[0] and "Type a message" in twice[1]
        assert "There is nothing to undo." in refused
        assert before == chat.bridge.conversation.turns
        assert [turn.id for turn in before] == [v.turn.id for v in chat.screen.query(TurnView)]


@played
async def test_turns_that_stay_keep_their_widgets() -> None:
    async with chatting(three()) as chat:
        await asked(chat, "one", "two")
        widgets = list(chat.screen.query(TurnView))
        await chat.say("/regen")
        await chat.answer()
        now = list(chat.screen.query(TurnView))

        assert widgets[:3] == now[:3]
        assert widgets[3] is not now[3] and not widgets[3].is_attached


@played
async def test_commands_on_turns_say_what_is_wrong() -> None:
    async with chatting(three(), size=(100, 40)) as chat:
        await chat.say("/edit")
        await asked(chat, "one")
        for line in ("/edit 2", "/edit 9", "/regen x", "/branch", "/other up", "/copy 0"):
            await chat.say(line)
        await chat.beat()

        for said in (
            "Nothing was said yet.",
            "Only a message can be edited.",
            "There is no turn 9. Turns are 1 to 2.",
            "There is no turn x.",
            "/branch needs the number of a turn.",
            "/other up is unknown.",
            "There is no turn 0.",
        ):
            assert said in chat.text, said


@played
async def test_the_keys_of_turn_mode_are_shown_in_it_and_are_buttons() -> None:
    async with chatting(three()) as chat:
        await asked(chat, "one")
        before = chat.text.splitlines()[-1]
        await chat.press("shift+tab")
        bar = chat.text.splitlines()[-1]
        await chat.pilot.click("#keys", offset=(bar.index("Again"), 0))
        await chat.answer()

        assert "Sessions" in before and "Again" not in before
        assert "Undo" in bar and "Sessions" not in bar
        assert ["one", "an answer of pears"] == texts(chat)
        assert before == chat.text.splitlines()[-1]


@played
async def test_the_tree_shows_every_branch_and_goes_to_any_turn() -> None:
    async with chatting(three(), size=(100, 30)) as chat:
        await asked(chat, "one", "two")
        await chat.say("/regen 2")
        await chat.answer()
        await chat.pick("shift+tab", "T")
        await chat.pilot.pause()
        shown = [line.strip("│ ").rstrip() for line in chat.text.splitlines()[3:8]]
        marked = chat.app.screen.marked
        head = chat.bridge.conversation.turns[-1].id
        await chat.press(*"two", "enter")
        await chat.pilot.pause()
        gone = texts(chat)
        selected = chat.screen.transcript.selected
        await chat.press("escape")
        await chat.say("/redo")

        assert [
            "● #1 You: one",
            "‹ 1/2 › #2 Model: an answer of apples",
            "#3 You: two",
            "#4 Model: an answer of pears",
            "●   ‹ 2/2 › #2 Model: an answer of plums",
        ] == shown
        assert head == marked
        assert ["one", "an answer of apples", "two", "an answer of pears"] == gone
        assert selected is not None and "two" == selected.text
        assert ["one", "an answer of plums"] == texts(chat)


@played
async def test_the_tree_of_an_empty_chat_says_that_nothing_was_said() -> None:
    async with chatting(three()) as chat:
        await chat.app.screen.run_action("tree")
        await chat.beat()

        assert "Nothing was said yet." in chat.text
