"""What an import leaves beside the sessions: nothing, also where it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.errors import StorageError
from flarechat.sessions.aside import folder_aside
from flarechat.sessions.importing import import_file

FOREIGN = Path(__file__).parent / "foreign"
UNDER_WAY = """
from flarechat.sessions.aside import folder_aside
with folder_aside() as folder:
    (folder / "0.jsonl").write_text("half")
    print(folder, flush=True)
    input()
"""


def importing() -> tuple[subprocess.Popen[bytes], Path]:
    """A process in the middle of an import, and its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", UNDER_WAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout
    return process, Path(os.fsdecode(process.stdout.readline().strip()))


def left() -> list[str]:
    return sorted(name for name in os.listdir(paths.sessions_dir()) if "import" in name)


def test_a_killed_import_is_swept_by_the_next_and_one_under_way_is_not() -> None:
    alive, there = importing()
    dead, gone = importing()
    try:
        dead.send_signal(signal.SIGKILL)
        dead.communicate()
        assert (gone / "0.jsonl").exists()
        (gone.parent / ".import-old").mkdir()

        import_file(FOREIGN / "openai.json")

        assert [there.name, f"{there.name}.lock"] == left()
        assert "half" == (there / "0.jsonl").read_text()
    finally:
        alive.communicate(b"\n")
    assert (0, []) == (alive.returncode, left())


def test_nothing_else_is_swept(tmp_path: Path) -> None:
    sessions, elsewhere = paths.sessions_dir(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("x")
    (sessions / ".import-link").symlink_to(elsewhere)
    (sessions / ".import-file").write_text("x")

    with folder_aside() as first, folder_aside() as second:
        assert first != second
        assert first.is_dir()
    assert [".import-file", ".import-link"] == left()
    assert ["kept"] == os.listdir(elsewhere)


def test_a_folder_that_cannot_be_made_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: int = 0) -> None:
        raise OSError(28, "No space left on device")

    paths.sessions_dir()
    monkeypatch.setattr(Path, "mkdir", refuse)

    with pytest.raises(StorageError, match=r"Nothing can be written to .*: No space left"):
        folder_aside().__enter__()
    assert [] == left()
