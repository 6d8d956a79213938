"""The clock, and files read below one folder and nowhere else."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

from flarechat.protocol import ToolCall
from flarechat.tools.definitions import load
from flarechat.tools.toolbox import Toolbox


def outcome(toolbox: Toolbox, name: str, **arguments: object) -> tuple[str, str]:
    result = toolbox.run(ToolCall(id="c", name=name, arguments=arguments))
    return result.outcome, result.text


@pytest.fixture
def reading(tmp_path: Path) -> Toolbox:
    """read_file below tmp_path/open, with a secret beside it."""
    folder = tmp_path / "open"
    (folder / "in").mkdir(parents=True)
    (folder / "a.txt").write_text("hëllo\n")
    (folder / "in" / "long.txt").write_text("é" * 40)
    (folder / "bytes").write_bytes(b"\x00\x01")
    (folder / "latin").write_bytes(b"caf\xe9 au lait")
    (tmp_path / "secret").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to("..")
    (folder / "near").symlink_to("in/long.txt")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    file = tmp_path / "tools.toml"
    file.write_text('[[tools]]\nbuiltin = "read_file"\nfolder = "open"\noutput_limit = 21\n')
    return Toolbox(load([str(file)]))


def test_a_file_below_the_folder_is_read(reading: Toolbox) -> None:
    assert ("done", "hëllo\n") == outcome(reading, "read_file", path="a.txt")
    assert ("done", "hëllo\n") == outcome(reading, "read_file", path="in/../a.txt")


@pytest.mark.parametrize("path", ["in/long.txt", "near"])
def test_a_long_file_is_cut_with_a_note_between_characters(reading: Toolbox, path: str) -> None:
    note = "[cut here: the file has 80 bytes, 21 are the most that is read]"

    assert ("done", f"{'é' * 10}\n{note}") == outcome(reading, "read_file", path=path)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("../secret", "is not below the folder"),
        ("/etc/hostname", "is not below the folder"),
        ("out", "is not below the folder"),
        ("up/secret", "is not below the folder"),
        ("a\0b", "is not below the folder"),
        ("none.txt", "No such file"),
        ("in", "it is a folder"),
        (".", "it is a folder"),
        ("pipe", "it is no file"),
        ("bytes", "is no text"),
        ("latin", "is not UTF-8"),
        ("loop", "loop"),
        ("x" * 5000, "File name too long"),
    ],
)
def test_all_else_is_a_sentence(reading: Toolbox, path: str, sentence: str) -> None:
    word, text = outcome(reading, "read_file", path=path)

    assert "failed" == word
    assert sentence in text
    assert "secret\n" not in text + "\n" or "secret'" in text


def test_an_argument_of_another_kind_is_a_sentence(reading: Toolbox) -> None:
    assert ("failed", "Error: 'path' must be a text.") == outcome(reading, "read_file", path=3)


def test_the_clock_tells_the_time_of_a_zone() -> None:
    clock = Toolbox(load(["clock"]))

    word, text = outcome(clock, "clock", timezone="UTC")

    told = datetime.datetime.fromisoformat(text.split(" ", 1)[1].rsplit(" ", 1)[0])
    assert ("done", True) == (word, text.endswith("+00:00 (UTC)"))
    assert abs((datetime.datetime.now(datetime.UTC) - told).total_seconds()) < 60
    assert "done" == outcome(clock, "clock")[0]


@pytest.mark.parametrize("zone", ["Nowhere/At_All", "../../etc/passwd", "/etc", "Europe", "a\0b"])
def test_a_zone_that_is_none_is_a_sentence(zone: str) -> None:
    clock = Toolbox(load(["clock"]))

    assert ("failed", f"Error: There is no time zone {zone!r}.") == outcome(
        clock, "clock", timezone=zone
    )


def test_the_calculator_says_what_is_wrong() -> None:
    calculator = Toolbox(load(["calculator,clock"]))

    assert ("done", "391") == outcome(calculator, "calculator", expression="17*23")
    assert ("failed", "Error: A division by zero has no value.") == outcome(
        calculator, "calculator", expression="1/0"
    )
    assert "failed" == outcome(calculator, "calculator")[0]
