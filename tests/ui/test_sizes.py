"""What the screen looks like at every size, as text that diffs; themes, NO_COLOR and ASCII."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from rich.style import Style

from flarechat.config import Settings
from flarechat.ui import themes
from flarechat.ui.format import ASCII, UNICODE, glyphs
from flarechat.ui.screens.telemetry import TelemetryScreen
from flarechat.ui.widgets.lines import Line
from tests.fakes import ScriptedEngine
from tests.ui import scenes
from tests.ui.harness import Chat, chatting, check_snapshot, played

SIZES = [(120, 36), (80, 24), (60, 20), (40, 12)]


async def mid_answer(chat: Chat) -> None:
    """A chat in the middle of its second answer, with a prompt being written."""
    await chat.say("What does this module do?")
    await chat.answer()
    await chat.say(scenes.QUESTION)
    await chat.beat(6)
    chat.prompt.put("and update the docstring too")
    await chat.beat()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_chat_looks_as_stored(size: tuple[int, int]) -> None:
    @played
    async def run() -> None:
        async with chatting(scenes.engine(2), size=size) as chat:
            await mid_answer(chat)
            check_snapshot(f"chat-{size[0]}x{size[1]}", chat.text)

    run()


@played
async def test_the_panels_end_with_a_whole_frame_with_a_row_of_tabs_and_without() -> None:
    async with chatting(size=(120, 36)) as chat:
        await chat.say("hello")
        await chat.answer()
        await chat.press("ctrl+n")
        await chat.beat()
        *_, title, hits, edge = beside(chat)
        await chat.press("ctrl+d")
        await chat.beat()
        *_, hits_alone, last, edge_alone = beside(chat)

        assert "History copy" in title and "hit 0/0" in hits
        assert "hit 0/2" in hits_alone and "last: none yet" in last
        assert "╰" + "─" * 39 + "╯" == edge == edge_alone


def beside(chat: Chat) -> list[str]:
    """The lines of the panels beside the chat."""
    return [line[79:] for line in chat.text.splitlines()[1:31]]


@played
async def test_the_chat_in_ascii_uses_nothing_else() -> None:
    async with chatting(scenes.engine(2), size=(120, 36), marks=ASCII) as chat:
        await mid_answer(chat)

        assert [] == [c for c in chat.text if ord(c) > 126]
        check_snapshot("chat-ascii", chat.text)


@played
async def test_the_telemetry_screen_looks_as_stored() -> None:
    async with chatting(scenes.engine(2)) as chat:
        await mid_answer(chat)
        await chat.press("ctrl+t")
        check_snapshot("telemetry-80x24", chat.text)


@pytest.mark.parametrize("key", ["f1", "f2", "ctrl+o"])
def test_every_window_looks_as_stored_and_survives_a_small_terminal(key: str) -> None:
    @played
    async def run() -> None:
        async with chatting() as chat:
            await chat.press(key)
            check_snapshot(f"window-{key}", chat.text)
            await chat.pilot.resize_terminal(20, 5)
            await chat.pilot.pause()
            await chat.pilot.resize_terminal(80, 24)
            await chat.pilot.pause()
            check_snapshot(f"window-{key}", chat.text)

    run()


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_draw_the_same_words_in_other_colours(theme: str) -> None:
    @played
    async def run() -> None:
        async with chatting(scenes.engine(2), settings=Settings(theme=theme)) as chat:
            await mid_answer(chat)
            check_snapshot("chat-80x24", chat.text)
            background = chat.app.screen.styles.background

            assert (background.brightness < 0.5) == (theme == "dark")

    run()


@played
async def test_a_terminal_that_starts_too_small_shows_the_chat_once_enlarged() -> None:
    async with chatting(size=(20, 5)) as chat:
        small = " ".join(chat.text.split())
        await chat.pilot.resize_terminal(36, 10)
        await chat.press("f2")
        check_snapshot("window-f2-36x10", chat.text)
        await chat.press("escape")
        await chat.say("hi")
        await chat.answer()

        assert "20x5 is too small: flarechat needs 36x10." == small
        assert "Hello there." in chat.text


@played
async def test_the_telemetry_screen_closes_once_the_panels_fit_beside_the_chat() -> None:
    async with chatting() as chat:
        await chat.press("ctrl+t")
        apart = type(chat.app.screen)
        await chat.pilot.resize_terminal(120, 36)
        await chat.pilot.pause()

        assert TelemetryScreen is apart
        assert chat.screen is chat.app.screen
        assert "full" == chat.screen.dashboard.density


@played
async def test_the_telemetry_screen_closes_too_after_the_terminal_was_too_small() -> None:
    async with chatting() as chat:
        await chat.press("ctrl+t")
        await chat.pilot.resize_terminal(20, 5)
        await chat.pilot.pause()
        await chat.pilot.resize_terminal(120, 36)
        await chat.pilot.pause()

        assert chat.screen is chat.app.screen
        assert "full" == chat.screen.dashboard.density


def test_auto_follows_the_terminals_own_background() -> None:
    assert "textual-light" == themes.choose("auto", {"COLORFGBG": "0;15"})
    assert "textual-dark" == themes.choose("auto", {"COLORFGBG": "15;0"})
    assert "nord" == themes.choose("auto", {"TEXTUAL_THEME": "nord"})


def test_the_locale_chooses_the_glyphs() -> None:
    assert ASCII == glyphs({"LC_ALL": "C", "LANG": "en_US.UTF-8"})
    assert UNICODE == glyphs({"LANG": "en_US.UTF-8"})
    assert ASCII == glyphs({"LANG": "de_DE.ISO-8859-1"})


def test_the_interface_imports_no_torch() -> None:
    code = (
        "import sys, flarechat.ui.app, flarechat.ui.opening\n"
        "import flarechat.ui.screens.sessions, flarechat.ui.screens.settings\n"
        "print([n for n in ('torch', 'transformers', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )

    assert "[]" == done.stdout.strip()


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_keys_in_a_row_of_buttons_look_alike_and_a_hint_is_fainter_than_a_tab(theme: str) -> None:
    @played
    async def run() -> None:
        settings = Settings(theme=theme)
        async with chatting(ScriptedEngine(lanes=2), size=(120, 36), settings=settings) as chat:
            await chat.say("hello")
            await chat.answer()
            await chat.press("ctrl+n")
            await chat.say("/fan 2 hello")
            await chat.answer()
            keys = colours(chat.screen.tabs.current.fan.query_one(Line))
            tabs = colours(chat.screen.query_one("#tabs", Line))

            assert keys["enter"].color == keys["1-2"].color == keys["tab"].color
            assert contrast(tabs["1 hello"]) > contrast(tabs["f7 f9 go  ctrl+d close"]) > 80

    run()


def colours(line: Line) -> dict[str, Style]:
    """What is written in each style, without the blanks around it."""
    return {part.text.strip(): part.style for part in line.render_line(0) if part.style}


def contrast(style: Style) -> int:
    """How far the letters are from what is behind them, 0 to 765."""
    assert style.color and style.bgcolor
    pairs = zip(style.color.get_truecolor(), style.bgcolor.get_truecolor(), strict=True)
    return sum(abs(letter - ground) for letter, ground in pairs)
