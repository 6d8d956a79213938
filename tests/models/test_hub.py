"""Models by Hugging Face name, with the hub played by functions."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.errors import FlarechatError, ModelError, StorageError
from flarechat.models import hub


def fill(name: str, staging: Path) -> None:
    (staging / ".cache").mkdir(parents=True)
    (staging / "config.json").write_text("{}")
    (staging / "model.safetensors").write_bytes(bytes(90))


def test_a_model_appears_under_its_name_once_it_is_whole() -> None:
    seen: list[tuple[int, int]] = []
    path = hub.pull("org/tiny-1.5", lambda *p: seen.append(p), sizes=lambda _: 92, download=fill)

    assert paths.models_dir() / "org--tiny-1.5" == path == hub.folder_of("org/tiny-1.5")
    assert "org/tiny-1.5" == hub.name_of(path)
    assert ["config.json", "model.safetensors"] == sorted(p.name for p in path.iterdir())
    assert (92, 92) == seen[-1]
    assert [".hub", "org--tiny-1.5"] == sorted(p.name for p in paths.models_dir().iterdir())
    assert ["org--tiny-1.5.lock"] == [p.name for p in (paths.models_dir() / ".hub").iterdir()]


def test_an_interrupted_download_shows_up_nowhere_and_is_continued() -> None:
    def half(name: str, staging: Path) -> None:
        staging.mkdir(parents=True)
        (staging / "config.json").write_text("{}")
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    def rest(name: str, staging: Path) -> None:
        assert (staging / "config.json").exists()
        (staging / "model.safetensors").write_bytes(b"")

    with pytest.raises(ModelError, match="org/tiny could not be fetched"):
        hub.pull("org/tiny", lambda *_: None, sizes=lambda _: 2, download=half)
    assert not hub.is_pulled("org/tiny")

    hub.pull("org/tiny", lambda *_: None, sizes=lambda _: 2, download=rest)
    assert hub.is_pulled("org/tiny")


class RepositoryNotFoundError(Exception):
    pass


class GatedRepoError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RepositoryNotFoundError("404"), ModelError, "There is no public model org/tiny"),
        (GatedRepoError("403"), ModelError, "asks for an agreement"),
        (OSError(errno.ENOSPC, "No space left on device"), StorageError, "The disk is full"),
        (RuntimeError("name resolution\nmore"), ModelError, "(RuntimeError: name resolution)"),
    ],
)
def test_each_failure_is_one_sentence(
    error: Exception, kind: type[FlarechatError], words: str
) -> None:
    def fail(name: str) -> int:
        raise error

    with pytest.raises(kind) as caught:
        hub.pull("org/tiny", lambda *_: None, sizes=fail, download=fill)

    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "expected"),
    [("org/name", True), ("org/name-1.5_b", True), ("org", False), ("a/b/c", False),
     ("../name", False), ("org/..", False), ("/etc/x", False), ("org/a..b", False)],
)  # fmt: skip
def test_only_organisation_and_name_make_a_hub_name(name: str, expected: bool) -> None:
    assert expected == hub.is_hub_name(name)
