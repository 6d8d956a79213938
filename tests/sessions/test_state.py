"""Bundles with state: what goes with a session is its own, and what is taken in is sound."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from flarechat import paths
from flarechat.errors import SessionError, StorageError
from flarechat.sessions import bundle, manifest, state, store
from flarechat.sessions.importing import import_file
from flarechat.sessions.manifest import StateEntry
from flarechat.sessions.session import Session
from flarechat.vault import folder, nodefile
from tests.sessions.nodes import MODEL, OTHER, Kept, files, kept, put, said
from tests.sessions.saving import saved

PLENTY = 1 << 30

TRUNK = kept(None, 0, range(10, 20))
ANSWER = kept(TRUNK, 10, range(20, 26))
BRANCH = kept(TRUNK, 7, [70, 71, 72, 73])


@pytest.fixture
def trip(tmp_path: Path) -> Path:
    """The bundle of a session with two answers and their state, none of which is here any more."""
    vault = put(TRUNK, ANSWER, BRANCH)
    path = said("trip", (ANSWER, 16), (BRANCH, 11))
    file = tmp_path / "out" / "trip.flarechat"
    file.parent.mkdir()
    with file.open("wb") as out:
        assert [] == state.write_bundle(Session(path), out, vault)
    store.remove(path)
    vault.clear()
    assert {} == files()
    return file


def test_a_session_goes_with_its_state_and_nothing_of_either_is_changed(trip: Path) -> None:
    with bundle.opened(trip) as packed:
        log = packed.log()

    [one], notices = import_file(trip, state_budget=PLENTY)

    assert ("trip", (), [], log) == (
        one.name,
        one.notices,
        notices,
        store.find("trip").read_bytes(),
    )
    assert {node.digest: node.data for node in (TRUNK, ANSWER, BRANCH)} == files()
    for entry in folder.VaultFolder(paths.snapshots_dir()).entries():
        assert MODEL.digest == entry.identity
        assert 0o600 == stat.S_IMODE(entry.path.stat().st_mode)


def test_without_being_asked_for_state_is_left_out_and_said_so(trip: Path) -> None:
    [one], [notice] = import_file(trip)

    assert "trip" == one.name
    assert "left out its state, 3 snapshots of 0.0 MiB; --with-state takes it in" in notice
    assert {} == files()


def test_a_bundle_with_state_is_a_stored_zip_whose_manifest_names_parents_first(
    trip: Path,
) -> None:
    with zipfile.ZipFile(trip) as found:
        manifest = json.loads(found.read("manifest.json"))
        stored = {i.filename for i in found.infolist() if i.compress_type == zipfile.ZIP_STORED}

    nodes = [TRUNK, ANSWER, BRANCH]
    assert 2 == manifest["version"]
    assert [
        {
            "digest": node.digest,
            "identity": MODEL.digest,
            "bytes": len(node.data),
            "sha256": hashlib.sha256(node.data).hexdigest(),
        }
        for node in nodes
    ] == manifest["state"]
    assert {f"state/{MODEL.digest}/{node.digest}.safetensors" for node in nodes} == stored


def written(session: Path, vault: folder.VaultFolder) -> tuple[dict[str, bytes], list[str]]:
    """The nodes of a session's bundle by their digests, and what was said of others."""
    out = io.BytesIO()
    notices = state.write_bundle(Session(session), out, vault)
    assert b"PK" == out.getvalue()[:2]
    with zipfile.ZipFile(out) as found:
        assert session.read_bytes() == found.read("session.jsonl")
        members = {n: found.read(n) for n in found.namelist() if n.startswith("state/")}
    for name, data in members.items():
        _, identity, file = name.split("/")
        nodefile.parsed(data, file.removesuffix(".safetensors"), identity)
    return {Path(name).stem: data for name, data in members.items()}, notices


def test_where_none_is_kept_the_bundle_is_the_one_without_state() -> None:
    path, plain, out = said("trip", (ANSWER, 16)), io.BytesIO(), io.BytesIO()
    bundle.write(Session(path), plain)

    [notice] = state.write_bundle(Session(path), out, put())

    assert plain.getvalue() == out.getvalue()
    assert "it is not kept any more" in notice
    with zipfile.ZipFile(out) as found:
        assert 1 == json.loads(found.read("manifest.json"))["version"]


def test_the_same_session_and_vault_give_the_same_bytes() -> None:
    path, vault = said("trip", (ANSWER, 16), (BRANCH, 11)), put(TRUNK, ANSWER, BRANCH)
    first, second = io.BytesIO(), io.BytesIO()

    state.write_bundle(Session(path), first, vault)
    state.write_bundle(Session(path), second, vault)

    assert first.getvalue() == second.getvalue()


# What another chat said.


def assert_is(data: bytes, expected: Kept) -> None:
    """The file is that of this node, tensor by tensor."""
    header = nodefile.parsed(data, expected.digest, expected.identity.digest)
    ours, theirs = load(data), load(expected.data)
    assert expected.tokens == header.tokens
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        assert tensor.dtype == ours[name].dtype
        assert np.array_equal(tensor, ours[name])


@pytest.mark.parametrize("shared", range(1, 10))
def test_of_a_node_that_another_chat_went_on_in_the_own_beginning_goes(shared: int) -> None:
    secret = kept(None, 0, [*range(10, 10 + shared), *range(90, 100 - shared)])
    mine = kept(secret, shared, [40, 41, 42])
    path, vault = said("mine", (mine, shared + 3)), put(secret, mine)

    found, notices = written(path, vault)

    cut = kept(None, 0, range(10, 10 + shared), whole=False)
    moved = kept(cut, shared, [40, 41, 42])
    assert [] == notices
    assert {cut.digest, moved.digest} == set(found)
    assert_is(found[cut.digest], cut)
    assert_is(found[moved.digest], moved)


def test_what_follows_an_answer_in_the_node_of_its_end_stays_here() -> None:
    other = kept(TRUNK, 10, [20, 21, 22, 90, 91, 92, 93])

    found, _ = written(said("mine", (other, 13)), put(TRUNK, other))

    cut = kept(TRUNK, 10, [20, 21, 22], whole=False)
    assert {TRUNK.digest, cut.digest} == set(found)
    assert_is(found[cut.digest], cut)


@pytest.mark.parametrize("drafted", [False, True])
def test_a_beginning_says_of_drafts_what_its_node_says(drafted: bool) -> None:
    other = kept(None, 0, [10, 11, 90], drafted=drafted)

    found, _ = written(said("mine", (other, 2)), put(other))

    [(digest, data)] = found.items()
    assert drafted == nodefile.parsed(data, digest, MODEL.digest).drafted


def test_what_another_branch_of_the_session_said_goes_with_it() -> None:
    found, _ = written(said("trip", (BRANCH, 11), (ANSWER, 16)), put(TRUNK, ANSWER, BRANCH))

    assert {node.digest: node.data for node in (TRUNK, ANSWER, BRANCH)} == found


def test_two_nodes_with_one_beginning_of_the_session_s_own_go_as_one() -> None:
    one, two = (kept(None, 0, [10, 11, 12, last]) for last in (90, 91))
    ends = [kept(node, 3, [token]) for node, token in ((one, 50), (two, 51))]

    found, _ = written(said("mine", *((end, 4) for end in ends)), put(one, two, *ends))

    cut = kept(None, 0, [10, 11, 12], whole=False)
    moved = [kept(cut, 3, [50]), kept(cut, 3, [51])]
    assert {cut.digest, *(node.digest for node in moved)} == set(found)


def test_a_node_that_cannot_be_cut_is_left_out_with_what_hangs_on_it() -> None:
    blocks = {"rows.target.0.blocks": np.ones((1, 3, 2), np.float32)}
    secret = kept(None, 0, [10, 11, 90], tensors=blocks)
    mine = kept(secret, 2, [40])

    found, [notice] = written(said("mine", (mine, 3)), put(secret, mine))

    assert {} == found
    assert "left out 2 snapshots" in notice
    assert "another chat goes on within it ×1" in notice
    assert "what it goes on from is left out ×1" in notice


@pytest.mark.parametrize("context", [0, -3, "16", None, True, 1 << 80])
def test_a_file_that_says_nonsense_of_its_tokens_gives_no_more_than_it_names(context: Any) -> None:
    path, vault = said("trip", (ANSWER, 16)), put(TRUNK, ANSWER)
    log = path.read_bytes().replace(b'"context":16', b'"context":' + json.dumps(context).encode())
    path.write_bytes(log)

    found, _ = written(path, vault)

    assert (3 if context == 1 << 80 else 1) > len(found)


def test_a_damaged_file_is_left_out_with_what_hangs_on_it() -> None:
    path, vault = said("trip", (ANSWER, 16), (BRANCH, 11)), put(TRUNK, ANSWER, BRANCH)
    file = vault.place(MODEL.digest, ANSWER.digest)
    file.write_bytes(ANSWER.data[:-1] + bytes([ANSWER.data[-1] ^ 1]))

    found, [notice] = written(path, vault)

    assert {TRUNK.digest, BRANCH.digest} == set(found)
    assert "left out a snapshot: its checksum is wrong ×1" in notice


@pytest.mark.parametrize(
    ("limit", "value", "count", "why"),
    [
        ("NODES", 2, 2, "a bundle holds no more"),
        ("STATE_BYTES", 2 * len(TRUNK.data), 2, "a bundle holds no more"),
        ("NODE_BYTES", len(BRANCH.data) - 1, 0, "it is too large"),
    ],
)
def test_more_than_a_bundle_holds_is_left_out(
    limit: str, value: int, count: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, vault = said("trip", (ANSWER, 16), (BRANCH, 11)), put(TRUNK, ANSWER, BRANCH)
    monkeypatch.setattr(manifest, limit, value)

    found, [notice] = written(path, vault)

    assert count == len(found)
    assert why in notice


def test_nodes_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    path, vault, order = said("trip", (ANSWER, 16)), put(TRUNK, ANSWER), []
    read, place = nodefile.read_whole, bundle._put
    monkeypatch.setattr(nodefile, "read_whole", lambda path: order.append("read") or read(path))
    monkeypatch.setattr(bundle, "_put", lambda *args: order.append("put") or place(*args))

    written(path, vault)

    assert ["read", "put", "read", "put", "put", "put"] == order


# Taking in.


def test_a_bundle_too_large_for_a_plain_zip_and_one_from_a_pipe_are_read_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise OSError("a pipe cannot be sought in")

        tell = seek

    path, vault = said("trip", (ANSWER, 16), (BRANCH, 11)), put(TRUNK, ANSWER, BRANCH)
    plain, large, pipe = io.BytesIO(), io.BytesIO(), Pipe()
    state.write_bundle(Session(path), plain, vault)
    state.write_bundle(Session(path), pipe, vault)
    with monkeypatch.context() as patch:
        patch.setattr(zipfile, "ZIP64_LIMIT", 500)
        state.write_bundle(Session(path), large, vault)
    assert len(large.getvalue()) > len(plain.getvalue())
    for data in (large.getvalue(), pipe.getvalue()):
        (tmp_path / "other").write_bytes(data)
        vault.clear()
        with bundle.opened(tmp_path / "other") as packed:
            assert path.read_bytes() == packed.log()
            assert [] == state.take(packed, vault, PLENTY).notices
        assert {n.digest: n.data for n in (TRUNK, ANSWER, BRANCH)} == files()


def repacked(
    file: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None], *, way: int = 0
) -> None:
    """The same bundle with another manifest and other members."""
    with zipfile.ZipFile(file) as old:
        found = {name: old.read(name) for name in old.namelist()}
    manifest = json.loads(found.pop("manifest.json"))
    change(manifest, found)
    with zipfile.ZipFile(file, "w", way) as out:
        out.writestr("manifest.json", json.dumps(manifest))
        for name, data in found.items():
            out.writestr(name, data)


def packed_as(file: Path, *nodes: Kept) -> None:
    """The bundle with these nodes for its state, whatever they are."""

    def change(manifest: dict[str, Any], found: dict[str, bytes]) -> None:
        for name in [name for name in found if name.startswith("state/")]:
            del found[name]
        entries = [StateEntry.of(n.digest, n.identity.digest, n.data) for n in nodes]
        manifest["state"] = [entry.said() for entry in entries]
        found |= {e.member: n.data for e, n in zip(entries, nodes, strict=True)}

    repacked(file, change)


def spoilt(node: Kept) -> Kept:
    return replace(node, data=node.data[:-1] + bytes([node.data[-1] ^ 1]))


FAR = kept(None, 0, range(30, 60))
BEYOND = kept(FAR, 12, [1])
# What hangs behind the end of its parent, by a parent of the same digest that never was so long.
UNHUNG = kept(TRUNK, 11, [1])
STRANGER = kept(TRUNK, 10, [5], identity=OTHER)


@pytest.mark.parametrize(
    ("nodes", "taken", "why"),
    [
        ((spoilt(TRUNK), ANSWER), (), "its checksum is wrong ×1; what it goes on from is left"),
        ((TRUNK, spoilt(ANSWER), BRANCH), (TRUNK, BRANCH), "its checksum is wrong"),
        ((ANSWER, TRUNK), (TRUNK,), "what it goes on from is left out"),
        ((BEYOND, TRUNK), (TRUNK,), "what it goes on from is left out"),
        ((TRUNK, UNHUNG), (TRUNK,), "what it goes on from is left out"),
        ((TRUNK, STRANGER), (TRUNK,), "what it goes on from is left out"),
        ((replace(TRUNK, identity=OTHER),), (), "another model"),
        ((replace(TRUNK, digest=ANSWER.digest),), (), "it holds other tokens than its name says"),
        ((replace(TRUNK, data=b""), BRANCH), (), "its file is cut off"),
    ],
)
def test_a_node_that_is_not_sound_is_left_out_and_the_session_is_taken(
    trip: Path, nodes: tuple[Kept, ...], taken: tuple[Kept, ...], why: str
) -> None:
    packed_as(trip, *nodes)

    [one], [notice] = import_file(trip, state_budget=PLENTY)

    assert "trip" == one.name
    assert why in notice
    assert {node.digest: node.data for node in taken} == files()


def test_a_member_that_is_not_what_the_manifest_says_is_left_out(trip: Path) -> None:
    def change(manifest: dict[str, Any], found: dict[str, bytes]) -> None:
        first, second, third = manifest["state"]
        first["sha256"], second["bytes"], third["bytes"] = "0" * 64, second["bytes"] - 1, 1 << 20

    repacked(trip, change)

    [_], [notice] = import_file(trip, state_budget=PLENTY)

    assert "it is not what its manifest says ×2" in notice
    assert f"it has more than {len(ANSWER.data) - 1} bytes" in notice
    assert {} == files()


def test_a_member_that_cannot_be_read_is_left_out(trip: Path) -> None:
    data = bytearray(trip.read_bytes())
    data[data.find(BRANCH.data) + len(BRANCH.data) - 1] ^= 1
    trip.write_bytes(data)

    [_], [notice] = import_file(trip, state_budget=PLENTY)

    assert "it cannot be unpacked (Bad CRC-32" in notice
    assert {TRUNK.digest, ANSWER.digest} == set(files())


def test_a_node_that_is_here_stays_as_it_is(trip: Path) -> None:
    own = kept(None, 0, range(10, 20), whole=False)
    put(own)

    import_file(trip, state_budget=PLENTY)

    assert own.digest == TRUNK.digest
    assert own.data != TRUNK.data
    assert {n.digest: n.data for n in (own, ANSWER, BRANCH)} == files()


def test_the_vault_is_not_larger_afterwards_than_it_may_be(trip: Path) -> None:
    old = [kept(None, 0, range(start, start + 40)) for start in (100, 200, 300)]
    vault = put(*old)
    for age, node in enumerate(old):
        os.utime(vault.place(MODEL.digest, node.digest), (1e9 - age, 1e9 - age))
    budget = sum(len(n.data) for n in (*old, ANSWER))

    _, notices = import_file(trip, state_budget=budget)

    assert [] == notices
    assert budget >= sum(map(len, files().values()))
    assert {TRUNK.digest, ANSWER.digest, BRANCH.digest} < set(files())
    assert old[2].digest not in files()


def test_what_is_taken_was_used_just_now_and_parents_after_what_hangs_on_them(trip: Path) -> None:
    vault = put(TRUNK)
    os.utime(vault.place(MODEL.digest, TRUNK.digest), (1e9, 1e9))
    before = time.time_ns()

    import_file(trip, state_budget=PLENTY)

    used = {entry.digest: entry.used_ns for entry in vault.entries()}
    assert used[TRUNK.digest] > max(used[ANSWER.digest], used[BRANCH.digest])
    assert before <= min(used.values())


def test_no_more_is_taken_than_the_vault_may_hold(trip: Path) -> None:
    budget = len(TRUNK.data) + len(ANSWER.data)

    _, [notice] = import_file(trip, state_budget=budget)

    assert "left out a snapshot: the vault may not hold so much ×1" in notice
    assert budget >= sum(map(len, files().values()))


def test_where_nothing_is_kept_on_disk_nothing_is_taken_or_deleted(trip: Path) -> None:
    put(FAR)

    _, [notice] = import_file(trip, state_budget=0)

    assert "nothing is kept on disk" in notice
    assert {FAR.digest} == set(files())


def test_a_full_disk_leaves_the_session_and_a_sentence(
    trip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("The disk is full.", "Free space.")

    monkeypatch.setattr(folder.VaultFolder, "write", refuse)

    [one], [notice] = import_file(trip, state_budget=PLENTY)

    assert "trip" == one.name
    assert notice.endswith("its state was not taken in: The disk is full.")


def test_what_is_here_already_is_refused_with_its_state(trip: Path) -> None:
    import_file(trip)

    with pytest.raises(SessionError, match="is here already, as trip"):
        import_file(trip, state_budget=PLENTY)
    assert {} == files()


# A list of members that is not sound.

MEMBER = f"state/{MODEL.digest}/{TRUNK.digest}.safetensors"


def said_twice(manifest: dict[str, Any], found: dict[str, bytes]) -> None:
    manifest["state"].append(manifest["state"][0])


def missing(manifest: dict[str, Any], found: dict[str, bytes]) -> None:
    del found[MEMBER]


def unnamed(manifest: dict[str, Any], found: dict[str, bytes]) -> None:
    del manifest["state"][0]


def as_old(manifest: dict[str, Any], found: dict[str, bytes]) -> None:
    manifest["version"] = 1


def member(name: str) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    def change(manifest: dict[str, Any], found: dict[str, bytes]) -> None:
        found[name] = found.pop(MEMBER)

    return change


def entry(**fields: Any) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    return lambda manifest, found: manifest["state"][0].update(fields)


def of_state(value: Any) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    return lambda manifest, found: manifest.update(state=value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (said_twice, "do not agree on state/"),
        (missing, "do not agree on state/"),
        (unnamed, "do not agree on state/"),
        (as_old, "do not agree on state/"),
        (of_state(None), "does not say which state it has"),
        (of_state({}), "does not say which state it has"),
        (of_state([1]), "does not say which state it has"),
        (of_state([]), "do not agree on state/"),
        (entry(bytes=True), "does not say which state it has"),
        (entry(bytes=1.0), "does not say which state it has"),
        (entry(sha256=None), "does not say which state it has"),
        (entry(bytes=-1), "has -1 bytes"),
        (entry(bytes=(1 << 30) + 1), "has 1073741825 bytes"),
        (entry(digest="../x"), "do not agree on state/"),
        (entry(identity=MODEL.digest.upper()), "do not agree on state/"),
        (member(MEMBER + "/"), "it has a member 'state/"),
        (member("../" + MEMBER), "it has a member '../state/"),
        (member("/" + MEMBER), "it has a member '/state/"),
        (member(MEMBER + "\n"), "it has a member 'state/"),
        (member(MEMBER.replace("/", "\\")), "it has a member 'state\\\\"),
        (member(MEMBER.replace(MODEL.digest, "..")), "it has a member 'state/../"),
        (member(MEMBER.upper()), "it has a member 'STATE/"),
        (member("state/" + MODEL.digest + "/"), "it has a member 'state/"),
    ],
)
def test_a_list_of_members_that_is_not_sound_is_refused_as_a_whole(
    trip: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None], why: str
) -> None:
    repacked(trip, change)

    with pytest.raises(SessionError) as caught:
        import_file(trip, state_budget=PLENTY)

    assert why in caught.value.message
    assert [] == os.listdir(paths.sessions_dir())
    assert {} == files()


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        ("NODES", 2, "it has state of more than 2 snapshots"),
        ("STATE_BYTES", 100, "says that its state has"),
    ],
)
def test_more_state_than_a_bundle_may_have_is_refused(
    trip: Path, limit: str, value: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, limit, value)

    with pytest.raises(SessionError, match=why):
        import_file(trip, state_budget=PLENTY)
    assert [] == os.listdir(paths.sessions_dir())


def test_state_is_stored_and_not_deflated(trip: Path) -> None:
    repacked(trip, lambda manifest, found: None, way=zipfile.ZIP_DEFLATED)

    with pytest.raises(SessionError, match="is not stored"):
        import_file(trip, state_budget=PLENTY)


def test_as_many_nodes_as_a_bundle_may_have_fit_its_manifest() -> None:
    sizes = StateEntry("d" * 64, "i" * 64, manifest.NODE_BYTES, "s" * 64).said()
    longest = json.dumps({"state": [sizes] * 2}, indent=2)
    shortest = json.dumps({"state": [sizes]}, indent=2)

    assert len(longest) - len(shortest) < manifest.SAID_OF_NODE


def test_state_that_the_session_does_not_name_is_needed_by_it_all_the_same(tmp_path: Path) -> None:
    """What was cut for the way has a digest that no answer says."""
    secret = kept(None, 0, [10, 11, 90])
    mine, file = kept(secret, 2, [40, 41]), tmp_path / "mine.flarechat"
    path, vault = said("mine", (mine, 4)), put(secret, mine)
    with file.open("wb") as out:
        assert [] == state.write_bundle(Session(path), out, vault)
    store.remove(path)
    other = saved("other", "Hi")
    [one], _ = import_file(file, state_budget=PLENTY)
    taken = files().keys()

    assert [] == Session(store.find("mine")).notices
    assert 2 == len(taken)
    assert (0, 0) == store.remove(other)
    assert taken == files().keys()
    store.remove(store.find(one.name))
    assert {} == files()
