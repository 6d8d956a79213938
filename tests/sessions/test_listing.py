"""The list of sessions, which is kept, and never other than what reading every file says."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat import paths
from flarechat.errors import SessionError, StorageError
from flarechat.sessions import listing, store
from flarechat.sessions.session import Session
from tests.sessions.saving import append, saved
from tests.sessions.test_search import NAMES, TEXTS, step

LONG_AGO = 1e9


def kept_file() -> Path:
    return paths.cache_dir() / listing.FILE


def old(path: Path, age: int = 0) -> Path:
    """The same file, last changed so long ago that the clock shows any change."""
    os.utime(path, (LONG_AGO - age, LONG_AGO - age))
    return path


def read_all() -> list[tuple[object, ...]]:
    """What the list has to say, by reading every file."""
    found: list[tuple[object, ...]] = []
    for path in paths.sessions_dir().glob("*.jsonl"):
        stat = path.stat()
        key = (-stat.st_mtime, path.stem)
        try:
            session = Session(path)
        except SessionError as error:
            found.append((*key, stat.st_size, error.message))
        else:
            tree, created = session.tree, session.header["created"]
            said = (session.id, session.title, len(tree.path()), tree.model["name"], created, "")
            found.append((*key, stat.st_size, *said))
    return sorted(found)


def listed() -> list[tuple[object, ...]]:
    return [
        (-i.changed, i.name, i.bytes, i.problem)
        if i.problem
        else (-i.changed, i.name, i.bytes, i.id, i.title, i.turns, i.model, i.created, "")
        for i in store.listed()
    ]


def torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


def flipped(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"red", b"hen").replace(b"fox", b"hen"))


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES = [torn, flipped, a_folder, Path.unlink]
STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES, TEXTS),
    st.tuples(st.just("append"), NAMES, TEXTS),
    st.tuples(st.just("retitle"), NAMES, TEXTS | st.text(max_size=5)),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("delete"), NAMES, st.none()),
    st.tuples(st.just("tear"), NAMES, st.integers(1, 40)),
    st.tuples(st.just("age"), NAMES, st.integers(0, 2)),
    st.tuples(st.just("junk"), NAMES, st.none()),
    st.tuples(st.just("damage"), NAMES, st.sampled_from(DAMAGES)),
)


@given(st.lists(STEPS, max_size=20))
@settings(max_examples=40, deadline=None)
def test_the_list_is_what_reading_every_file_says(steps: list[tuple[str, str, object]]) -> None:
    shutil.rmtree(paths.sessions_dir())
    shutil.rmtree(kept_file(), ignore_errors=True)
    for kind, name, value in steps:
        path = paths.sessions_dir() / f"{name}.jsonl"
        if kind == "age" and path.exists():
            old(path, int(str(value)))
        elif kind == "junk":
            (path.parent / "junk.jsonl").write_text(f"{name}\n")
        elif kind == "damage" and kept_file().is_file():
            value(kept_file())  # type: ignore[operator]
        elif kind in ("create", "append", "retitle", "rename", "delete", "tear"):
            step(kind, name, value)
        assert read_all() == listed()


def test_a_second_list_reads_only_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    old(saved("trip", "red fox"))
    work = old(saved("work", "blue fox"))
    first = store.listed()
    read: list[Path] = []
    monkeypatch.setattr(listing, "Session", lambda path: read.append(path) or Session(path))

    assert first == store.listed()
    assert [] == read
    append(work, ["hen"])
    assert [2, 1] == [info.turns for info in store.listed()]
    assert [work] == read


def test_a_file_that_changed_just_now_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock may not show another change."""
    fresh = saved("trip", "red fox")
    ahead = fresh.stat().st_mtime + 60
    os.utime(fresh, (ahead, ahead))
    store.listed()
    read: list[Path] = []
    monkeypatch.setattr(listing, "Session", lambda path: read.append(path) or Session(path))

    store.listed()

    assert [fresh] == read


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_not_believed(damage: object) -> None:
    old(saved("trip", "red fox"))
    store.listed()
    damage(kept_file())  # type: ignore[operator]

    assert ["red fox"] == [info.title for info in store.listed()]


def test_a_change_of_the_same_size_and_time_is_seen() -> None:
    path = old(saved("trip", "red fox"))
    store.listed()

    path.write_bytes(path.read_bytes().replace(b"red", b"hen"))
    old(path)

    assert ["hen fox"] == [info.title for info in store.listed()]


def test_a_title_that_was_deleted_is_in_no_file(home: Path) -> None:
    old(saved("kept", "harmless"))
    path = old(saved("secret", "xylophonequartz"))
    store.listed()
    assert b"xylophonequartz" in kept_file().read_bytes()

    store.remove(path)

    assert [] == [f for f in home.rglob("*") if f.is_file() and b"xyloph" in f.read_bytes()]


def test_a_deletion_keeps_no_list_where_there_was_none() -> None:
    store.remove(saved("trip", "x"))

    assert not kept_file().exists()


def test_without_a_place_for_it_the_files_are_read(home: Path) -> None:
    old(saved("trip", "red fox"))
    (home / "cache").write_text("no folder")

    assert ["red fox"] == [info.title for info in store.listed()]
    store.remove(store.find("trip"))
    assert [] == store.listed()


def test_a_number_that_is_no_time_is_listed() -> None:
    path = saved("trip", "Hi")
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps(json.loads(first) | {"created": 10**400}).encode() + b"\n" + rest)

    assert [0.0] == [info.created for info in store.listed()]


def test_a_folder_that_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refused)

    for look in (store.listed, store.latest):
        with pytest.raises(StorageError, match="cannot be read: Permission denied"):
            look()
