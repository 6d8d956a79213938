"""Fixtures every test shares: its own home, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh FLARECHAT_HOME, and no FLARECHAT_* setting of the caller's."""
    import os

    for name in [n for n in os.environ if n.startswith("FLARECHAT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("FLARECHAT_HOME", str(folder))
    return folder
