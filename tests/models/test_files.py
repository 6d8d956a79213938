"""Files that appear whole or not at all, and the lock that dies with its owner."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flarechat.errors import StorageError
from flarechat.models.files import locked, require_space, written_whole

WRITER = """
import sys, time
from pathlib import Path
from flarechat.models.files import written_whole
with written_whole(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def killed_writer(target: Path) -> None:
    """Let a process die by SIGKILL in the middle of writing `target`."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "writing\n" == process.stdout.readline()
        process.send_signal(signal.SIGKILL)


def test_a_file_appears_with_all_its_bytes(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    with written_whole(target) as file:
        file.write(b"whole")

        assert not target.exists()

    assert b"whole" == target.read_bytes()
    assert [target] == list(target.parent.iterdir())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), written_whole(target) as file:
        file.write(b"half")
        raise KeyboardInterrupt

    assert b"old" == target.read_bytes()
    assert [target] == list(tmp_path.iterdir())


def test_a_full_disk_is_a_storage_error_with_a_remedy(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with pytest.raises(StorageError, match="The disk is full") as caught, written_whole(target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert "FLARECHAT_HOME" in caught.value.hint
    assert [] == list(tmp_path.iterdir())


def test_a_file_too_large_for_the_disk_is_refused_before_it_is_begun(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="the model needs 1,000,000,000 MB"):
        require_space(tmp_path, 10**15, "the model")


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "file"
    killed_writer(target)

    assert [] != list(tmp_path.glob(".*.part"))

    with written_whole(target) as file:
        file.write(b"whole")

    assert [target] == list(tmp_path.iterdir())


def test_a_living_writer_is_not_swept(tmp_path: Path) -> None:
    with written_whole(tmp_path / "slow") as slow:
        slow.write(b"slow")
        with written_whole(tmp_path / "fast") as fast:
            fast.write(b"fast")

    assert b"slow" == (tmp_path / "slow").read_bytes()
    assert b"fast" == (tmp_path / "fast").read_bytes()


def test_the_second_owner_of_a_lock_waits_for_the_first(tmp_path: Path) -> None:
    order, waited = [], threading.Event()

    def second() -> None:
        with locked(tmp_path / "lock", waited.set):
            order.append("second")

    with locked(tmp_path / "lock", lambda: None):
        thread = threading.Thread(target=second)
        thread.start()

        assert waited.wait(5)

        order.append("first")
    thread.join()

    assert ["first", "second"] == order
