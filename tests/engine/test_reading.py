"""Files that are read ahead are those that a plain read gives, good or not, and never many."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from flarechat.engine import reading
from flarechat.vault import nodefile
from flarechat.vault.identity import Identity, digest_of


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four, however many cores there are."""
    monkeypatch.setattr(reading, "_MOST", 4)


OWNER = Identity(recipe="r", fingerprint="f", dtype="float32", device="cpu")


def written(folder: Path, count: int) -> list[Path]:
    """Files of so many nodes, each on its own behind the root."""
    home, paths = folder / OWNER.digest, list[Path]()
    home.mkdir()
    for number in range(count):
        fields = nodefile.metadata(
            OWNER, model="m", parent=OWNER.digest, offset=0, tokens=(number,), drafted=True
        )
        path = home / (digest_of(OWNER.digest, 0, (number,)) + nodefile.SUFFIX)
        path.write_bytes(nodefile.sealed(save({"rows.x": torch.full((3, 2), number)}, fields)))
        paths.append(path)
    return paths


def test_every_file_comes_as_a_plain_read_gives_it(tmp_path: Path) -> None:
    paths, reader = written(tmp_path, 20), reading.Reader()
    reader.expect(paths)

    assert [nodefile.read_whole(path) for path in paths] == [reader.read(path) for path in paths]
    assert nodefile.read_whole(paths[3]) == reader.read(paths[3])  # nobody expected it


def test_what_is_wrong_with_one_file_is_said_when_that_is_asked_for(tmp_path: Path) -> None:
    paths, reader = written(tmp_path, 4), reading.Reader()
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    paths[2].unlink()
    reader.expect(paths)

    assert nodefile.read_whole(paths[0]) == reader.read(paths[0])
    with pytest.raises(nodefile.Damaged):
        reader.read(paths[1])
    with pytest.raises(nodefile.Unreadable):
        reader.read(paths[2])
    assert nodefile.read_whole(paths[3]) == reader.read(paths[3])


def test_only_a_few_are_held_and_none_that_were_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, reader = written(tmp_path, 6), reading.Reader()
    begun, lock = list[Path](), threading.Lock()

    def noted(path: Path) -> tuple[nodefile.Header, bytes]:
        with lock:
            begun.append(path)
        return nodefile.read_whole(path)

    monkeypatch.setattr(reading, "_MOST", 2)
    monkeypatch.setattr(reading, "read_whole", noted)
    reader.expect(paths[:4])
    reader.read(paths[0])
    reader.expect(paths[4:])
    read = [reader.read(path) for path in paths[4:]]

    assert [nodefile.read_whole(path) for path in paths[4:]] == read
    assert set(begun) <= {*paths[:3], *paths[4:]}, "no more than two are held, or read"
    assert not reader._begun and not reader._next
