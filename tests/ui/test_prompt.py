"""The message box: sending, lines, history, pastes and bursts of keys."""

from __future__ import annotations

import pytest
from textual import events

from tests.fakes import ScriptedEngine, words
from tests.ui.harness import Chat, chatting, played

PASTE = "\n".join(f"line {n}" for n in range(84))


async def paste(chat: Chat, text: str) -> None:
    chat.prompt.post_message(events.Paste(text))
    await chat.pilot.pause()


def sent(chat: Chat) -> list[str]:
    engine = chat.bridge.engine
    assert isinstance(engine, ScriptedEngine)
    return [request.messages[-1].content for request in engine.requests]


@played
async def test_new_lines_come_from_ctrl_j_and_shift_enter_and_grow_the_box() -> None:
    async with chatting() as chat:
        await chat.press("a", "ctrl+j", "b", "shift+enter", "c")
        height = chat.prompt.size.height
        await chat.press("enter")

        assert 3 == height
        assert ["a\nb\nc"] == sent(chat)


@played
async def test_the_box_grows_to_ten_rows_and_no_further() -> None:
    async with chatting(size=(80, 36)) as chat:
        chat.prompt.put("\n".join("x" * 15))
        await chat.pilot.pause()

        assert 10 == chat.prompt.size.height


@played
async def test_an_empty_prompt_sends_nothing() -> None:
    async with chatting() as chat:
        await chat.press("space", "enter")

        assert [] == sent(chat)


@played
async def test_up_and_down_walk_through_earlier_prompts_and_back_to_the_draft() -> None:
    async with chatting() as chat:
        for text in ("first", "second"):
            await chat.say(text)
            await chat.answer()
        await chat.press(*"draft")
        seen = []
        for key in ("up", "up", "up", "down", "down"):
            await chat.press(key)
            seen.append(chat.prompt.text)

        assert ["second", "first", "first", "second", "draft"] == seen


@played
async def test_up_moves_inside_a_prompt_of_several_lines_first() -> None:
    async with chatting() as chat:
        await chat.say("earlier")
        await chat.answer()
        chat.prompt.put("one\ntwo")
        await chat.press("up")
        inside = (chat.prompt.text, chat.prompt.cursor_location[0])
        await chat.press("up")

        assert ("one\ntwo", 0) == inside
        assert "earlier" == chat.prompt.text


@played
async def test_earlier_prompts_are_searched_with_ctrl_r() -> None:
    async with chatting() as chat:
        for text in ("apples", "pears"):
            await chat.say(text)
            await chat.answer()
        await chat.pick("ctrl+r", *"appl", "enter")

        assert "apples" == chat.prompt.text


@played
async def test_a_large_paste_is_a_chip_that_is_sent_whole() -> None:
    async with chatting() as chat:
        await paste(chat, PASTE)
        shown = chat.prompt.text
        await chat.press("enter")

        assert f"[paste 1: {len(PASTE)} B, 84 lines]" == shown
        assert [PASTE] == sent(chat)


@played
async def test_a_chip_unfolds_in_place() -> None:
    async with chatting() as chat:
        chat.prompt.put("see ")
        await paste(chat, PASTE)
        await chat.press("left", "enter")

        assert "see " + PASTE == chat.prompt.text
        assert [] == sent(chat)


@played
async def test_every_paste_has_a_number_of_its_own_and_its_own_content() -> None:
    async with chatting() as chat:
        other = PASTE.replace("line", "text")
        await paste(chat, PASTE)
        await chat.press("left", "enter")
        await chat.press("ctrl+z")
        first = chat.prompt.text
        await chat.press("end")
        await paste(chat, other)
        whole = chat.prompt.whole
        await chat.press("enter")
        await paste(chat, PASTE)

        assert first.startswith("[paste 1: ")
        assert whole.count(PASTE) == 1 == whole.count(other)
        assert chat.prompt.text.startswith("[paste 3: ")


@played
async def test_a_paste_of_several_lines_can_be_undone_and_redone() -> None:
    async with chatting() as chat:
        text = "\n".join("x" * 30)
        await paste(chat, text)
        await chat.press("ctrl+z")
        undone = chat.prompt.text
        await chat.press("ctrl+y")

        assert "" == undone
        assert text == chat.prompt.text


@played
async def test_a_draft_that_comes_back_after_the_prompt_was_cleared_is_still_whole() -> None:
    async with chatting() as chat:
        await chat.say("earlier")
        await chat.answer()
        await paste(chat, PASTE)
        await chat.press("up", "ctrl+c", "down", "enter")

        assert ["earlier", PASTE] == sent(chat)


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        (("backspace",), "see "),
        (("left", "backspace"), "see "),
        (("left", "delete"), "see "),
        (("ctrl+w",), "see "),
        (("home", "delete"), "ee [paste"),
    ],
)
def test_a_chip_is_deleted_whole(keys: tuple[str, ...], left: str) -> None:
    @played
    async def run() -> None:
        async with chatting() as chat:
            chat.prompt.put("see ")
            await paste(chat, PASTE)
            await chat.press(*keys)

            assert left == chat.prompt.text[: len("ee [paste")].rstrip("\n")

    run()


@played
async def test_a_small_paste_is_inserted_without_its_control_characters() -> None:
    async with chatting() as chat:
        await paste(chat, "a\x1b[31mb\r\nc\x07\x9b")

        assert "a[31mb\nc" == chat.prompt.text


@pytest.mark.parametrize(
    ("typed", "settle", "expected"), [("hello\n", 0.01, ["hello"]), ("two\nlines\n", 0.6, [])]
)
def test_a_burst_of_keys_is_one_typed_line_or_a_paste(
    typed: str, settle: float, expected: list[str]
) -> None:
    @played
    async def run() -> None:
        async with chatting() as chat:
            chat.prompt.burst_gap, chat.prompt.burst_settle = 5.0, settle
            await chat.press(*("enter" if c == "\n" else c for c in typed))
            await chat.pilot.pause(settle + 0.1)

            assert expected == sent(chat)
            assert ("" if expected else typed) == chat.prompt.text

    run()


def post(chat: Chat, text: str) -> None:
    """Type without waiting for a key to be handled."""
    for c in text:
        key = {"\n": "enter", " ": "space"}.get(c, c)
        chat.app.post_message(events.Key(key, None if c == "\n" else c))


@played
async def test_keys_right_after_enter_are_written_after_the_message_was_sent() -> None:
    async with chatting() as chat:
        post(chat, "hi\nmore")
        await chat.pilot.pause()

        assert ["hi"] == sent(chat)
        assert "more" == chat.prompt.text


@played
async def test_lines_that_arrive_as_keys_without_a_pause_keep_their_order() -> None:
    async with chatting() as chat:
        chat.prompt.burst_gap, chat.prompt.burst_settle = 5.0, 0.01
        post(chat, "line one\nline two\nline three")
        await chat.pilot.pause(0.1)

        assert [] == sent(chat)
        assert "line one\nline two\nline three" == chat.prompt.text


@played
async def test_tab_completes_a_command_and_unknown_ones_are_refused_with_the_nearest() -> None:
    async with chatting() as chat:
        await chat.press(*"/ses", "tab")
        completed = chat.prompt.text
        await chat.say("/resmue old")
        await chat.beat()

        assert "/sessions " == completed
        assert "/resmue is not a command. Did you mean /resume?" in chat.text
        assert "/resmue old" == chat.prompt.text
        assert [] == sent(chat)


@played
async def test_two_slashes_send_a_literal_one() -> None:
    async with chatting(ScriptedEngine([words("ok")])) as chat:
        await chat.say("//etc/hosts")

        assert ["/etc/hosts"] == sent(chat)


@played
async def test_ctrl_d_quits_on_an_empty_prompt_only() -> None:
    async with chatting() as chat:
        chat.prompt.put("ab")
        await chat.press("home", "ctrl+d")
        kept = (chat.prompt.text, chat.app._exit)
        await chat.press("ctrl+d", "ctrl+d")

        assert ("b", False) == kept
        assert chat.app._exit


@played
async def test_ctrl_k_in_the_last_empty_line_deletes_nothing() -> None:
    async with chatting() as chat:
        await chat.press("a", "ctrl+j", "ctrl+k", "ctrl+k", "b")

        assert "a\nb" == chat.prompt.text
