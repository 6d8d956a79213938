"""Ten thousand mutations of session files, as many of bundles and of bundles with state, hundreds
of foreign files: a sentence or a conversation, never a traceback, and nothing outside the folders
of sessions and of snapshots.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.errors import FlarechatError
from flarechat.sessions import bundle, listing, state, store
from flarechat.sessions.export import FORMATS, exported
from flarechat.sessions.importing import import_file
from flarechat.sessions.manifest import StateEntry
from flarechat.sessions.session import Session
from flarechat.vault.folder import VaultFolder
from flarechat.vault.nodefile import Damaged, parsed, sealed
from tests.sessions.nodes import MODEL, kept, put, said
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


def put_into(file: Path, data: bytes) -> None:
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
    """All files below a folder and their sizes, but for sessions, snapshots and the list kept."""
    own = {paths.sessions_dir(), paths.snapshots_dir()}
    return {
        str(path): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and own.isdisjoint(path.parents) and path.name != listing.FILE
    }


def test_mutated_sessions_are_read_or_refused(tmp_path: Path) -> None:
    path = one_of_all()
    data, chance = path.read_bytes(), random.Random(1)
    read = 0
    before = around(tmp_path)
    for number in range(COUNT):
        put_into(path, mutated(data, chance))
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
        put_into(file, mutated(data, chance))
        try:
            with bundle.opened(file) as found:
                assert log == found.log()
                read += 1
        except FlarechatError as error:
            assert str(file) in error.message
    put_into(file, data)

    assert before == around(tmp_path)
    assert 0 < read < COUNT // 2


TRUNK = kept(None, 0, [10, 11, 12])
NODES = (TRUNK, kept(TRUNK, 3, [13, 14]), kept(TRUNK, 1, [15]))


def packed_with_state(path: Path) -> bytes:
    """The bundle of a session with its state, neither of which is here any more."""
    out, vault = io.BytesIO(), put(*NODES)
    assert [] == state.write_bundle(Session(path), out, vault)
    store.remove(path)
    vault.clear()
    return out.getvalue()


class Loose:
    """What a bundle gives of its state when its manifest says the right thing of every node, one of
    which is mutated; `seal` puts its own checksum right too."""

    path = Path("loose.flarechat")

    def __init__(self, chance: random.Random, *, seal: bool) -> None:
        self.data = {node.digest: node.data for node in NODES}
        spoilt = chance.choice(NODES).digest
        self.data[spoilt] = mutated(self.data[spoilt], chance)
        with suppress(Damaged):
            self.data[spoilt] = sealed(self.data[spoilt]) if seal else self.data[spoilt]
        self.state = [StateEntry.of(n.digest, MODEL.digest, self.data[n.digest]) for n in NODES]

    def node(self, entry: StateEntry) -> bytes:
        return self.data[entry.digest]


class InMemory(VaultFolder):
    """A vault whose files are in a dictionary."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.files: dict[str, bytes] = {}

    def write(self, identity: str, digest: str, data: bytes, behind: Collection[Path] = ()) -> Path:
        self.files[digest] = data
        return self.place(identity, digest)

    def trim(self, budget: int) -> int:
        return 0


def test_a_mutated_bundle_with_state_has_the_very_session_and_sound_state(tmp_path: Path) -> None:
    path = said("trip", (NODES[1], 5), (NODES[2], 2))
    log, whole = path.read_bytes(), {node.digest: node.data for node in NODES}
    data, chance, file = packed_with_state(path), random.Random(4), tmp_path / "mutated"
    file.write_bytes(data)
    before, read, lacking = around(tmp_path), 0, 0
    for _ in range(COUNT // 2):
        put_into(file, mutated(data, chance))
        vault = InMemory()
        try:
            with bundle.opened(file) as found:
                assert log == found.log()
                told, _ = state.take(found, vault, 1 << 20)
        except FlarechatError as error:
            assert str(file) in error.message
            continue
        read, lacking = read + 1, lacking + len(told)
        assert vault.files.items() <= whole.items()
        assert len(told) == (whole != vault.files)
    put_into(file, data)

    assert before == around(tmp_path)
    assert COUNT // 20 < lacking <= read < COUNT // 4


@pytest.mark.parametrize("seal", [False, True])
def test_of_mutated_nodes_none_is_taken_that_is_not_sound(seal: bool) -> None:
    chance, forged = random.Random(5), 0
    for _ in range(COUNT // 4):
        vault, loose = InMemory(), Loose(chance, seal=seal)
        state.take(loose, vault, 1 << 20)
        for digest, taken in vault.files.items():
            header = parsed(taken, digest, MODEL.digest)
            assert header.first or header.parent in vault.files
            forged += taken not in {node.data for node in NODES}

    assert (0 < forged < COUNT // 100) if seal else forged == 0


SOURCES = ["bundle", "state", "openai.json", "openai.jsonl", "sharegpt.json", "chatgpt.json"]


@pytest.mark.parametrize("name", SOURCES)
def test_mutated_files_are_imported_whole_or_refused(name: str, tmp_path: Path) -> None:
    if name == "state":
        data = packed_with_state(said("trip", (NODES[1], 5), (NODES[2], 2)))
    else:
        data = packed(one_of_all()) if name == "bundle" else (FOREIGN / name).read_bytes()
    file, chance = tmp_path / "mutated", random.Random(2)
    file.write_bytes(data)
    before, refused, vault = around(tmp_path), 0, VaultFolder(paths.snapshots_dir())
    for _ in range(200 if name == "state" else 500):
        put_into(file, mutated(data, chance))
        try:
            taken, _ = import_file(file, state_budget=1 << 20)
        except FlarechatError as error:
            assert str(file) in error.message
            refused += 1
            taken = []
        for one in taken:
            path = store.find(one.name)
            assert one.turns == len(Session(path).tree.turns)
            path.unlink()
        assert vault.clear() == 0 or name == "state"
        assert [] == os.listdir(paths.sessions_dir())
    put_into(file, data)

    assert before == around(tmp_path)
    assert 100 < refused
