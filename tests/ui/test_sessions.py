"""The sessions window: searching everything said, renaming, exporting, taking from files."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList, Select, Static

from flarechat.errors import StorageError
from flarechat.sessions import bundle, names, search, store
from flarechat.sessions.session import Session, SessionWriter
from flarechat.ui.screens import sessions as window
from flarechat.ui.screens.forms import Form
from flarechat.ui.screens.sessions import SessionsScreen
from flarechat.ui.widgets.transcript import Transcript
from tests.sessions import nodes
from tests.sessions.naming import naming, put
from tests.ui import scenes
from tests.ui.harness import Chat, chatting, played
from tests.vault.nodes import made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for more to be typed."""
    monkeypatch.setattr(window, "DELAY_S", 0.0)


async def listing(chat: Chat, query: str = "") -> SessionsScreen:
    """The sessions window, with what a search found in it."""
    await chat.pick("ctrl+o", *query)
    await settled(chat)
    screen = chat.app.screen
    assert isinstance(screen, SessionsScreen)
    return screen


async def settled(chat: Chat) -> None:
    await chat.app.workers.wait_for_complete()
    await chat.pilot.pause()


def said(chat: Chat) -> str:
    """The passing sentences so far."""
    return " ".join(note.message for note in chat.app._notifications)


async def apply(chat: Chat, **values: str) -> None:
    """Fill in a form and press enter."""
    form = chat.app.screen
    assert isinstance(form, Form)
    for name, value in values.items():
        field = form.query_one(f"#{name}")
        assert isinstance(field, Input | Select)
        field.value = value
        await chat.pilot.pause()
    form.query_one(Input).focus()
    await chat.press("enter")
    await settled(chat)
    await settled(chat)


@played
async def test_words_of_any_turn_find_a_chat_and_the_line_below_shows_them() -> None:
    for text in ("apples and pears", "bread and wine"):
        scenes.save_chat(text)
    scenes.save_chat("cheese", turns=3)
    async with chatting(size=(100, 30)) as chat:
        screen = await listing(chat, "hel ther")
        nothing = chat.text
        screen.query_one(Input).value = "hello th"
        await chat.pilot.pause()
        await settled(chat)
        rows = chat.text.splitlines()
        screen.query_one(Input).value = "wine hello"
        await chat.pilot.pause()
        await settled(chat)

        assert "No saved chat matches." in nothing
        for name in ("cheese", "bread-and-wine", "apples-and-pears"):
            row = next(n for n, line in enumerate(rows) if f" {name} " in line)
            which = " (1 of 3 places)" if name == "cheese" else ""
            assert f"Model{which}: Hello there." in rows[row + 1]
        assert "No saved chat matches." in chat.text


@played
async def test_titles_are_found_before_the_words_are_and_the_mark_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for text in ("hello one", "two", "hello three"):
        scenes.save_chat(text)
    go, find = threading.Event(), search.find

    def waiting(*args: object, **kwargs: object) -> list[search.Hit]:
        assert threading.current_thread() is not threading.main_thread()
        assert go.wait(20)
        return find(*args, **kwargs)

    monkeypatch.setattr(window, "find", waiting)
    async with chatting() as chat:
        await chat.pick("ctrl+o")
        await chat.press(*"hello", "down")
        screen = chat.app.screen
        assert isinstance(screen, SessionsScreen)
        options = screen.query_one(OptionList)
        early = [option.id for option in options.options], screen.marked
        go.set()
        await settled(chat)

        assert (["hello-three", "hello-one"], "hello-one") == early
        assert ["hello-three", "two", "hello-one"] == [option.id for option in options.options]
        assert "hello-one" == screen.marked


@played
async def test_a_chat_found_by_its_words_is_opened_at_them_even_far_above() -> None:
    scenes.save_chat("long talk", turns=80)
    path = store.find("long-talk")
    session = Session(path)
    path.write_text(
        path.read_text().replace('"text":"long talk"', '"text":"a needle of gold"', 1), "utf-8"
    )
    first = session.tree.path()[0]
    async with chatting() as chat:
        await listing(chat, "needle")
        await chat.press("enter")
        await settled(chat)
        transcript = chat.screen.query_one(Transcript)
        for _ in range(10):
            if "needle" not in chat.text:
                await chat.pilot.pause()

        assert transcript.selected is not None
        assert first.id == transcript.selected.id
        assert "a needle of gold" in chat.text
        assert transcript.has_focus


@played
async def test_a_chat_gets_another_name_and_title_but_not_one_that_is_taken() -> None:
    for text in ("bread", "cheese"):
        scenes.save_chat(text)
    async with chatting(size=(100, 30)) as chat:
        await listing(chat, "bread")
        await chat.press("f2")
        await apply(chat, name="cheese")
        refused = chat.text
        await apply(chat, name="loaf", title="How to bake")
        screen = chat.app.screen
        assert isinstance(screen, SessionsScreen)
        screen.query_one(Input).value = "bake"
        await chat.pilot.pause()
        await settled(chat)

        assert "There is a session 'cheese' already." in refused
        assert ["cheese", "loaf"] == sorted(info.name for info in store.listed())
        assert "This chat is now loaf." in said(chat)
        assert "loaf" in chat.text and "How to bake" in chat.text


@played
async def test_a_chat_that_is_written_elsewhere_is_not_renamed_and_says_so() -> None:
    scenes.save_chat("bread")
    writer, _ = SessionWriter.open(store.find("bread"))
    try:
        async with chatting() as chat:
            await listing(chat)
            await chat.press("tab", "r")
            await settled(chat)
            await apply(chat, name="loaf")

            assert "The session bread is open in process" in " ".join(chat.text.split())
            assert "bread" == store.listed()[0].name
    finally:
        writer.close()


@played
async def test_a_deletion_takes_along_what_was_computed_and_says_what_stays() -> None:
    trunk = made([1, 2])
    [stays, goes, other] = put(trunk, end := made([3], trunk), begun := made([4], trunk, offset=1))
    naming("bread", end)
    naming("wine", begun)
    async with chatting() as chat:
        await listing(chat, "bread")
        await chat.press("tab", "d", "y")
        await settled(chat)

        assert [True, False, True] == [path.exists() for path in (stays, goes, other)]
        assert "A snapshot stays, with words that no chat has any more" in said(chat)


@pytest.mark.parametrize("kind", ["markdown", "openai", "bundle"])
def test_a_chat_is_written_to_a_new_file_only(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @played
    async def run() -> None:
        scenes.save_chat("bread")
        async with chatting(size=(100, 30)) as chat:
            await listing(chat)
            await chat.press("tab", "e")
            await settled(chat)
            form = chat.app.screen
            form.query_one("#kind", Select).value = kind
            await chat.pilot.pause()
            named = form.query_one("#file", Input).value
            await apply(chat)
            await chat.press("e")
            await settled(chat)
            await apply(chat, kind=kind)

            written = (tmp_path / named).read_bytes()
            assert f"Wrote {named}." in said(chat)
            assert f"{named} is there already." in chat.text
            assert [tmp_path / named] == [file for file in tmp_path.iterdir() if file.is_file()]
            if kind == "openai":
                roles = [message["role"] for message in json.loads(written)["messages"]]
                assert ["user", "assistant"] == roles
            elif kind == "bundle":
                with bundle.opened(tmp_path / named) as packed:
                    assert store.find("bread").read_bytes() == packed.log()
            else:
                assert b"Hello there." in written

    run()


@played
async def test_a_bundle_takes_its_state_along_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    node = nodes.kept(None, 0, range(10, 16))
    vault, path = nodes.put(node), nodes.said("bread", (node, 6))
    async with chatting(size=(100, 30)) as chat:
        await listing(chat)
        await chat.press("tab", "e")
        await settled(chat)
        await apply(chat, kind="bundle", state="with")
        store.remove(path)
        vault.clear()
        await chat.press("n")
        await settled(chat)
        await apply(chat, file="bread.flarechat", state="without")
        without, there = said(chat), nodes.files()
        store.remove(store.find("bread"))
        await chat.press("n")
        await settled(chat)
        await apply(chat, file="bread.flarechat", state="with")

        assert ("left out its state" in without, there) == (True, {})
        assert "Took 1: bread." in said(chat)
        assert {node.digest: node.data} == nodes.files()


@played
async def test_a_file_is_taken_as_chats_or_it_is_said_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "about tea"}]}), "utf-8")
    async with chatting(size=(100, 30)) as chat:
        screen = await listing(chat)
        screen.query_one(Input).focus()
        await chat.app.run_action("take", screen)
        await chat.pilot.pause()
        await apply(chat, file=str(tmp_path / "none.json"))
        refused = " ".join(chat.text.split())
        await apply(chat, file=str(file))

        assert "none.json cannot be read" in refused
        assert "Took 1: about-tea." in said(chat)
        assert ["about-tea"] == [info.name for info in store.listed()]
        assert "about-tea" in [option.id for option in screen.query_one(OptionList).options]


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("~nouser/x.json", "~nouser/x.json begins with the home folder of nobody who is known."),
        ("a\0b.json", "That failed: ValueError: embedded null byte."),
    ],
)
def test_what_was_not_foreseen_is_a_sentence_in_the_form(file: str, said: str) -> None:
    @played
    async def run() -> None:
        async with chatting(size=(100, 30)) as chat:
            screen = await listing(chat)
            screen.query_one(Input).focus()
            await chat.app.run_action("take", screen)
            await chat.pilot.pause()
            form = chat.app.screen
            assert isinstance(form, Form)
            await form._apply({"file": file})

            assert said in str(form.query_one("#problem", Static).content)
            assert form is chat.app.screen

    run()


@played
async def test_a_folder_that_cannot_be_read_or_searched_is_said_and_titles_still_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **kwargs: object) -> list[search.Hit]:
        raise StorageError("The folder is locked away.", "Look for the key.")

    scenes.save_chat("bread")
    async with chatting() as chat:
        monkeypatch.setattr(window, "find", refuse)
        await listing(chat, "bre")
        shown = chat.text
        await chat.press("escape")
        monkeypatch.setattr(store, "listed", refuse)
        await listing(chat)

        assert "bread" in shown and "Only names and titles are searched" in said(chat)
        assert "Error: The folder is locked away. Look for the key." in chat.text


@played
async def test_of_very_many_chats_the_last_used_are_listed_and_the_title_says_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SessionsScreen, "LISTED", 2)
    for text in ("one", "two", "three"):
        scenes.save_chat(text)
    async with chatting() as chat:
        screen = await listing(chat)
        every = [option.id for option in screen.query_one(OptionList).options], chat.text
        screen.query_one(Input).value = "one"
        await chat.pilot.pause()
        await settled(chat)

        assert ["three", "two"] == every[0] and "Sessions (2 of 3)" in every[1]
        assert ["one"] == [option.id for option in screen.query_one(OptionList).options]
        assert " Sessions ─" in chat.text


def test_every_letter_of_a_name_can_be_searched_from_the_box() -> None:
    assert names.slug("dente rne") == "dente-rne"

    @played
    async def run() -> None:
        scenes.save_chat("dente rne")
        async with chatting() as chat:
            screen = await listing(chat, "dente rne")

            assert ["dente-rne"] == [o.id for o in screen.query_one(OptionList).options]

    run()
