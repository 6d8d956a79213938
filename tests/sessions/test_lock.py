"""Two writers of one session never meet, and a dead one never stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flarechat.errors import SessionError
from flarechat.sessions.lock import SessionLock

HOLD = """
import sys, time
from pathlib import Path
from flarechat.sessions.lock import SessionLock
lock = SessionLock(Path(sys.argv[1]), "abc", "trip")
print("held", flush=True)
time.sleep(60)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "held\n" == process.stdout.readline()
    return process


def end(process: subprocess.Popen[str], number: int) -> None:
    process.send_signal(number)
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


def test_another_process_is_refused_by_name_and_process_id(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with pytest.raises(SessionError) as caught:
            SessionLock(tmp_path, "abc", "trip")

        assert f"The session trip is open in process {process.pid}." == caught.value.message
        assert 2 == caught.value.exit_code
        SessionLock(tmp_path, "other", "other").release()
    finally:
        end(process, signal.SIGTERM)


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    end(holder(tmp_path), signal.SIGKILL)
    assert [".abc.lock"] == os.listdir(tmp_path)

    lock = SessionLock(tmp_path, "abc", "trip")
    lock.release()

    assert [] == os.listdir(tmp_path)


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    lock = SessionLock(tmp_path, "abc", "trip")

    with pytest.raises(SessionError, match=f"process {os.getpid()}"):
        SessionLock(tmp_path, "abc", "trip")

    lock.release()
    lock.release()
    SessionLock(tmp_path, "abc", "trip").release()


def test_a_lock_file_removed_by_its_last_holder_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder goes between our opening and our locking of its file."""
    import flarechat.sessions.lock as module

    first = SessionLock(tmp_path, "abc", "trip")
    real = module._try_lock
    calls: list[int] = []

    def late(fd: int) -> None:
        if not calls:
            first.release()
        calls.append(fd)
        real(fd)

    monkeypatch.setattr(module, "_try_lock", late)
    second = SessionLock(tmp_path, "abc", "trip")

    assert 2 == len(calls)
    assert (tmp_path / ".abc.lock").exists()
    second.release()
