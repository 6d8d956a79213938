"""The folders: where they are made and who may read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.errors import StorageError


def test_every_folder_that_is_made_is_readable_by_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    monkeypatch.setenv("FLARECHAT_HOME", str(there / "new" / "home"))
    umask = os.umask(0o022)
    try:
        made = [
            paths.sessions_dir(), paths.models_dir(), paths.snapshots_dir(), paths.logs_dir()
        ]  # fmt: skip
    finally:
        os.umask(umask)

    modes = {path: path.stat().st_mode & 0o777 for path in there.rglob("*")}
    assert set(made) < set(modes)
    assert {0o700} == set(modes.values())
    assert 0o755 == there.stat().st_mode & 0o777


def test_a_folder_that_cannot_be_made_is_named(home: Path) -> None:
    home.mkdir()
    (home / "logs").write_text("in the way")

    with pytest.raises(StorageError, match=r"logs is no folder\."):
        paths.logs_dir()
