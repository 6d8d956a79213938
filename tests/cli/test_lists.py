"""`flarechat sessions` and `flarechat models`: lists, transcripts, removals."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from flarechat import paths
from flarechat.cli.table import age, size
from flarechat.errors import ModelError
from flarechat.sessions import store
from flarechat.sessions.session import SessionWriter
from tests.cli.conftest import Cli


def saved(cli: Cli, name: str, *texts: str) -> Path:
    for text in texts:
        cli("run", "--session", name, text)
    return store.find(name)


def test_the_list_is_sorted_by_last_change(cli: Cli) -> None:
    old, new = saved(cli, "old", "Hi"), saved(cli, "new-one", "Hi", "What now?")
    os.utime(old, (1e9, 1e9))
    (new.parent / "alien.jsonl").write_text("junk\n")
    os.utime(new.parent / "alien.jsonl", (2e8, 2e8))

    got = cli("sessions", "list")

    rows = [line.split() for line in got.out.splitlines()]
    assert 0 == got.code
    assert ["NAME", "TURNS", "MODEL", "CHANGED", "TITLE"] == rows[0]
    assert ["new-one", "4", "scripted-1m", "just", "now", "Hi"] == rows[1]
    assert ["old", "2", "scripted-1m"] == rows[2][:3]
    assert ["alien", "-", "-"] == rows[3][:3]
    assert "line 1, is not the start" in got.out


def test_the_list_as_json(cli: Cli) -> None:
    path = saved(cli, "trip", "Hi")

    [info] = json.loads(cli("sessions", "list", "--json").out)

    assert ("trip", "Hi", 2, "scripted-1m", str(path), "") == (
        info["name"],
        info["title"],
        info["turns"],
        info["model"],
        info["path"],
        info["problem"],
    )


def test_an_empty_list_says_so_on_stderr(cli: Cli) -> None:
    got = cli("sessions", "list")

    assert (0, "") == (got.code, got.out)
    assert "There are no sessions yet" in got.err
    assert "[]\n" == cli("sessions", "list", "--json").out


def test_a_transcript_is_printed_without_controls(cli: Cli) -> None:
    saved(cli, "trip", "Hi \x1b[2J")

    got = cli("sessions", "show", "tri")

    assert (0, "You:\nHi [2J\n\nModel:\nHello there, you.\n", "") == (got.code, got.out, got.err)


def test_a_transcript_says_how_a_turn_ended(cli: Cli) -> None:
    cli("run", "--session", "trip", "Hi", engine="failing")

    assert "Model: [error]\nHello there.\n" in cli("sessions", "show", "trip").out


def test_a_transcript_as_json(cli: Cli) -> None:
    path = saved(cli, "trip", "Hi")
    moved = path.rename(path.with_stem("travel"))

    shown = json.loads(cli("sessions", "show", "travel", "--json").out)

    assert ("travel", ["user", "assistant"]) == (
        shown["name"],
        [turn["role"] for turn in shown["turns"]],
    )
    assert 4 == shown["turns"][1]["finished"]["usage"]["completion_tokens"]
    assert "controller" not in shown["turns"][1]["finished"]
    assert moved.exists()


def test_a_damaged_file_is_shown_with_a_notice(cli: Cli) -> None:
    with saved(cli, "trip", "Hi").open("a") as file:
        file.write("junk\n")

    got = cli("sessions", "show", "trip")

    assert 0 == got.code
    assert "flarechat: trip: line 4 not understood, left out and kept in the file.\n" == got.err


@pytest.mark.parametrize(
    ("stdin", "flags", "code", "stays"),
    [
        (b"n\n", (), 0, True),
        (b"y\n", (), 0, False),
        (b"", (), 2, True),
        (b"", ("--yes",), 0, False),
    ],
)
def test_a_session_is_removed_after_a_question(
    cli: Cli, stdin: bytes, flags: tuple[str, ...], code: int, stays: bool
) -> None:
    path = saved(cli, "trip", "Hi")

    got = cli("sessions", "rm", *flags, "trip", stdin=stdin)

    assert (code, "", stays) == (got.code, got.out, path.exists())


def test_an_open_session_is_not_removed(cli: Cli) -> None:
    path = saved(cli, "trip", "Hi")
    writer, _ = SessionWriter.open(path)

    got = cli("sessions", "rm", "--yes", "trip")
    writer.close()

    assert 2 == got.code
    assert f"The session trip is open in process {os.getpid()}." in got.err
    assert path.exists()


def test_models_are_listed_pulled_and_removed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from flarechat.models import inspection
    from flarechat.models import store as models

    path = paths.models_dir() / "m.gguf"
    removed: list[str] = []
    model = SimpleNamespace(name="m", kind="gguf", bytes=98_362_432, source="catalog", path=path)
    monkeypatch.setattr(models, "installed", lambda: [model])
    monkeypatch.setattr(models, "pull", lambda name, progress: path)
    monkeypatch.setattr(models, "remove", removed.append)
    monkeypatch.setattr(inspection, "head_of", lambda model: "m-mtp.safetensors")

    listed, pulled = cli("models", "list"), cli("models", "pull", "m")
    kept, gone = cli("models", "rm", "m", stdin=b"n\n"), cli("models", "rm", "-y", "m")

    shown = ["m", "gguf", "98.4", "MB", "catalog", "m-mtp.safetensors", str(path)]
    assert shown == listed.out.split()[-7:]
    assert (0, f"{path}\n") == (pulled.code, pulled.out)
    assert (0, 0, ["m"]) == (kept.code, gone.code, removed)
    assert kept.err.endswith("m was kept.\n")


def test_no_models_yet_says_how_to_get_one(cli: Cli) -> None:
    got = cli("models", "list")

    assert (0, "") == (got.code, got.out)
    assert "flarechat models pull smollm2" in got.err


def test_a_model_that_is_missing_exits_with_3(cli: Cli) -> None:
    got = cli("models", "inspect", "nothing.gguf")

    assert ModelError.exit_code == got.code
    assert "nothing.gguf" in got.err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "just now"), (59, "just now"), (60, "1 min ago"), (7200, "2 h ago"), (1e6, "12 d ago")],
)
def test_an_age_is_told_in_its_largest_unit(seconds: float, words: str) -> None:
    assert words == age(seconds)


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (98_362_432, "98.4 MB"), (4e12, "4.0 TB")]
)
def test_a_size_is_told_in_its_largest_unit(count: float, words: str) -> None:
    assert words == size(count)
