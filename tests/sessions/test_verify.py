"""What `verify` finds, that it only reads, and that mending leaves every session as it is."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from flarechat import paths
from flarechat.sessions import following, index, listing, search, store, verify
from flarechat.sessions.log import read_log
from flarechat.sessions.session import Session, SessionWriter
from flarechat.sessions.turns import TurnTree
from flarechat.vault import folder
from tests.sessions.naming import naming, put
from tests.sessions.saving import append, saved
from tests.sessions.test_fuzz import mutated, one_of_all
from tests.vault.nodes import made

Faults = list[tuple[int | None, str]]


def faults(path: Path) -> Faults:
    return [(fault.line, fault.what) for fault in verify.check(path).faults]


def found() -> list[tuple[str, str]]:
    report = verify.verify()
    return [(finding.path.name, finding.what) for finding in (*report.kept, *report.vault)]


def everything(home: Path) -> dict[Path, tuple[int, bytes]]:
    """All files with their times and contents."""
    files = (path for path in home.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def a_home() -> list[Path]:
    """Two sessions, their snapshots, and what lists and searches keep."""
    trunk = made([1, 2, 3])
    left, right = made([4], trunk), made([5, 6], trunk, offset=2)
    files = put(trunk, left, right)
    one, two = naming("one", left), naming("two", right)
    append(one, ["More", "Yes"], parent=next(iter(Session(one).tree.turns)))
    for path in (one, two):
        os.utime(path, (1e9, 1e9))
    store.listed()
    search.find("hi")
    return [one, two, *files]


def test_a_sound_home_is_sound_and_only_read(home: Path) -> None:
    one, *_ = a_home()
    before = everything(home)

    report = verify.verify()

    assert (True, 0, 3, ["one", "two"]) == (
        report.sound,
        report.faults,
        report.snapshots,
        [checked.name for checked in report.sessions],
    )
    assert (4, Session(one).id, "", one) == (
        report.sessions[0].turns,
        report.sessions[0].id,
        report.sessions[0].open_in,
        report.sessions[0].path,
    )
    assert before == everything(home)


def line(**fields: Any) -> str:
    return json.dumps({"type": "user", "id": "new", "parent": None, "at": 1, "text": "x"} | fields)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("junk", "it is no JSON object"),
        ("[1]", "it is no JSON object"),
        (line(type="of-tomorrow"), "events of type 'of-tomorrow' are not known"),
        (line(type=["\x1b"]), "events of type \"['\\\\x1b']\" are not known"),
        (line(type=None), "events of type 'None' are not known"),
        (line(text=3), "this user does not fit what stands before it, or lacks something"),
        (line(type="head", parent="gone"), "this head does not fit what stands before it, or la"),
        (line(type="continue", parent="x"), "this continue does not fit what stands before it, o"),
        (line(parent="gone"), "the turn before it is missing; it is put behind the last one"),
        (line(parent=7), "the turn before it is missing; it is put behind the last one"),
        (line(parent=[]), "this user does not fit what stands before it, or lacks something"),
        (line(id=[]), "this user does not fit what stands before it, or lacks something"),
    ],
)
def test_a_line_in_which_something_is_wrong_is_told_by_its_number(text: str, what: str) -> None:
    path = saved("trip", "Hi", "Hello")
    with path.open("a") as file:
        file.write(f"{text}\n")
    append(path, ["On"])

    [(number, said)] = faults(path)

    assert (4, True) == (number, said.startswith(what)), said


def test_a_torn_end_is_told() -> None:
    path = saved("trip", "Hi", "Hello")
    os.truncate(path, path.stat().st_size - 10)

    assert [(3, "it was cut off")] == faults(path)


def test_an_answer_that_was_put_elsewhere_is_told_once() -> None:
    path = saved("trip", "Hi")
    with path.open("a") as file:
        for offset in (0, 1):
            file.write(line(type="partial", parent="gone", offset=offset) + "\n")

    assert [3] == [number for number, _ in faults(path)]


def test_an_answer_in_pieces_is_sound() -> None:
    path = one_of_all()
    os.truncate(path, path.stat().st_size - 2)

    assert [] == faults(path)


@pytest.mark.parametrize(
    ("first", "what"),
    [
        (b"junk", "line 1, is not the start of a flarechat session"),
        (b'{"format":"flarechat-session","version":9}', "line 1, has session format 9"),
        (b'{"format":"flarechat-session","version":1}', "line 1, has no usable session id"),
        (b"", "line 1, is not the start of a flarechat session"),
    ],
)
def test_a_first_line_that_is_not_ours_is_told(first: bytes, what: str) -> None:
    path = saved("trip", "Hi")
    path.write_bytes(first)

    [(number, said)] = faults(path)

    assert (None, True) == (number, what in said)
    assert not verify.verify().sound


def test_a_folder_in_place_of_a_session_is_told() -> None:
    (paths.sessions_dir() / "trip.jsonl").mkdir()

    [(number, said)] = faults(paths.sessions_dir() / "trip.jsonl")

    assert (None, True) == (number, "cannot be read: Is a directory" in said)


def test_a_session_that_is_open_is_sound_and_says_so() -> None:
    path = saved("trip", "Hi")
    writer, _ = SessionWriter.open(path)

    [checked] = verify.verify().sessions
    assert (f"process {os.getpid()}", ()) == (checked.open_in, checked.faults)

    writer.close()
    assert "" == verify.check(path).open_in


def test_a_lock_that_a_killed_process_left_is_nobodys() -> None:
    path = saved("trip", "Hi")
    lock = path.parent / f".{Session(path).id}.lock"
    lock.write_text("1\n")

    assert "" == verify.check(path).open_in
    assert lock.exists()


def test_a_line_that_is_just_being_written_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved("trip", "Hi", "Hello")
    writer, _ = SessionWriter.open(path)
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 10)
    monkeypatch.setattr(verify.time, "sleep", lambda _: path.write_bytes(whole))

    assert [] == faults(path)
    writer.close()


def test_the_lines_that_are_told_are_those_a_reader_leaves_out() -> None:
    """And those whose turn was put behind another than it says."""
    path = one_of_all()
    data, chance = path.read_bytes(), random.Random(3)
    told = 0
    for _ in range(400):
        path.write_bytes(mutated(data, chance))
        lines = {fault.line for fault in verify.check(path).faults}
        if lines == {None}:
            continue
        tree, moved = TurnTree(), set[int]()
        log = read_log(path)
        alien = set(tree.replay(log.lines))
        for one in log.lines:
            turn = one.record and tree.turns.get(str(one.record.get("id")))
            if turn and one.number not in alien and one.record:
                moved |= {one.number} if one.record.get("parent") != turn.parent else set()
        assert alien <= lines, path.read_bytes()
        assert lines - alien <= moved
        told += len(lines)
    assert told > 100


def tampered_index() -> None:
    """Other words of one session, under a digest that is right."""
    file = paths.cache_dir() / index.FILE
    table = index._loaded(file)
    assert table
    table.execute("UPDATE texts SET text = 'no' WHERE text = 'More'")
    table.commit()
    following.keep(file, index._VERSION, table.serialize())


def broken_index() -> None:
    """A table that SQLite's own check refuses."""
    file = paths.cache_dir() / index.FILE
    table = index._loaded(file)
    assert table
    table.execute("UPDATE texts_data SET block = x'00' WHERE id > 10")
    table.commit()
    following.keep(file, index._VERSION, table.serialize())


def torn_index() -> None:
    file = paths.cache_dir() / index.FILE
    file.write_bytes(file.read_bytes()[:-1])


def tampered_list() -> None:
    file = paths.cache_dir() / listing.FILE
    body = following.kept(file, listing._VERSION)
    assert body
    following.keep(file, listing._VERSION, body.replace(b'"turns": 3', b'"turns": 4'))


def torn_list() -> None:
    (paths.cache_dir() / listing.FILE).write_bytes(b"junk")


@pytest.mark.parametrize(
    ("damage", "file", "what"),
    [
        (tampered_index, index.FILE, "it has other words of one than the session"),
        (broken_index, index.FILE, "its table is damaged: "),
        (torn_index, index.FILE, "it is torn"),
        (tampered_list, listing.FILE, "it has something else of one than the session"),
        (torn_list, listing.FILE, "it is torn"),
    ],
)
def test_what_serves_lists_and_searches_is_held_to_the_sessions(
    damage: Any, file: str, what: str
) -> None:
    a_home()
    damage()
    index._opened.cache_clear()

    [(name, said)] = found()
    assert (file, True) == (name, said.startswith(what)), said
    mended = verify.mend(verify.verify())

    assert (True, 1) == (mended.sound, len(mended.mended))
    assert [] == found()
    assert ["one"] == [hit.name for hit in search.find("more")]
    assert [2, 3] == sorted(info.turns for info in store.listed())


def test_what_is_only_behind_the_sessions_is_sound() -> None:
    one, two, *_ = a_home()
    append(one, ["Still more"])
    two.unlink()

    assert [] == found()


def test_a_table_of_another_version_is_sound() -> None:
    a_home()
    file = paths.cache_dir() / index.FILE
    following.keep(file, b"flarechat-index-1", b"another table")

    assert [] == found()


def test_damaged_snapshots_are_told_and_mending_drops_them_alone(home: Path) -> None:
    one, two, trunk, left, right = a_home()
    onward = made([7], made([4], made([1, 2, 3])))
    [last] = put(onward)
    left.write_bytes(left.read_bytes()[:-1] + b"!")
    left.with_name(".x.12345678.part").write_bytes(b"half")
    sessions = {path: path.read_bytes() for path in (one, two)}
    before = everything(home)

    report = verify.verify()
    assert sorted(
        [
            (left.name, "its checksum is wrong"),
            (last.name, "what it hangs on is missing"),
            (".x.12345678.part", "leftover, harmless"),
        ]
    ) == sorted(found())
    assert (False, 4, before) == (report.sound, report.snapshots, everything(home))
    mended = verify.mend(report)

    assert (True, 3, ()) == (mended.sound, len(mended.mended), mended.vault)
    assert sorted([trunk.name, right.name]) == sorted(os.listdir(trunk.parent))
    assert sessions == {path: path.read_bytes() for path in (one, two)}
    assert [] == found()


def test_mending_does_nothing_to_a_session() -> None:
    path = saved("trip", "Hi")
    path.write_bytes(path.read_bytes() + b"junk\nmore junk")
    before = path.stat(), path.read_bytes()

    mended = verify.mend(verify.verify())

    assert (False, 2, ()) == (mended.sound, mended.faults, mended.mended)
    assert before == (path.stat(), path.read_bytes())


def test_of_one_session_its_file_and_its_own_snapshots_are_looked_at() -> None:
    one, two, _, left, right = a_home()
    for path in (left, right):
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    two.write_bytes(b"junk")

    report = verify.verify("one")

    assert (["one"], 2) == ([checked.name for checked in report.sessions], report.snapshots)
    assert [left] == [finding.path for finding in report.vault]
    assert (True, False) == (verify.mend(report).sound, left.exists())
    assert (one.exists(), right.exists()) == (True, True)


def test_of_one_session_no_snapshot_of_another_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, trunk, left, _ = a_home()
    read, whole = list[Path](), folder.read_whole
    monkeypatch.setattr(folder, "read_whole", lambda path: read.append(path) or whole(path))

    assert verify.verify("one").sound
    assert {trunk, left} == set(read)


def test_what_its_snapshots_hang_on_is_looked_at_too() -> None:
    _, _, trunk, left, _ = a_home()
    trunk.write_bytes(trunk.read_bytes()[:-1] + b"!")

    told = {finding.path: finding.what for finding in verify.verify("one").vault}

    assert {trunk: "its checksum is wrong", left: "what it hangs on is missing"} == told


@pytest.mark.parametrize("name", [None, "trip"])
def test_a_file_in_place_of_the_vault_is_told_and_the_rest_is_looked_at(name: str | None) -> None:
    saved("trip", "Hi")
    root = paths.cache_dir() / "snapshots"
    root.write_text("in the way")

    report = verify.verify(name)
    mended = verify.mend(report)

    assert [(root, "it is no folder; move it away")] == [
        (finding.path, finding.what) for finding in mended.vault
    ]
    assert ("in the way", False, 1) == (root.read_text(), mended.sound, len(mended.sessions))


def test_what_a_killed_write_left_is_harmless_and_mending_takes_it_away() -> None:
    left = a_home()[3]
    part = left.with_name(".x.12345678.part")
    part.write_bytes(b"half")

    report = verify.verify()
    mended = verify.mend(report)

    assert (True, 0, [part]) == (report.sound, report.faults, [f.path for f in report.vault])
    assert (True, (), False) == (mended.sound, mended.vault, part.exists())
