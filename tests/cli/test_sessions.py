"""`flarechat sessions` search, rename, export and import."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.sessions import store
from flarechat.sessions.session import SessionWriter
from tests.cli.conftest import Cli
from tests.sessions.saving import append, saved


def test_a_search_lists_where_the_words_are_found(cli: Cli) -> None:
    saved("trip", "Where is Rome?", "In \x1b[1m Italy, and Rome is old.")
    saved("work", "Sort this.")

    got = cli("sessions", "search", "rome", "ital*")

    rows = [line.split(maxsplit=4) for line in got.out.splitlines()]
    assert (0, "") == (got.code, got.err)
    assert ["NAME", "CHANGED", "PLACES", "FOUND"] == rows[0]
    assert [["trip", "just", "now", "1", "In [1m «Italy», and «Rome» is old."]] == rows[1:]


def test_a_search_as_json_says_what_matched(cli: Cli) -> None:
    path = saved("trip", "Where is Rome?")
    saved("rome", "And now?")

    got = cli("sessions", "search", "--json", "--limit", "5", "rome")

    rome, trip = sorted(json.loads(got.out), key=lambda hit: str(hit["name"]))
    assert ("rome", "title", "") == (rome["name"], rome["role"], rome["turn"])
    assert (str(path), "user", "Where is Rome?", [[9, 13]], 1) == (
        trip["path"],
        trip["role"],
        trip["snippet"],
        trip["marks"],
        trip["places"],
    )
    assert 1 == len(json.loads(cli("sessions", "search", "--json", "--limit", "1", "rome").out))


def test_a_search_that_finds_nothing_says_so_on_stderr(cli: Cli) -> None:
    got = cli("sessions", "search", '"', "AND")

    assert (0, "", "No session has all these words in one place.\n") == (got.code, got.out, got.err)
    assert "[]\n" == cli("sessions", "search", "--json", "x").out


def test_a_session_is_renamed_and_titled(cli: Cli) -> None:
    saved("trip", "Hi")

    got = cli("sessions", "rename", "tri", "rome", "--title", "A trip\nto Rome")

    assert (0, "", "") == (got.code, got.out, got.err)
    assert [("rome", "A trip to Rome")] == [(i.name, i.title) for i in store.listed()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trip",), "There is nothing to change."),
        (("trip", "work"), "There is a session 'work' already."),
        (("trip", "../x"), "'../x' is not a session name."),
        (("none", "x"), "There is no session 'none'."),
    ],
)
def test_a_rename_that_cannot_be_gets_a_sentence(
    cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    saved("trip", "Hi")
    saved("work", "Hi")

    got = cli("sessions", "rename", *arguments)

    assert (2, "") == (got.code, got.out)
    assert f"flarechat: {message}\n" in got.err
    assert ["trip", "work"] == sorted(info.name for info in store.listed())


def test_an_open_session_is_not_renamed(cli: Cli) -> None:
    writer, _ = SessionWriter.open(saved("trip", "Hi"))

    got = cli("sessions", "rename", "trip", "rome")
    writer.close()

    assert 2 == got.code
    assert f"The session trip is open in process {os.getpid()}." in got.err


def test_an_export_goes_to_stdout_or_to_a_file_that_was_not_there(cli: Cli) -> None:
    saved("trip", "Hi", "Hello")

    got = cli("sessions", "export", "trip")
    assert (0, "# Hi\n\n## You\n\nHi\n\n## Model\n\nHello\n", "") == (got.code, got.out, got.err)
    assert 0 == cli("sessions", "export", "trip", "--out", "trip.md").code
    assert got.out == Path("trip.md").read_text()

    again = cli("sessions", "export", "trip", "--out", "trip.md", "--format", "html")
    assert (2, True) == (again.code, "trip.md is there already." in again.err)
    assert got.out == Path("trip.md").read_text()
    assert (
        0
        == cli("sessions", "export", "trip", "--out", "trip.md", "--format", "html", "--force").code
    )
    assert Path("trip.md").read_text().startswith("<!DOCTYPE html>")
    assert ["trip.md"] == os.listdir()


def test_an_export_has_the_branches_and_the_thinking_that_were_asked_for(cli: Cli) -> None:
    path = saved("trip", "Hi", "Hello")
    append(path, ["Salve"], parent=next(iter(store.Session(path).tree.turns)), thinking="Latin")

    def exported(*flags: str) -> str:
        return cli("sessions", "export", "trip", "--format", "openai", *flags).out

    assert ("Hello" in exported(), "Salve" in exported()) == (False, True)
    assert "Hello" in exported("--branch", "all")
    assert ("Latin" in exported(), "Latin" in exported("--thinking")) == (False, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--format", "pdf"), "--format pdf is none that is written."),
        (("--branch", "left"), "--branch left is neither all nor head."),
        (("--format", "jsonl", "--branch", "head"), "A jsonl has all branches."),
        (("--out", "."), ". is a folder."),
        (("--out", ".", "--force"), ". is a folder."),
        (("--out", "/", "--force"), "/ is a folder."),
        (("--out", "..", "--force", "--format", "bundle"), ".. is a folder."),
        (("--out", "none/x.md"), "none/x.md cannot be written: No such file or directory."),
    ],
)
def test_an_export_that_cannot_be_gets_a_sentence(
    cli: Cli, flags: tuple[str, ...], message: str
) -> None:
    saved("trip", "Hi")

    got = cli("sessions", "export", "trip", *flags)

    assert (True, "") == (got.code in (1, 2), got.out)
    assert f"flarechat: {message}\n" in got.err
    assert [] == os.listdir()


def test_a_bundle_is_a_file_of_the_sessions_name_and_comes_back(cli: Cli) -> None:
    path = saved("trip", "Hi", "Hello")
    data = path.read_bytes()

    assert 0 == cli("sessions", "export", "trip", "--format", "bundle").code
    assert ["trip.flarechat"] == os.listdir()
    here = cli("sessions", "import", "trip.flarechat")
    assert 2 == here.code
    assert "trip.flarechat is here already, as trip.\n" in here.err
    assert "trip2\n" == cli("sessions", "import", "--as", "trip2", "trip.flarechat").out
    cli("sessions", "rm", "--yes", "trip")
    assert "trip\n" == cli("sessions", "import", "trip.flarechat").out
    assert data == path.read_bytes()


def test_an_import_prints_names_and_says_what_it_left_out(cli: Cli) -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "image_url"}]
    chats = [{"messages": [{"role": "user", "content": parts}]}]
    Path("chats.json").write_text(json.dumps(chats * 2))

    got = cli("sessions", "import", "chats.json")

    assert (0, "hi-image\nhi-image-2\n") == (got.code, got.out)
    notice = "flarechat: chats.json has more than was taken of hi-image: image ×1.\n"
    assert 2 == got.err.count(notice)


@pytest.mark.parametrize("arguments", [("a.json", "b.json", "--as", "x"), ("none.json",), (".",)])
def test_an_import_that_cannot_be_gets_a_sentence(cli: Cli, arguments: tuple[str, ...]) -> None:
    got = cli("sessions", "import", *arguments)

    assert (2, "") == (got.code, got.out)
    assert got.err.startswith("flarechat: ")
    assert [] == os.listdir(paths.sessions_dir())


def test_texts_without_an_encoding_are_shown_all_the_same(cli: Cli) -> None:
    """A file may hold half a surrogate pair, which no terminal can be sent."""
    saved("trip", "half \ud800 a pair", "ok")

    for command in (("list",), ("show", "trip"), ("search", "pair"), ("export", "trip")):
        got = cli("sessions", *command)
        assert (0, "") == (got.code, got.err)
        assert "half" in got.out
