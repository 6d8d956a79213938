"""The folder: names that are safe, sessions that are found, files that are never overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarechat import paths
from flarechat.errors import SessionError
from flarechat.protocol import Sampling, Speculation
from flarechat.sessions import names, store
from flarechat.sessions.session import Session, SessionWriter, new_header
from flarechat.sessions.turns import Turn


def begun(text: str, name: str | None = None) -> SessionWriter:
    header = new_header(
        model=None,
        model_name="m",
        sampling=Sampling(),
        speculation=Speculation(),
        system=None,
    )
    writer = store.create(name, text, header)
    writer.user(Turn(id=names.new_id(), parent=None, role="user", text=text))
    return writer


def saved(text: str, name: str | None = None) -> Path:
    writer = begun(text, name)
    writer.close()
    return writer.path


def test_a_session_is_named_by_its_first_words() -> None:
    assert "what-is-the-capital-of-france" == saved("What is the capital of France?").stem


def test_a_taken_name_gets_a_number() -> None:
    assert ["hi", "hi-2", "hi-3"] == [saved("Hi").stem for _ in range(3)]


def test_a_chosen_name_that_is_taken_is_refused_and_nothing_is_lost() -> None:
    path = saved("first", "trip")
    before = path.read_bytes()

    with pytest.raises(SessionError, match="is there already"):
        begun("second", "trip")

    assert before == path.read_bytes()
    assert ["trip.jsonl"] == os.listdir(paths.sessions_dir())


@given(st.text())
def test_any_first_message_makes_a_safe_name(text: str) -> None:
    slug = names.slug(text)

    assert slug == names.safe_name(slug)
    assert len(slug) <= 40


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a/b", "/etc/passwd", "..\\x", ".hidden", "a\nb", "a\x00b"),
        *("x" * 81, "é" * 101, "a.", "a ", "-rf", "a:b"),
    ],
)
def test_a_name_that_is_no_plain_file_name_is_refused(name: str) -> None:
    for use in (store.exists, lambda n: begun("x", n)):
        with pytest.raises(SessionError, match="is not a session name"):
            use(name)


def test_the_file_is_private() -> None:
    path = saved("hi")

    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert 0o700 == stat.S_IMODE(path.parent.stat().st_mode)


def test_a_session_is_found_by_name_id_or_a_prefix_that_fits_no_other() -> None:
    trip, track = saved("x", "trip"), saved("x", "track")
    trip_id = Session(trip).id

    assert trip == store.find("trip") == store.find("tri") == store.find(trip_id)
    assert track == store.find("tra")
    assert trip == store.find(trip_id[:9])


def test_an_exact_name_wins_over_longer_ones() -> None:
    short, _ = saved("x", "trip"), saved("x", "trip-2")

    assert short == store.find("trip")


def test_a_prefix_of_two_lists_them() -> None:
    saved("x", "trip")
    saved("x", "track")

    with pytest.raises(SessionError) as caught:
        store.find("tr")

    assert ("'tr' fits 2 sessions.", "Choose one: track, trip.") == (
        caught.value.message,
        caught.value.hint,
    )


@pytest.mark.parametrize("name", ["", "nothing", "../trip", "trip.jsonl"])
def test_an_unknown_name_is_refused(name: str) -> None:
    saved("x", "trip")

    with pytest.raises(SessionError, match="There is no session"):
        store.find(name)


def test_a_misspelt_name_gets_the_nearest() -> None:
    saved("x", "holiday")

    with pytest.raises(SessionError) as caught:
        store.find("hollyday")

    assert "Did you mean holiday?" == caught.value.hint


def test_a_renamed_file_is_the_session_of_its_new_name() -> None:
    path = saved("x", "before")
    moved = path.rename(path.with_stem("after"))

    assert moved == store.find("after")
    assert "after" == Session(moved).name
    writer, session = SessionWriter.open(moved)
    with pytest.raises(SessionError, match="The session after is open"):
        SessionWriter.open(moved)
    writer.close()
    assert "after" == session.name


def test_a_file_renamed_while_open_is_still_locked_and_written() -> None:
    writer = begun("one", "before")
    moved = writer.path.rename(writer.path.with_stem("after"))

    with pytest.raises(SessionError, match="is open in process"):
        SessionWriter.open(moved)
    writer.user(Turn(id="u2", parent=None, role="user", text="two"))
    writer.close()

    assert "two" == Session(moved).tree.path()[-1].text


def test_the_list_is_sorted_by_last_change_and_names_what_it_cannot_read() -> None:
    old, new, bad = saved("old", "old"), saved("the new\none", "new"), saved("x", "bad")
    bad.write_text("junk\n")
    for age, path in enumerate((new, bad, old)):
        os.utime(path, (1e9 - age, 1e9 - age))

    infos = store.listed()

    assert ["new", "bad", "old"] == [info.name for info in infos]
    assert ("the new one", 1, "m", "") == (
        infos[0].title,
        infos[0].turns,
        infos[0].model,
        infos[0].problem,
    )
    assert "line 1, is not the start" in infos[1].problem
    assert new == store.latest()


def test_listing_and_reading_need_no_lock() -> None:
    writer = begun("hi", "open")

    assert ["open"] == [info.name for info in store.listed()]
    assert 1 == len(Session(writer.path).tree.path())
    writer.close()


def test_without_sessions_there_is_none_to_continue() -> None:
    with pytest.raises(SessionError, match="no session to continue"):
        store.latest()


def test_an_open_session_is_not_removed() -> None:
    writer = begun("hi")

    with pytest.raises(SessionError, match="is open in process"):
        store.remove(writer.path)
    assert writer.path.exists()

    writer.close()
    store.remove(writer.path)
    assert [] == os.listdir(paths.sessions_dir())


@pytest.mark.parametrize(
    "data", [b"", b"junk\n", b"\xff\x00", b'{"format":"flarechat-session","version":1', b"[]\n{}"]
)
def test_a_damaged_file_is_removed(data: bytes) -> None:
    path = saved("hi", "trip")
    path.write_bytes(data)

    store.remove(store.find("trip"))

    assert [] == os.listdir(paths.sessions_dir())
    with pytest.raises(SessionError, match="cannot be read: No such file"):
        store.remove(path)


def test_an_open_session_of_a_newer_format_is_not_removed() -> None:
    writer = begun("hi")
    path = writer.path
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2', 1))

    with pytest.raises(SessionError, match="is open in process"):
        store.remove(path)
    writer.close()
    store.remove(path)
    assert not path.exists()


def test_notices_name_the_lines_that_were_left_out() -> None:
    path = saved("hi", "trip")
    with path.open("a") as file:
        file.write('junk\n{"type":"song"}\n{"type":"us')

    assert [
        "The last line of trip (line 5) was cut off and is left out.",
        "trip: lines 3, 4 not understood, left out and kept in the file.",
    ] == Session(path).notices


def test_a_session_is_renamed_with_all_that_is_in_it() -> None:
    path = saved("x", "before")
    data = path.read_bytes()

    moved = store.rename(path, "after")

    assert ["after.jsonl"] == os.listdir(paths.sessions_dir())
    assert (data, 0o600) == (moved.read_bytes(), stat.S_IMODE(moved.stat().st_mode))


def test_a_rename_never_overwrites() -> None:
    before, taken = saved("x", "before"), saved("y", "taken")
    data = before.read_bytes(), taken.read_bytes()

    for name in ("taken", "before"):
        with pytest.raises(SessionError, match=f"There is a session '{name}' already"):
            store.rename(before, name)
    with pytest.raises(SessionError, match="is not a session name"):
        store.rename(before, "../x")
    assert data == (before.read_bytes(), taken.read_bytes())


def test_an_open_session_is_neither_renamed_nor_retitled() -> None:
    writer = begun("x", "before")

    for change in (store.rename, store.retitle):
        with pytest.raises(SessionError, match="The session before is open in process"):
            change(writer.path, "after")
    writer.close()
    assert ["before.jsonl"] == os.listdir(paths.sessions_dir())


def test_a_title_takes_the_place_of_the_first_words_until_it_is_taken_back() -> None:
    path = saved("What now?", "trip")

    store.retitle(path, " Plans\n\x1b[1m for   July ")
    assert "Plans [1m for July" == store.listed()[0].title
    store.retitle(path, "")
    assert "What now?" == store.listed()[0].title


@given(st.text("aé漢𝕏 ", min_size=1, max_size=80), st.integers(1, 2000))
def test_a_numbered_name_is_a_safe_name(text: str, number: int) -> None:
    name = names.numbered(names.free_name(text), number)

    assert name == names.safe_name(name)
    assert number == 1 or name.endswith(f"-{number}")
