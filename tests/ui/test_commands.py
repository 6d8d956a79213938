"""Slash commands and turn mode, as the next request and the screen show them."""

from __future__ import annotations

import pytest

from flarechat.protocol import Request
from flarechat.ui import editor
from flarechat.ui.screens.chat import ChatScreen
from tests.fakes import ScriptedEngine, words
from tests.ui.harness import Chat, chatting, played

CODE = "Look:\n\n```python\nx = 1\n```\n\nand\n\n```sh\nls\n```\n"


def last_request(chat: Chat) -> Request:
    engine = chat.bridge.engine
    assert isinstance(engine, ScriptedEngine)
    return engine.requests[-1]


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was put on the clipboard."""
    texts: list[str] = []
    monkeypatch.setattr(ChatScreen, "copy", lambda self, text, what: texts.append(text))
    return texts


@played
async def test_set_changes_the_next_turn() -> None:
    async with chatting() as chat:
        await chat.say("/set parameter temperature 0.7")
        await chat.say("/set parameter seed 11")
        await chat.say("/set system Answer in French.")
        await chat.say("hello")
        request = last_request(chat)

        assert (0.7, 11, 0.9) == (
            request.sampling.temperature,
            request.sampling.seed,
            request.sampling.top_p,
        )
        assert ("system", "Answer in French.") == (
            request.messages[0].role,
            request.messages[0].content,
        )


@played
async def test_set_takes_a_name_alone_and_says_what_is_missing() -> None:
    async with chatting(size=(100, 40)) as chat:
        for line in ("/set mtp off", "/set temperature 0.5", "/set temperature", "/set parameter"):
            await chat.say(line)
        await chat.say("/set mtp")
        await chat.say("/set mpt off")
        await chat.beat()

        assert (False, None) == (chat.bridge.settings.mtp, chat.bridge.settings.temperature)
        assert "/set parameter is incomplete. Write /set NAME VALUE" in chat.text
        assert "mtp '' is not legal. Give on, off." in chat.text
        assert "mpt is not a parameter. Did you mean mtp?" in chat.text


@played
async def test_set_refuses_what_is_out_of_range_or_unknown_and_changes_nothing() -> None:
    async with chatting() as chat:
        before = chat.bridge.settings
        await chat.say("/set parameter top_p 2")
        await chat.say("/set parameter tempreature 1")
        await chat.beat()

        assert before == chat.bridge.settings
        assert "--top-p 2 is out of range." in chat.text
        assert "Did you mean temperature?" in chat.text


@played
async def test_spec_turns_drafting_off_on_and_adaptive() -> None:
    async with chatting() as chat:
        seen = []
        for mode in ("off", "on", "auto"):
            await chat.say(f"/spec {mode}")
            await chat.say("go")
            await chat.answer()
            spec = last_request(chat).speculation
            seen.append((spec.draft_tokens, spec.adaptive))

        assert [(0, True), (7, False), (7, True)] == seen


@played
async def test_show_prints_what_is_in_force_and_sends_nothing() -> None:
    async with chatting(size=(100, 80)) as chat:
        for topic in ("info", "parameters", "system", "spec"):
            await chat.say(f"/show {topic}")
        await chat.say("/help")
        await chat.beat()

        assert "scripted-1m (llama, 1.0 M parameters)" in chat.text
        assert "temperature                0.2  (model)" in chat.text
        assert "No system prompt is set." in chat.text
        assert "adaptive width up to 8" in chat.text
        assert "/resume NAME" in chat.text
        assert [] == chat.bridge.engine.requests


@played
async def test_new_and_bye_do_what_they_say() -> None:
    async with chatting() as chat:
        await chat.say("hello")
        await chat.answer()
        await chat.say("/new")
        await chat.beat()
        emptied = list(chat.bridge.conversation.turns)
        await chat.say("/bye")

        assert [] == emptied
        assert chat.app._exit


@pytest.mark.usefixtures("home")
def test_copy_takes_the_last_answer_and_turn_mode_takes_turns_and_code(copied: list[str]) -> None:
    @played
    async def run() -> None:
        async with chatting(ScriptedEngine([words(CODE)])) as chat:
            await chat.say("code please")
            await chat.answer()
            await chat.say("/copy")
            await chat.press("shift+tab", "Y", "Y", "Y", "y", "k", "y")
            selected = len(chat.screen.query(".-selected"))
            await chat.press("escape", *"typed")

            assert [CODE, "x = 1", "ls", "x = 1", CODE, "code please"] == copied
            assert 1 == selected
            assert "typed" == chat.prompt.text
            assert 0 == len(chat.screen.query(".-selected"))

    run()


def test_the_editor_gets_the_prompt_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(editor, "edit", lambda app, text: text + " edited")

    @played
    async def run() -> None:
        async with chatting() as chat:
            chat.prompt.put("draft")
            await chat.press("f4")

            assert "draft edited" == chat.prompt.text

    run()


@played
async def test_telemetry_goes_from_compact_to_a_full_screen_to_off() -> None:
    async with chatting() as chat:
        seen = [chat.screen.dashboard.density]
        await chat.press("ctrl+t")
        full = chat.text
        await chat.press("ctrl+t")
        seen.append(chat.screen.dashboard.density)
        await chat.press("ctrl+t")
        seen.append(chat.screen.dashboard.density)

        assert ["compact", "off", "compact"] == seen
        assert "Round cost by verify width" in full and "Message" not in full


@played
async def test_telemetry_in_a_wide_terminal_cycles_beside_the_chat() -> None:
    async with chatting(size=(120, 36)) as chat:
        seen = [chat.screen.dashboard.density]
        for _ in range(3):
            await chat.press("ctrl+t")
            seen.append(chat.screen.dashboard.density)

        assert ["full", "off", "compact", "full"] == seen


def test_text_selected_with_the_mouse_is_copied_by_ctrl_c(copied: list[str]) -> None:
    @played
    async def run() -> None:
        async with chatting(ScriptedEngine([words("alpha beta gamma")])) as chat:
            await chat.say("go")
            await chat.answer()
            rows = chat.text.splitlines()
            row = next(n for n, line in enumerate(rows) if "alpha beta" in line)
            column = rows[row].index("beta")
            await chat.pilot.mouse_down(offset=(column, row))
            await chat.pilot.hover(offset=(column + 4, row))
            await chat.pilot.mouse_up(offset=(column + 4, row))
            await chat.press("ctrl+c")

            assert ["beta"] == [text.strip() for text in copied]
            assert chat.prompt.has_focus

    run()


class Forgetful(ScriptedEngine):
    """An engine that takes its time and, started again, has forgotten what it was asked."""

    def start(self) -> None:
        self._live.clear()


@played
async def test_restarting_again_ends_a_turn_the_engine_before_was_asked_for() -> None:
    engine = ScriptedEngine([words("never"), words("fresh")])
    async with chatting(engine) as chat:
        engine.__class__ = Forgetful
        await chat.say("/restart")
        await chat.say("question")
        await chat.say("more")
        await chat.say("/restart")
        await chat.beat(2)

        assert not chat.bridge.busy
        assert "question\n\nmore" == chat.prompt.text
        assert "Model  stopped" in chat.text
        assert "LOADING" == chat.bridge.state


@played
async def test_what_a_command_prints_while_answering_stands_above_the_answer() -> None:
    async with chatting(
        ScriptedEngine([words("first \n\n second \n\n and then the third part")])
    ) as chat:
        await chat.say("go")
        await chat.beat(4)
        await chat.say("/show system")
        await chat.answer()
        await chat.say("/show spec")
        await chat.beat()
        shown = chat.text

        assert shown.index("No system prompt") < shown.index("Model") < shown.index("first")
        assert shown.index("third part") < shown.index("speculation on")
