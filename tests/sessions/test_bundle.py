"""Bundles: the same session elsewhere, and nothing else, whatever the file holds."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flarechat import paths
from flarechat.errors import SessionError
from flarechat.sessions import bundle, store
from flarechat.sessions.importing import import_file
from flarechat.sessions.session import Session
from tests.sessions.saving import saved


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """The bundle of a session that is not here any more."""
    path = saved("trip", "Hi", "Hello")
    file = tmp_path / "out" / "trip.flarechat"
    file.parent.mkdir()
    with file.open("wb") as out:
        bundle.write(Session(path), out)
    store.remove(path)
    return file


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as found:
        return {name: found.read(name) for name in found.namelist()}


def test_a_bundle_brings_the_session_byte_for_byte_under_its_name(packed: Path) -> None:
    log = members(packed)["session.jsonl"]

    [one], _ = import_file(packed)

    assert ("trip", 2, log) == (one.name, one.turns, store.find("trip").read_bytes())
    with pytest.raises(SessionError, match="is here already, as trip"):
        import_file(packed)


def test_a_name_that_is_taken_gets_a_number(packed: Path) -> None:
    saved("trip", "another")

    [one], _ = import_file(packed)

    assert "trip-2" == one.name


def test_a_session_that_no_bundle_holds_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(saved("trip", "Hi"))
    monkeypatch.setitem(bundle.LIMITS, "session.jsonl", 100)

    with pytest.raises(SessionError, match="and a bundle holds 100"):
        bundle.write(session, io.BytesIO())


def test_the_same_session_gives_the_same_bytes() -> None:
    session = Session(saved("trip", "Hi"))
    first, second = io.BytesIO(), io.BytesIO()

    bundle.write(session, first)
    bundle.write(session, second)

    assert first.getvalue() == second.getvalue()


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "CON:", "", "a\x00b", "-rf", "x" * 300])
def test_a_name_of_a_manifest_is_never_a_path(packed: Path, name: str, tmp_path: Path) -> None:
    found = members(packed)
    manifest = json.loads(found["manifest.json"])
    manifest["session"]["name"] = name
    repacked(packed, found | {"manifest.json": json.dumps(manifest).encode()})

    [one], _ = import_file(packed)

    assert [f"{one.name}.jsonl"] == os.listdir(paths.sessions_dir())
    assert ["home", "out"] == sorted(os.listdir(tmp_path))


def repacked(file: Path, found: dict[str, bytes], **attributes: Any) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in found.items():
            member = zipfile.ZipInfo(name)
            member.compress_type = zipfile.ZIP_DEFLATED
            for key, value in attributes.items():
                setattr(member, key, value)
            out.writestr(member, data)


def with_member(name: str) -> Callable[[Path], None]:
    return lambda file: repacked(file, members(file) | {name: b"x"})


def without_log(file: Path) -> None:
    repacked(file, {"manifest.json": members(file)["manifest.json"]})


def as_links(file: Path) -> None:
    repacked(file, members(file), external_attr=(stat.S_IFLNK | 0o777) << 16)


def as_bzip2(file: Path) -> None:
    repacked(file, members(file), compress_type=zipfile.ZIP_BZIP2)


def twice(file: Path) -> None:
    found = members(file)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(file, "a") as out:
        out.writestr("session.jsonl", found["session.jsonl"])


def encrypted(file: Path) -> None:
    """The flag alone: Python writes no encrypted member."""
    data = bytearray(file.read_bytes())
    for signature, flag in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = data.find(signature)
        while at >= 0:
            data[at + flag] |= 1
            at = data.find(signature, at + 4)
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


def other_log(file: Path) -> None:
    found = members(file)
    repacked(file, found | {"session.jsonl": found["session.jsonl"].replace(b"Hi", b"Ho")})


def manifest_of(**changes: Any) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        found = members(file)
        manifest = json.loads(found["manifest.json"])
        for key, value in changes.items():
            target = manifest if key in manifest else manifest["session"]
            target[key] = value
        repacked(file, found | {"manifest.json": json.dumps(manifest).encode()})

    return change


def no_manifest(data: bytes) -> Callable[[Path], None]:
    return lambda file: repacked(file, members(file) | {"manifest.json": data})


def alien_log(file: Path) -> None:
    log = b'{"no": "session"}\n'
    about = {"bytes": len(log), "sha256": hashlib.sha256(log).hexdigest()}
    manifest_of(**about)(file)
    repacked(file, members(file) | {"session.jsonl": log})


def bomb(file: Path) -> None:
    """A gigabyte of blanks in a megabyte, with headers and a manifest that say it is small."""
    found = members(file)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("manifest.json", found["manifest.json"])
        with out.open("session.jsonl", "w", force_zip64=True) as member:
            for _ in range(64):
                member.write(b" " * (1 << 20))


def other_sizes(file: Path) -> None:
    """A bomb whose directory says that its log is as long as the manifest says."""
    size = json.loads(members(file)["manifest.json"])["session"]["bytes"]
    bomb(file)
    data = file.read_bytes().replace((64 << 20).to_bytes(4, "little"), size.to_bytes(4, "little"))
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (with_member("../../evil.jsonl"), "it has a member '../../evil.jsonl'"),
        (with_member("/tmp/evil"), "it has a member '/tmp/evil'"),
        (with_member("nodes/x.safetensors"), "it has a member 'nodes/x.safetensors'"),
        (with_member("session.jsonl/"), "it has a member 'session.jsonl/'"),
        (without_log, "it has not all of its members: manifest.json"),
        (twice, "it has twice of its members"),
        (as_links, "is no plain file"),
        (as_bzip2, "is neither stored nor deflated"),
        (encrypted, "its member manifest.json is encrypted"),
        (cut, "it cannot be unpacked"),
        (other_log, "session.jsonl is not what its manifest says"),
        (manifest_of(sha256="0" * 64), "session.jsonl is not what its manifest says"),
        (manifest_of(bytes=3), "session.jsonl has more than 3 bytes"),
        (manifest_of(bytes=1 << 40), "says that session.jsonl has 1099511627776 bytes"),
        (manifest_of(bytes=-1), "says that session.jsonl has -1 bytes"),
        (manifest_of(bytes=True), "does not say which session it is"),
        (manifest_of(session=[]), "does not say which session it is"),
        (manifest_of(format="x"), "manifest.json does not say flarechat-bundle"),
        (manifest_of(version=3), "is a bundle of version 3; this flarechat reads 1 and 2"),
        (no_manifest(b"junk"), "manifest.json is no JSON"),
        (no_manifest(b"[" * 60000), "manifest.json is no JSON"),
        (no_manifest(b" " * (1 << 17)), "manifest.json has more than 65536 bytes"),
        (manifest_of(version=2), "manifest.json does not say which state it has"),
        (manifest_of(version=True), "is a bundle of version True"),
        (alien_log, "is not the start of a flarechat session"),
        (bomb, "session.jsonl has more than"),
        (other_sizes, "session.jsonl"),
    ],
)
def test_a_bundle_that_is_not_sound_is_refused_and_leaves_nothing(
    packed: Path, spoil: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    spoil(packed)

    with pytest.raises(SessionError) as caught:
        import_file(packed)

    assert why in caught.value.message
    assert str(packed) in caught.value.message
    assert [] == os.listdir(paths.sessions_dir())
    assert ["home", "out"] == sorted(os.listdir(tmp_path))
