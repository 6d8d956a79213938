"""Digests are right, and a file is not read twice for them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from flarechat.models.digests import digest, remembered


def test_a_digest_is_computed_once_until_the_file_changes(tmp_path: Path) -> None:
    path, reads = tmp_path / "model", []
    path.write_bytes(b"one")

    def count(done: int, total: int) -> None:
        reads.append((done, total))

    first = digest(path, tmp_path / "cache", count)
    again = digest(path, tmp_path / "cache", count)
    path.write_bytes(b"three")
    changed = digest(path, tmp_path / "cache", count)

    assert hashlib.sha256(b"one").hexdigest() == first == again
    assert hashlib.sha256(b"three").hexdigest() == changed
    assert [(3, 3), (5, 5)] == reads


def test_a_digest_is_remembered_only_once_it_was_computed(tmp_path: Path) -> None:
    path, cache = tmp_path / "model", tmp_path / "cache"
    path.write_bytes(b"one")
    before = remembered(path, cache)
    value = digest(path, cache)
    after = remembered(path, cache)
    path.write_bytes(b"three")

    assert ("", value, "") == (before, after, remembered(path, cache))
    assert "" == remembered(tmp_path / "gone", cache)


def test_a_damaged_note_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"one")
    expected = digest(path, tmp_path / "cache")
    (note,) = (tmp_path / "cache" / "digests").iterdir()
    for damage in ("", "[]", "null", "{", '{"sha256": "made up"}'):
        note.write_text(damage)

        assert expected == digest(path, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    path, blocked = tmp_path / "model", tmp_path / "blocked"
    path.write_bytes(b"one")
    blocked.write_bytes(b"a file where the folder should be")

    assert hashlib.sha256(b"one").hexdigest() == digest(path, blocked)
