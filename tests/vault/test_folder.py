"""The folder of the vault: who may read it, what is in it, and that nothing is left by halves."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
from collections import namedtuple
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from flarechat.errors import StorageError
from flarechat.vault import folder as module
from flarechat.vault import nodefile
from flarechat.vault.folder import SPARED_BYTES, Finding, VaultFolder
from flarechat.vault.nodefile import SUFFIX, read_whole
from tests.vault.nodes import ALIEN, IDENTITY, Made, made

ONE = made([1, 2])
TWO = made([3, 4], ONE)
THREE = made([5], TWO, 1)
OTHER = made([1, 2], identity=ALIEN)

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def vault(tmp_path: Path) -> VaultFolder:
    """A vault whose folder is not there yet."""
    return VaultFolder(tmp_path / "cache" / "snapshots")


def write(vault: VaultFolder, *nodes: Made) -> list[Path]:
    paths = [vault.write(n.identity.digest, n.digest, n.data) for n in nodes]
    return [path for path in paths if path]


def files(vault: VaultFolder) -> set[Path]:
    return {path for path in vault.root.rglob("*") if not path.is_dir()}


# Looking.


def test_an_empty_vault_answers_everything_with_nothing(vault: VaultFolder) -> None:
    assert [] == vault.entries() == vault.verify() == vault.paths_of(None, [ONE.digest])
    assert 0 == vault.trim(0) == vault.clear() == vault.clear(IDENTITY.digest)
    assert 0 == vault.drop([vault.place(IDENTITY.digest, ONE.digest)])
    vault.touch([vault.place(IDENTITY.digest, ONE.digest)])

    assert not vault.root.exists()


def test_what_was_written_is_found_by_identity_and_node(vault: VaultFolder) -> None:
    paths = write(vault, ONE, TWO, OTHER)
    entries = vault.entries()

    assert {(n.identity.digest, n.digest, len(n.data)) for n in (ONE, TWO, OTHER)} == {
        (entry.identity, entry.digest, entry.size) for entry in entries
    }
    assert sorted(paths) == [entry.path for entry in entries]
    assert [OTHER.digest] == [entry.digest for entry in vault.entries(ALIEN.digest)]
    assert all(entry.used_ns == entry.path.stat().st_mtime_ns for entry in entries)
    assert TWO.data == read_whole(paths[1])[1]


def test_alien_names_are_passed_over_and_stay(vault: VaultFolder) -> None:
    (path,) = write(vault, ONE)
    aliens = [
        vault.root / "readme", path.with_name("notes.txt"), path.with_name("A" * 64 + SUFFIX),
        path.with_name("a" * 63 + SUFFIX), vault.root / ("b" * 63) / path.name,
    ]  # fmt: skip
    for alien in aliens:
        alien.parent.mkdir(exist_ok=True)
        alien.write_bytes(ONE.data)
    aliens += [
        path.with_name("c" * 64 + SUFFIX), path.with_name("d" * 64 + SUFFIX),
        vault.root / ("e" * 64),
    ]  # fmt: skip
    aliens[-3].mkdir()
    aliens[-2].symlink_to(path)
    aliens[-1].symlink_to(path.parent)

    assert [path] == [entry.path for entry in vault.entries()]
    assert {
        aliens[-3]: ("it is a folder, no snapshot; move it away", False),
        aliens[-2]: ("it is a link, no file", True),
        aliens[-1]: ("it is a link, no folder", True),
    } == {finding.path: (finding.what, finding.mendable) for finding in vault.verify()}

    vault.clear()

    assert all(os.path.lexists(alien) for alien in aliens)
    assert not path.exists()


@pytest.mark.parametrize("name", ["..", "", "A" * 64, "a" * 63, "a" * 64 + "/..", "a" * 64 + "\n"])
def test_only_digests_have_a_place(vault: VaultFolder, name: str) -> None:
    for identity, digest in ((name, ONE.digest), (IDENTITY.digest, name)):
        with pytest.raises(ValueError, match="are no digests"):
            vault.write(identity, digest, b"")

    assert not vault.root.exists()


def test_paths_lead_from_the_first_node_and_share_what_they_share(vault: VaultFolder) -> None:
    branch, deep = made([6, 7], ONE, 1), made([8], THREE)
    write(vault, ONE, TWO, THREE, branch, deep, OTHER)

    def found(*leaves: Made, identity: str | None = None) -> list[str]:
        return [h.digest for h in vault.paths_of(identity, [leaf.digest for leaf in leaves])]

    assert [n.digest for n in (ONE, TWO, THREE)] == found(THREE)
    assert [n.digest for n in (ONE, TWO, THREE, deep, branch)] == found(TWO, deep, branch, ONE)
    assert [OTHER.digest, ONE.digest] == found(OTHER, ONE)
    assert [ONE.digest] == found(OTHER, ONE, identity=IDENTITY.digest)
    assert [] == found(made([99])) == found(ONE, identity="f" * 64)

    vault.drop([vault.place(IDENTITY.digest, TWO.digest)])

    assert [] == found(THREE, deep)
    assert [n.digest for n in (ONE, branch)] == found(deep, branch)


def test_a_node_that_hangs_beyond_its_parent_has_no_path(vault: VaultFolder) -> None:
    beyond = made([5], ONE, 3)
    below = made([6], beyond)
    write(vault, ONE, beyond, below)

    assert [] == vault.paths_of(None, [below.digest])
    assert [ONE.digest] == [h.digest for h in vault.paths_of(None, [ONE.digest, below.digest])]


# Coming.


@pytest.mark.parametrize("umask", [0, 0o022])
def test_only_the_owner_may_read(vault: VaultFolder, umask: int) -> None:
    before = os.umask(umask)
    try:
        (path,) = write(vault, ONE)
    finally:
        os.umask(before)

    modes = [p.stat().st_mode & 0o777 for p in (path, path.parent, vault.root)]
    assert [0o600, 0o700, 0o700] == modes


def test_a_half_written_file_is_never_open_to_others(
    vault: VaultFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    replace = os.replace

    def seen(source: Path, target: Path) -> None:
        modes.append(source.stat().st_mode & 0o777)
        replace(source, target)

    monkeypatch.setattr(os, "replace", seen)
    before = os.umask(0)
    try:
        write(vault, ONE)
    finally:
        os.umask(before)

    assert [0o600] == modes


def test_a_file_written_again_takes_the_place_of_the_old_one(vault: VaultFolder) -> None:
    (path,) = write(vault, ONE)
    with path.open("rb") as reader:
        write(vault, made([1, 2], model="again"))

        assert ONE.data == reader.read()
    assert "again" == read_whole(path)[0].model


@contextmanager
def longest_file(size: int) -> Iterator[None]:
    """No file may become longer: writing on fails half-way, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_fills_up_half_way_leaves_nothing(vault: VaultFolder) -> None:
    (path,) = write(vault, ONE)
    with longest_file(100_000), pytest.raises(StorageError, match="The disk is full") as caught:
        write(vault, made([9], extra=300_000))

    assert caught.value.hint
    assert {path} == files(vault)
    assert [] == vault.verify()


def test_the_last_of_the_disk_is_left_to_others(
    vault: VaultFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = SPARED_BYTES + len(ONE.data)
    free = enough - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free))
    with pytest.raises(StorageError, match="The disk is nearly full") as caught:
        write(vault, ONE)

    assert "268 MB are to stay so" in caught.value.message
    assert "flarechat cache clear" in caught.value.hint
    assert set() == files(vault)

    free = enough
    assert set(write(vault, ONE)) == files(vault)


def test_a_folder_that_cannot_be_made_is_a_sentence(vault: VaultFolder) -> None:
    vault.root.parent.mkdir()
    vault.root.write_text("in the way")

    assert [] == vault.entries() == vault.verify()
    assert 0 == vault.trim(0) == vault.clear()
    with pytest.raises(StorageError, match=r"snapshots is no folder\."):
        write(vault, ONE)


def test_a_folder_that_is_removed_under_the_writer_is_made_again(
    vault: VaultFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, times = module.made, []

    def made_and_removed(path: Path) -> Path:
        real(path)
        times.append(path)
        if len(times) <= 2:
            shutil.rmtree(vault.root)
        return path

    monkeypatch.setattr(module, "made", made_and_removed)

    assert set(write(vault, ONE)) == files(vault)
    assert 3 == len(times)


def test_touching_never_makes_a_node_younger_than_what_it_hangs_on(vault: VaultFolder) -> None:
    one, two, three = write(vault, ONE, TWO, THREE)
    for path in (one, two, three):
        os.utime(path, ns=(1, 1))
    gone = vault.place(IDENTITY.digest, made([77]).digest)
    vault.touch([three, gone, two, one])

    used = [path.stat().st_mtime_ns for path in (three, two, one)]
    assert sorted(set(used)) == used
    assert used[0] > 1
    assert not gone.exists()


# Going.


def test_clearing_takes_one_identity_or_all_and_what_the_dead_left(vault: VaultFolder) -> None:
    one, _, other = write(vault, ONE, TWO, OTHER)
    left, alive = one.with_name(".x.1.part"), one.with_name(".x.2.part")
    left.write_bytes(b"half")
    with alive.open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)

        assert len(ONE.data) + len(TWO.data) == vault.clear(IDENTITY.digest)
        assert {other, alive} == files(vault)

    assert len(OTHER.data) == vault.clear()
    assert [] == list(vault.root.iterdir())


def test_dropping_says_what_it_freed_and_minds_nothing_that_is_gone(vault: VaultFolder) -> None:
    one, two = write(vault, ONE, TWO)
    one.unlink()

    assert len(TWO.data) == vault.drop([two, one, two])
    assert [] == list(vault.root.iterdir())


# Judging.


def test_everything_that_is_wrong_is_found_and_the_rest_is_sound_without_it(
    vault: VaultFolder,
) -> None:
    below, deep, beyond = made([6], TWO), made([7], THREE), made([8], ONE, 3)
    one, two, three, _, _, far, other = write(vault, ONE, TWO, THREE, below, deep, beyond, OTHER)

    assert [Finding(far, "what it hangs on is missing")] == vault.verify()

    two.write_bytes(TWO.data[:-1] + b"\xff")
    left = other.with_name(".x.1.part")
    left.write_bytes(b"half")
    findings = {finding.path: finding.what for finding in vault.verify()}

    lost = dict.fromkeys(files(vault) - {one, two, other, left}, "what it hangs on is missing")
    assert three in lost and 4 == len(lost)
    wrong = {two: "its checksum is wrong", left: "leftover, harmless"}
    assert lost | wrong == findings

    vault.drop(findings)

    assert {one, other} == files(vault)
    assert [] == vault.verify()


def test_a_write_under_way_is_no_finding(vault: VaultFolder) -> None:
    (path,) = write(vault, ONE)
    with path.with_name(".x.1.part").open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)

        assert [] == vault.verify()


def test_a_file_that_vanishes_while_all_are_read_is_no_finding(
    vault: VaultFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, two = write(vault, ONE, TWO)
    listed = vault.entries()
    two.unlink()
    monkeypatch.setattr(VaultFolder, "entries", lambda self: listed)

    assert [] == vault.verify()


def test_a_copy_in_an_alien_folder_is_judged_by_itself(vault: VaultFolder) -> None:
    one, two = write(vault, ONE, TWO)
    copy = vault.root / ("e" * 64) / one.name
    copy.parent.mkdir()
    shutil.copy(one, copy)

    assert [Finding(copy, "its folder is another model's")] == vault.verify()
    assert len(ONE.data) == vault.trim(2 * len(ONE.data) + len(TWO.data) - 1)
    assert {one, two} == files(vault)


def test_what_came_while_the_folder_was_read_does_not_make_its_children_lost(
    vault: VaultFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(vault, ONE, TWO, THREE)
    real = VaultFolder.entries

    def without_the_first(self: VaultFolder) -> list[module.Entry]:
        return [entry for entry in real(self) if entry.digest != ONE.digest]

    monkeypatch.setattr(VaultFolder, "entries", without_the_first)

    assert [] == vault.verify()
    assert len(THREE.data) == vault.trim(len(TWO.data) + len(THREE.data) - 1)


def test_what_cannot_be_read_for_now_is_told_and_left_alone(
    vault: VaultFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = write(vault, ONE, TWO, THREE)
    used_up = OSError(24, "Too many open files")
    real = nodefile._opened

    def refused(path: Path) -> AbstractContextManager[BinaryIO]:
        if path in (one, two):
            raise nodefile.Unreadable(f"its file cannot be read: {used_up.strerror}")
        return real(path)

    monkeypatch.setattr(nodefile, "_opened", refused)
    told = Finding(one, "its file cannot be read: Too many open files", mendable=False)

    assert [told] == [finding for finding in vault.verify() if finding.path == one]
    assert 2 == len(vault.verify())
    assert len(THREE.data) == vault.trim(0)
    assert {one, two} == files(vault)


def test_nothing_is_written_behind_what_is_not_there(
    vault: VaultFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (vault.place(node.identity.digest, node.digest) for node in (ONE, TWO))
    assert vault.write(IDENTITY.digest, TWO.digest, TWO.data, [one]) is None
    assert set() == files(vault)

    write(vault, ONE)
    room = VaultFolder._require_room
    monkeypatch.setattr(VaultFolder, "_require_room", lambda *which: (one.unlink(), room(*which)))
    assert vault.write(IDENTITY.digest, TWO.digest, TWO.data, [one]) is None
    assert set() == files(vault)
    assert not two.exists()


@pytest.mark.parametrize("going", ["clear", "trim"])
def test_what_came_behind_what_goes_goes_too(
    going: str, vault: VaultFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(vault, ONE)
    drop, late = VaultFolder.drop, [TWO]

    def dropped(self: VaultFolder, paths: Iterable[Path]) -> int:
        paths = list(paths)
        if late:
            write(vault, late.pop())
        return drop(self, paths)

    monkeypatch.setattr(VaultFolder, "drop", dropped)
    assert len(ONE.data) + len(TWO.data) == (vault.clear() if going == "clear" else vault.trim(0))
    assert set() == files(vault)
