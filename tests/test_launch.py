"""From settings to a boot: which model, which head, and how the engine is to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flarechat import launch, paths
from flarechat.config import Settings
from flarechat.errors import SettingsError
from flarechat.models import store


def test_launch_turns_settings_into_a_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, int, int]] = []

    def resolve(name: str, *, progress: object) -> Path:
        assert callable(progress)
        progress(1, 2)
        return Path("/models") / name

    monkeypatch.setattr(store, "resolve", resolve)
    settings = Settings(ctx=512, concurrency=2, device="cpu", dtype="float32", threads=3)

    boot = launch.boot_of(settings, lambda *step: heard.append(step))

    assert (512, 2, "cpu", "float32", 3) == (
        boot.context,
        boot.lanes,
        boot.device,
        boot.dtype,
        boot.threads,
    )
    assert ("/models/smollm2", str(paths.cache_dir())) == (boot.model, boot.cache)
    assert (True, None) == (boot.mtp, boot.mtp_file)
    assert (None, 2048) == (boot.prefix_cache, boot.prefix_cache_disk)
    assert [("download", 1, 2)] == heard


def test_launch_hands_on_the_draft_head_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(store, "resolve", lambda name, *, progress: tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    head = tmp_path / "head.safetensors"
    head.touch()

    def booted(**fields: Any) -> tuple[bool, str | None]:
        boot = launch.boot_of(Settings(**fields), lambda *step: None)
        return boot.mtp, boot.mtp_file

    assert (True, str(head)) == booted(mtp_file="head.safetensors")
    assert (True, str(head)) == booted(mtp_file="~/head.safetensors")
    assert (False, None) == booted(mtp=False, mtp_file="nothing")
    for name in ("nothing", "x" * 5000, "~nobody-here/x"):
        with pytest.raises(SettingsError, match=r"--mtp-file .* does not exist"):
            booted(mtp_file=name)
