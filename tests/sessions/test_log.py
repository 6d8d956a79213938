"""The file: whole lines, torn lines, alien lines, full disks."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.errors import SessionError, StorageError
from flarechat.sessions.log import FORMAT, VERSION, LogWriter, read_header, read_log

HEADER = {"format": FORMAT, "version": VERSION, "id": "abc", "name": "x"}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
records = st.lists(st.dictionaries(st.text(max_size=5), values, max_size=4), max_size=6)


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.unlink(missing_ok=True)
    writer = LogWriter(path, create=True)
    for line in [HEADER, *lines]:
        writer.append(line)
    writer.close()
    return path


def whole(path: Path) -> list[dict[str, Any]]:
    return [line.record for line in read_log(path).lines if line.record is not None]


@given(lines=records)
@settings(max_examples=30)
def test_what_was_appended_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]]
) -> None:
    path = written(tmp_path_factory.getbasetemp() / "back.jsonl", lines)

    log = read_log(path)

    assert HEADER == log.header
    assert lines == whole(path)
    assert list(range(2, len(lines) + 2)) == [line.number for line in log.lines]


@given(lines=records, data=st.data())
@settings(max_examples=80)
def test_cut_anywhere_it_reads_back_a_prefix_and_goes_on_cleanly(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]], data: st.DataObject
) -> None:
    path = written(tmp_path_factory.getbasetemp() / "cut.jsonl", lines)
    content = path.read_bytes()
    first = content.index(b"\n")
    cut = data.draw(st.integers(first, len(content)))
    path.write_bytes(content[:cut])

    kept = whole(path)

    assert kept == lines[: len(kept)]
    # A line is lost only if the cut took more than its line break.
    assert content[: cut + 1].count(b"\n") - 1 == len(kept)

    more = {"more": "é"}
    writer = LogWriter(path)
    writer.append(more)
    writer.close()

    assert [*kept, more] == whole(path)
    assert path.read_bytes().startswith(content[:cut])


@given(cut=st.integers(0, 60))
def test_a_torn_first_line_is_refused_and_the_file_left_alone(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = written(tmp_path_factory.getbasetemp() / "first.jsonl", [])
    content = path.read_bytes()
    cut = min(cut, len(content) - 2)
    path.write_bytes(content[:cut])

    with pytest.raises(SessionError, match="line 1, is not the start"):
        read_log(path)

    assert content[:cut] == path.read_bytes()


@pytest.mark.parametrize(
    ("first", "sentence"),
    [
        ("hello", "is not the start of a flarechat session"),
        ('{"format":"other"}', "is not the start of a flarechat session"),
        ("[1]", "is not the start of a flarechat session"),
        (json.dumps(HEADER | {"version": 2}), "has session format 2; this flarechat reads 1"),
        (json.dumps(HEADER | {"id": "../x"}), "has no usable session id"),
        (json.dumps(HEADER | {"id": None}), "has no usable session id"),
    ],
)
def test_a_first_line_that_is_not_ours_is_refused_by_file_and_line(
    tmp_path: Path, first: str, sentence: str
) -> None:
    path = tmp_path / "x.jsonl"
    content = first + '\n{"type":"user"}\n'
    path.write_text(content)

    for read in (read_log, read_header):
        with pytest.raises(SessionError) as caught:
            read(path)

        assert f"{path}, line 1, {sentence}" in caught.value.message
        assert caught.value.hint
    assert content == path.read_text()


def test_alien_lines_are_numbered_and_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [{"a": 1}])
    with path.open("ab") as file:
        file.write(b'hello\n\n{"b":2}\n\xff\xfe\n[3]\n' + b"[" * 100_000 + b"\n")
    before = path.read_bytes()

    log = read_log(path)

    assert [(2, {"a": 1}), (3, None), (5, {"b": 2}), (6, None), (7, None), (8, None)] == [
        (line.number, line.record) for line in log.lines
    ]
    assert not log.torn
    assert before == path.read_bytes()


def test_a_torn_last_line_is_told_apart_from_an_alien_one(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [{"a": 1}])
    with path.open("ab") as file:
        file.write(b'{"b":')

    assert read_log(path).torn


def test_a_lone_surrogate_is_written_and_read_back(tmp_path: Path) -> None:
    line = {"text": "a\udc80b"}

    assert [line] == whole(written(tmp_path / "x.jsonl", [line]))


def test_a_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [{"a": 1}])

    with pytest.raises(SessionError, match="is there already"):
        LogWriter(path, create=True)

    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert [{"a": 1}] == whole(path)


def test_a_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    real = os.write

    def counted(fd: int, data: bytes) -> int:
        writes.append(data)
        return real(fd, data)

    writer = LogWriter(tmp_path / "x.jsonl", create=True)
    monkeypatch.setattr(os, "write", counted)
    writer.append(HEADER)
    writer.append({"text": "line one\nline two" * 1000})
    writer.close()

    assert 2 == len(writes)
    assert all(data.endswith(b"\n") and data.count(b"\n") == 1 for data in writes)


def disk_with(room: list[int]) -> Callable[[int, bytes], int]:
    """os.write on a disk with `room[0]` bytes left: it takes what fits, then refuses."""
    real = os.write

    def write(fd: int, data: bytes) -> int:
        fits = min(len(data), room[0])
        if fits == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= fits
        return real(fd, data[:fits])

    return write


@pytest.mark.parametrize("room", [0, 1, 7, 40])
def test_a_full_disk_loses_nothing_and_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    path = tmp_path / "x.jsonl"
    writer = LogWriter(path, create=True)
    writer.append(HEADER)
    writer.append({"n": 1})
    left = [room]
    monkeypatch.setattr(os, "write", disk_with(left))

    refused = 0
    for number in range(2, 8):
        try:
            writer.append({"n": number, "text": "some text"})
        except StorageError as error:
            refused += 1
            assert "There is no space left" in error.message
            assert str(path) in error.message
    kept = whole(path)
    assert kept == [{"n": 1}, *({"n": n, "text": "some text"} for n in range(2, 2 + len(kept) - 1))]
    assert refused >= 5 - room // 10
    assert not read_log(path).torn

    left[0] = 10_000
    writer.append({"n": 8})
    writer.close()

    assert list(range(1, 9)) == [record["n"] for record in whole(path)]


def test_what_may_be_dropped_is_dropped_by_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    writer = LogWriter(path, create=True)
    writer.append(HEADER)
    left = [0]
    monkeypatch.setattr(os, "write", disk_with(left))
    with pytest.raises(StorageError):
        writer.append({"n": 1})
    with pytest.raises(StorageError):
        writer.append({"n": 2}, droppable=True)
    left[0] = 10_000

    writer.close()

    assert [{"n": 1}] == whole(path)


def test_a_file_that_never_got_a_line_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    writer = LogWriter(path, create=True)
    monkeypatch.setattr(os, "write", disk_with([0]))
    with pytest.raises(StorageError):
        writer.append(HEADER)
    with pytest.raises(StorageError):
        writer.close()

    assert not path.exists()


def test_the_end_of_a_turn_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    writer = LogWriter(tmp_path / "x.jsonl", create=True)

    writer.append(HEADER)
    assert 0 == len(synced)

    writer.append({"end": True}, durable=True)
    writer.close()

    assert 1 == len(synced)
