"""Search: what a query means, and an index that is never other than the files."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat import paths
from flarechat.errors import StorageError
from flarechat.sessions import following, index, search, store
from flarechat.sessions.session import Session
from tests.sessions.saving import append, saved, words


def named(query: str, **options: bool) -> list[str]:
    return sorted(hit.name for hit in search.find(query, 100, **options))


def new_process() -> None:
    """Forget what this process holds of the index."""
    index._opened.cache_clear()
    gc.collect()


def index_file() -> Path:
    return paths.cache_dir() / index.FILE


def test_words_in_any_order_are_found_whatever_their_case_and_accents() -> None:
    saved("trip", "Where is a café in Paris?", "On the corner.")
    saved("work", "Rename this function.", "It is renamed.")

    assert ["trip"] == named("paris CAFE") == named("corner")
    assert [] == named("paris function") == named("caf")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        *[
            ('"green tea"', ["a"]),
            ('"tea green"', []),
            ("gre*", ["a", "b"]),
            ('"green te"*', ["a"]),
        ],
        *[
            ("", []),
            ('"', []),
            ("*", []),
            ("()", []),
            ("-green", ["a", "b"]),
            ('"green tea', ["a"]),
        ],
        *[
            ("text:green", []),
            ("green AND tea", []),
            ("NEAR(green tea)", []),
            ("gr\x00een", ["a", "b"]),
        ],
        *[
            ("green ?", ["a", "b"]),
            ("green - tea", ["a", "b"]),
            ("tea & green", ["a", "b"]),
            ("tea 😀", ["a", "b"]),
            ('green "!" tea ?*', ["a", "b"]),
            ("tea & cake", []),
            ("? 😀 -", []),
        ],
    ],
)
def test_phrases_and_beginnings_are_meant_and_all_else_is_words(
    query: str, found: list[str]
) -> None:
    saved("a", "I like green tea")
    saved("b", "tea, not green")

    assert found == named(query)


@given(st.text(st.characters(), max_size=30) | st.text('"*():^-+{}a b', max_size=20))
@settings(max_examples=300, deadline=None)
def test_nothing_that_is_typed_is_an_error(query: str) -> None:
    for typing in (False, True):
        search.find(query, typing=typing)


def test_while_typing_the_last_word_may_be_unfinished() -> None:
    saved("trip", "A weekend in Lisbon")

    assert ["trip"] == named("weekend lis", typing=True)
    assert [] == named("week lis", typing=True) == named("weekend lis ", typing=True)


def test_all_branches_names_and_titles_are_searched_and_only_the_last_title() -> None:
    path = saved("holiday", "first", "gone left")
    append(path, ["gone right"], parent=next(iter(Session(path).tree.turns)))
    store.retitle(path, "Old heading")
    store.retitle(path, "Plans for July")

    assert ["holiday"] == named("left") == named("right") == named("holiday") == named("july")
    assert [] == named("heading")
    [hit] = search.find("july")
    assert ("Plans for July", "title", "") == (hit.title, hit.role, hit.turn)


def test_a_hit_says_where_and_marks_what_was_found() -> None:
    path = saved("trip", "one", "the \x1b[1m red\x02 \n fox, a red fox")

    [hit] = search.find("red")

    answer = Session(path).tree.path()[1]
    assert (answer.id, "assistant", 1) == (hit.turn, hit.role, hit.places)
    assert "the [1m red fox, a red fox" == hit.snippet
    assert ["red", "red"] == [hit.snippet[first:end] for first, end in hit.marks]
    assert (path, Session(path).id) == (hit.path, hit.id)


def test_the_first_of_several_places_is_shown_and_all_are_counted() -> None:
    path = saved("fox", "a hen", "a red fox", "which fox", "a fox")

    [hit] = search.find("fox")

    assert ("a red fox", 4) == (hit.snippet, hit.places)
    assert Session(path).tree.path()[1].id == hit.turn


def test_the_session_changed_last_comes_first_and_the_limit_holds() -> None:
    for age, name in enumerate(("c", "a", "b")):
        os.utime(saved(name, "same words"), (1e9 - age, 1e9 - age))

    assert ["c", "a"] == [hit.name for hit in search.find("words", 2)]


def test_deleted_words_leave_the_index_file_too() -> None:
    saved("kept", "harmless")
    path = saved("secret", "the password is xylophonequartz")
    assert ["secret"] == named("xylophonequartz")
    assert b"xylophonequartz" in index_file().read_bytes()

    store.remove(path)

    assert b"xylophone" not in index_file().read_bytes()
    assert ["kept"] == named("harmless")


def test_a_deletion_makes_no_index_where_nobody_searched() -> None:
    store.remove(saved("trip", "x"))

    assert not index_file().exists()


def test_the_index_is_a_cache_that_another_process_takes_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = saved("trip", "red fox")
    os.utime(old, (1e9, 1e9))
    assert ["trip"] == named("fox")
    kept = index_file().stat()
    assert ["trip"] == named("fox")
    assert (kept.st_ino, kept.st_mtime_ns) == (
        index_file().stat().st_ino,
        index_file().stat().st_mtime_ns,
    )
    new_process()
    read: list[Path] = []
    monkeypatch.setattr(index, "Session", lambda path: read.append(path) or Session(path))

    assert ["trip"] == named("fox")
    assert [] == read
    fresh = saved("work", "blue fox")
    assert ["trip", "work"] == named("fox")
    assert [fresh] == read


def test_a_change_that_the_clock_does_not_show_is_seen() -> None:
    path = saved("trip", "red fox")
    assert ["trip"] == named("red")
    changed = path.stat().st_mtime_ns

    path.write_bytes(path.read_bytes().replace(b"red", b"hen"))
    os.utime(path, ns=(changed, changed))

    assert ["trip"] == named("hen")


def torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flipped(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data.replace(b"fox", b"hen").replace(b"red", b"hen"))


def alien(file: Path) -> None:
    """A table of another version, well kept."""
    other = sqlite3.connect(":memory:")
    other.execute("CREATE TABLE files (name TEXT)")
    body = other.serialize()
    other.close()
    following.keep(file, index._VERSION, body)


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [torn, flipped, alien, a_folder, Path.unlink])
def test_a_damaged_index_is_made_again(damage: object) -> None:
    os.utime(saved("trip", "red fox"), (1e9, 1e9))
    named("fox")
    new_process()
    damage(index_file())  # type: ignore[operator]

    assert ["trip"] == named("fox")


def test_without_a_place_for_the_index_the_files_are_read(home: Path) -> None:
    saved("trip", "red fox")
    (home / "cache").write_text("no folder")

    assert ["trip"] == named("fox")
    store.remove(store.find("trip"))
    assert [] == named("fox")


def test_files_that_cannot_be_read_are_passed_over() -> None:
    saved("trip", "red fox")
    (paths.sessions_dir() / "alien.jsonl").write_text("fox\n")
    (paths.sessions_dir() / "folder.jsonl").mkdir()
    (paths.sessions_dir() / os.fsdecode(b"\xff.jsonl")).write_text("fox\n")

    assert ["trip"] == named("fox")


def test_many_share_one_index_file_while_sessions_come_and_go() -> None:
    """Each with an index of its own, as processes have; whatever the file holds at the moment."""
    for number in range(5):
        os.utime(saved(f"old{number}", "red fox"), (1e9, 1e9))
    old, wrong = {f"old{number}" for number in range(5)}, []

    def look() -> None:
        for _ in range(12):
            own = index.Index(paths.sessions_dir(), index_file())
            with own.refreshed() as table:
                found = {hit.name for hit in search._hits(table, "fox", 99)}
            if not old <= found or any(name.startswith("gone") for name in found):
                wrong.append(found)

    gone = saved("gone", "red fox")
    named("fox")
    store.remove(gone)
    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(10):
        saved(f"new{number}", "blue fox")
    for thread in threads:
        thread.join()

    assert [] == wrong
    assert len(old) + 10 == len(named("fox"))


def test_a_folder_that_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    saved("trip", "red fox")
    monkeypatch.setattr(os, "scandir", refused)

    with pytest.raises(StorageError, match="cannot be read: Permission denied"):
        named("fox")


WORDS = st.sampled_from(["red", "blue", "fox", "hen"])
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
NAMES = st.sampled_from(["n", "m", "o"])
STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES, TEXTS),
    st.tuples(st.just("append"), NAMES, TEXTS),
    st.tuples(st.just("retitle"), NAMES, TEXTS),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("delete"), NAMES, st.none()),
    st.tuples(st.just("tear"), NAMES, st.integers(1, 40)),
    st.tuples(st.just("index"), st.sampled_from(["torn", "flipped", "gone", "restart"]), st.none()),
    st.tuples(st.just("search"), WORDS, WORDS),
)


def scanned(wanted: set[str]) -> list[str]:
    """The sessions in which one text has all words, by reading every file."""
    found = []
    for path in paths.sessions_dir().glob("*.jsonl"):
        tree = Session(path).tree
        texts = [path.stem + " " + tree.title, *(turn.text for turn in tree.turns.values())]
        if any(wanted <= set(words(text)) for text in texts):
            found.append(path)
    return [path.stem for path in sorted(found, key=lambda p: (-p.stat().st_mtime_ns, p.name))]


def step(kind: str, name: str, value: object) -> None:
    path = paths.sessions_dir() / f"{name}.jsonl"
    if kind == "create" and not path.exists():
        saved(name, str(value))
    elif kind == "rename" and path.exists() and not store.exists(str(value)):
        store.rename(path, str(value))
    elif kind == "append" and path.exists():
        append(path, [str(value)])
    elif kind == "retitle" and path.exists():
        store.retitle(path, str(value))
    elif kind == "delete" and path.exists():
        store.remove(path)
    elif kind == "tear" and path.exists():
        _, _, last = path.read_bytes().rstrip(b"\n").rpartition(b"\n")
        os.truncate(path, path.stat().st_size - min(int(str(value)), len(last)))
    elif kind == "index":
        new_process()
        if index_file().exists() and name != "restart":
            {"torn": torn, "flipped": flipped, "gone": Path.unlink}[name](index_file())


@given(st.lists(STEPS, max_size=25))
@settings(max_examples=25, deadline=None)
def test_the_index_finds_what_reading_every_file_finds(
    steps: list[tuple[str, str, object]],
) -> None:
    shutil.rmtree(paths.sessions_dir())
    for kind, name, value in [*steps, ("search", "red", "red"), ("search", "fox", "hen")]:
        if kind == "search":
            query = f"{name} {value}"
            assert scanned(set(words(query))) == [hit.name for hit in search.find(query)]
        else:
            step(kind, name, value)


def test_a_warm_search_of_many_sessions_is_quick() -> None:
    source = saved("n0", *["a red fox and some more words " * 20] * 10)
    header, rest = source.read_bytes().split(b"\n", 1)
    for number in range(1, 300):
        copy = source.with_name(f"n{number}.jsonl")
        copy.write_bytes(
            header.replace(Session(source).id.encode(), b"%012d" % number) + b"\n" + rest
        )
        os.utime(copy, (1e9, 1e9))
    named("fox")

    began = time.process_time()
    found = search.find("red fo", typing=True)

    assert time.process_time() - began < 0.1
    assert 20 == len(found)
