"""Sessions, settings, keys and the palette."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual.widgets import Input, Select, Static

from flarechat.errors import SessionError, SettingsError
from flarechat.sessions import store
from flarechat.ui import themes
from flarechat.ui.format import UNICODE
from flarechat.ui.markdown import layout
from flarechat.ui.screens.chat import ChatScreen
from flarechat.ui.screens.confirm import ConfirmScreen
from flarechat.ui.screens.forms import Form
from flarechat.ui.screens.keys import KEYS, KeysScreen, help_blocks
from flarechat.ui.screens.picker import Picker
from flarechat.ui.screens.sessions import SessionsScreen
from flarechat.ui.screens.tokens import TokensScreen
from flarechat.ui.slash import COMMANDS
from flarechat.ui.widgets.fan import FanView
from flarechat.ui.widgets.lines import HeaderState, header_text
from flarechat.ui.widgets.prompt import Prompt
from flarechat.ui.widgets.tokens import TokenGrid
from flarechat.ui.widgets.transcript import Transcript
from tests.ui import scenes
from tests.ui.harness import chatting, played


def three_chats() -> None:
    for text in ("apples and pears", "bread", "cheese"):
        scenes.save_chat(text)


@played
async def test_sessions_are_searched_by_title_and_opened() -> None:
    three_chats()
    async with chatting() as chat:
        await chat.pick("ctrl+o")
        listed = chat.text
        await chat.press(*"pears")
        narrowed = chat.text
        await chat.press("enter")
        await chat.beat()

        assert "bread" in listed and "cheese" in listed and "2 turns" in listed
        assert "apples-and-pears" in narrowed and "cheese" not in narrowed
        assert "apples-and-pears" == chat.bridge.conversation.name
        assert "apples and pears" in chat.text and "Hello there." in chat.text


@played
async def test_a_session_is_deleted_after_a_yes_only() -> None:
    three_chats()
    async with chatting() as chat:
        await chat.pick("ctrl+o", *"bread", "tab", "d", "n")
        kept = len(store.listed())
        await chat.press("d")
        asked = chat.text
        await chat.press("y")

        assert 3 == kept
        assert "Delete the chat bread?" in asked
        assert ["apples-and-pears", "cheese"] == sorted(info.name for info in store.listed())
        assert isinstance(chat.app.screen, SessionsScreen)


@played
async def test_saved_chats_are_read_aside_once_and_again_after_a_delete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers: list[threading.Thread] = []
    listed = store.listed

    def reading() -> list[store.SessionInfo]:
        readers.append(threading.current_thread())
        return listed()

    three_chats()
    async with chatting() as chat:
        monkeypatch.setattr(store, "listed", reading)
        await chat.pick("ctrl+o", *"bread")
        typed = len(readers)
        await chat.pick("tab", "d", "y")
        await chat.app.workers.wait_for_complete()
        await chat.pilot.pause()

        assert [1, 2] == [typed, len(readers)]
        assert threading.main_thread() not in readers
        assert "No saved chat matches." in chat.text


@played
async def test_escape_closes_the_sessions_and_changes_nothing() -> None:
    three_chats()
    async with chatting() as chat:
        await chat.pick("ctrl+o", "escape")

        assert isinstance(chat.app.screen, ChatScreen)
        assert [] == chat.bridge.conversation.turns


@played
async def test_settings_apply_to_the_next_turn_and_say_what_is_wrong() -> None:
    async with chatting(size=(100, 40)) as chat:
        await chat.press("f2")
        screen = chat.app.screen
        screen.query_one("#top_p", Input).value = "2"
        screen.query_one("#history_drafts", Select).value = "off"
        screen.query_one("#theme", Select).value = "light"
        await chat.press("ctrl+s")
        refused = chat.text
        screen.query_one("#top_p", Input).value = "0.5"
        await chat.press("ctrl+s")
        await chat.say("go")
        request = chat.bridge.engine.requests[-1]

        assert "--top-p 2 is out of range." in refused
        assert 0.5 == request.sampling.top_p
        assert not request.speculation.history_drafts
        assert "textual-light" == chat.app.theme


@played
async def test_a_system_prompt_is_cleared_by_an_empty_one_and_kept_by_an_untouched_field() -> None:
    async with chatting() as chat:
        await chat.press("f2", "enter")
        untouched = chat.bridge.settings.system
        await chat.say("/set system")
        cleared = chat.bridge.settings.system

        assert (None, "") == (untouched, cleared)


ESCAPE = "a\x1b]0;b\x07\x9bc"
CLEAN = "a]0;bc"


def test_the_header_shows_no_control_character_of_a_model_name() -> None:
    text = header_text(HeaderState(model=ESCAPE), 80, UNICODE)

    assert CLEAN in text


@played
async def test_a_question_shows_no_control_character() -> None:
    async with chatting() as chat:
        await chat.app.push_screen(ConfirmScreen(f"Delete {ESCAPE}?", f"{ESCAPE} goes."))
        await chat.pilot.pause()
        screen = chat.app.screen

        assert f"Delete {CLEAN}?" == str(screen.query_one(".box").border_title)
        assert f"{CLEAN} goes." in str(screen.query_one(Static).content)


@played
async def test_a_chat_that_cannot_be_deleted_is_named_without_control_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: Path) -> None:
        raise SessionError(f"{ESCAPE} is in use.", "Close it.")

    three_chats()
    async with chatting() as chat:
        monkeypatch.setattr(store, "remove", refuse)
        await chat.pick("ctrl+o", *"bread", "tab", "d", "y")
        said = [note.message for note in chat.app._notifications]

        assert [f"{CLEAN} is in use. Close it."] == said


@played
async def test_a_refused_setting_is_shown_without_control_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> str:
        raise SettingsError(f"theme {ESCAPE} is unknown.", "Give dark.")

    async with chatting() as chat:
        await chat.press("f2")
        monkeypatch.setattr(themes, "choose", refuse)
        await chat.press("ctrl+s")

        assert CLEAN in str(chat.app.screen.query_one("#problem", Static).content)


@played
async def test_leaving_the_settings_with_escape_changes_nothing() -> None:
    async with chatting() as chat:
        before = chat.bridge.settings
        await chat.press("f2", "9", "escape")

        assert before == chat.bridge.settings
        assert isinstance(chat.app.screen, ChatScreen)


@played
async def test_the_keys_screen_states_the_identity_and_closes() -> None:
    async with chatting(size=(100, 70)) as chat:
        await chat.press("f1")
        shown = chat.text
        await chat.press("escape")

        assert "Writing" in shown and "search earlier prompts" in shown
        assert isinstance(chat.app.screen, ChatScreen)


def test_the_help_covers_every_binding_command_and_term() -> None:
    text = layout(help_blocks(), 200).plain
    keys = " ".join(key for key, _ in KEYS)
    bindings = [
        *ChatScreen.BINDINGS, *Prompt.BINDINGS, *Transcript.BINDINGS, *FanView.BINDINGS,
        *TokenGrid.BINDINGS, *TokensScreen.BINDINGS,
    ]  # fmt: skip
    signs = {"left_square_bracket": "[", "right_square_bracket": "]", "2": "to", "3": "to"}

    assert "emitted = accepted + rounds - clipped" in text
    assert "the model's own tokens" in text and "one a round" not in text
    for binding in bindings:
        names = signs.get(binding.key, binding.key).replace("escape", "esc").split(",")
        documented = any(name in keys for name in names)
        assert documented, f"{binding.id} ({binding.key}) is not in the help"
    for command in COMMANDS:
        assert command.usage in text


def test_every_binding_has_an_id_that_is_used_once() -> None:
    bindings = [
        *ChatScreen.BINDINGS,
        *Prompt.BINDINGS,
        *Transcript.BINDINGS,
        *FanView.BINDINGS,
        *Picker.BINDINGS,
        *SessionsScreen.BINDINGS,
        *TokenGrid.BINDINGS,
        *TokensScreen.BINDINGS,
        *Form.BINDINGS,
    ]
    ids = [binding.id for binding in bindings]

    assert None not in ids
    assert len(ids) == len(set(ids))


@played
async def test_the_palette_offers_the_chat_commands() -> None:
    async with chatting() as chat:
        titles = [command.title for command in chat.app.get_system_commands(chat.app.screen)]
        await chat.press("ctrl+p")
        opened = type(chat.app.screen).__name__

        assert "CommandPalette" == opened
        assert {"New chat", "Sessions", "Settings", "Telemetry", "Keys", "Quit"} <= set(titles)


@played
async def test_the_key_hints_are_buttons_too() -> None:
    async with chatting() as chat:
        bar = chat.text.splitlines()[-1]
        await chat.pilot.click("#keys", offset=(bar.index("Keys"), 0))
        await chat.pilot.pause()

        assert isinstance(chat.app.screen, KeysScreen)
