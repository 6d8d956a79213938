"""Ten thousand mutations of session files and as many of bundles, hundreds of foreign files: a
sentence or a conversation, never a traceback, and nothing outside the folder of sessions.
"""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.errors import FlarechatError
from flarechat.sessions import bundle, listing, store
from flarechat.sessions.export import FORMATS, exported
from flarechat.sessions.importing import import_file
from flarechat.sessions.session import Session
from tests.sessions.saving import append, saved

COUNT = 10_000
FOREIGN = Path(__file__).parent / "foreign"
# What is likely to matter where it lands in JSON, in numbers, in texts and in a zip.
TOKENS = [
    *(
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\n",
        b"\\",
        b"\\ud800",
        b"\x1b",
        b"\x00",
        b"\xff",
    ),
    *(b"null", b"true", b"-1", b"1e999", b"NaN", b"9" * 400, b'"x"', b"[]", b"{}", b"../../", b"/"),
    *(b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"\xff\xff\xff\xff", b"\x00\x00"),
]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """`data` with one to four places changed: a byte, a token, a piece gone, moved or twice."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        end = min(len(changed), at + int(chance.expovariate(1 / 8)) + 1)
        kind = chance.randrange(6)
        if kind == 0:
            changed[at:end] = chance.randbytes(end - at)
        elif kind == 1:
            changed[at:at] = chance.choice(TOKENS)
        elif kind == 2:
            changed[at:end] = chance.choice(TOKENS)
        elif kind == 3:
            del changed[at:end]
        elif kind == 4:
            target = chance.randrange(len(changed) + 1)
            changed[target:target] = changed[at:end]
        elif at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed)


def put(file: Path, data: bytes) -> None:
    """Change a file's content in place, which is quicker than to empty it first."""
    with file.open("r+b") as out:
        out.write(data)
        out.truncate()


def one_of_all() -> Path:
    """A session with branches, thinking, a title, a system prompt and a torn end."""
    path = saved("trip", "one", "two", "three", system="Be kind.")
    [*_, last] = Session(path).tree.turns
    append(path, ["left"], parent=last, thinking="hm")
    append(path, ["right", "on"], parent=last)
    store.retitle(path, "Title")
    with path.open("ab") as file:
        file.write(b'{"type":"partial","id":"p","parent":null,"at":1,"offset":0,"text":"a"}\n{"')
    return path


def around(folder: Path) -> dict[str, int]:
    """All files below a folder and their sizes, but for the sessions and the list that is kept."""
    sessions = paths.sessions_dir()
    return {
        str(path): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and sessions not in path.parents and path.name != listing.FILE
    }


def test_mutated_sessions_are_read_or_refused(tmp_path: Path) -> None:
    path = one_of_all()
    data, chance = path.read_bytes(), random.Random(1)
    read = 0
    before = around(tmp_path)
    for number in range(COUNT):
        put(path, mutated(data, chance))
        try:
            session = Session(path)
        except FlarechatError as error:
            assert str(path) in error.message
            continue
        read += 1
        if number % 10 == 0:
            for kind in FORMATS:
                exported(session, kind, all_branches=True, thinking=True)
            store.listed()

    assert before == around(tmp_path)
    assert COUNT * 0.6 < read < COUNT


def packed(path: Path) -> bytes:
    """The bundle of a session, which is here no more."""
    out = io.BytesIO()
    bundle.write(Session(path), out)
    store.remove(path)
    return out.getvalue()


def test_a_mutated_bundle_has_the_very_session_or_is_refused(tmp_path: Path) -> None:
    path = one_of_all()
    log, data, chance = path.read_bytes(), packed(path), random.Random(3)
    file = tmp_path / "mutated"
    file.write_bytes(data)
    before, read = around(tmp_path), 0
    for _ in range(COUNT):
        put(file, mutated(data, chance))
        try:
            with bundle.opened(file) as found:
                assert log == found.log()
                read += 1
        except FlarechatError as error:
            assert str(file) in error.message
    put(file, data)

    assert before == around(tmp_path)
    assert 0 < read < COUNT // 2


SOURCES = ["bundle", "openai.json", "openai.jsonl", "sharegpt.json", "chatgpt.json"]


@pytest.mark.parametrize("name", SOURCES)
def test_mutated_files_are_imported_whole_or_refused(name: str, tmp_path: Path) -> None:
    data = packed(one_of_all()) if name == "bundle" else (FOREIGN / name).read_bytes()
    file, chance = tmp_path / "mutated", random.Random(2)
    file.write_bytes(data)
    before, refused = around(tmp_path), 0
    for _ in range(500):
        put(file, mutated(data, chance))
        try:
            taken, _ = import_file(file)
        except FlarechatError as error:
            assert str(file) in error.message
            refused += 1
            taken = []
        for one in taken:
            path = store.find(one.name)
            assert one.turns == len(Session(path).tree.turns)
            path.unlink()
        assert [] == os.listdir(paths.sessions_dir())
    put(file, data)

    assert before == around(tmp_path)
    assert 100 < refused
