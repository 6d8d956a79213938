"""Programs that hang, flood, fail or fork: they end, their output is bounded, nothing stays."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from flarechat.tools import runner
from flarechat.tools.runner import ENVIRONMENT, Ran, run

LIMIT = 1000


def sh(script: str, data: bytes = b"", *, timeout: float = 5.0, limit: int = LIMIT) -> Ran:
    return run(["sh", "-c", script], data, timeout=timeout, limit=limit)


def gone(pid: int) -> bool:
    """Whether a process has ended, soon; one that is dead and not yet waited for counts."""
    for _ in range(100):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


def test_input_goes_in_and_output_comes_out() -> None:
    data = b'{"a": "' + b"x" * 200_000 + b'"}'

    ran = run(["wc", "-c"], data, timeout=5, limit=LIMIT)

    assert ("exited", 0, str(len(data)), False) == (
        ran.end,
        ran.status,
        ran.output.decode().strip(),
        ran.cut,
    )


def test_input_that_nobody_reads_is_no_error() -> None:
    ran = sh("echo done", b"x" * 500_000)

    assert ("exited", 0, b"done\n") == (ran.end, ran.status, ran.output)


def test_a_program_that_hangs_is_ended_at_its_time() -> None:
    began = time.monotonic()

    ran = sh("echo begun; sleep 60", timeout=0.2)

    assert ("timeout", None, b"begun\n") == (ran.end, ran.status, ran.output)
    assert time.monotonic() - began < 5


def test_a_program_that_refuses_to_end_is_ended_all_the_same() -> None:
    ran = sh("trap '' TERM INT HUP; while :; do sleep 0.05; done", timeout=0.2)

    assert "timeout" == ran.end


def test_output_is_cut_at_the_limit_and_the_program_goes_on() -> None:
    ran = sh("head -c 300000 /dev/zero; exit 3")

    assert ("exited", 3, LIMIT, True) == (ran.end, ran.status, len(ran.output), ran.cut)


def test_output_of_just_the_limit_is_not_cut() -> None:
    assert not sh(f"head -c {LIMIT} /dev/zero").cut


def test_a_program_that_floods_is_ended() -> None:
    ran = sh("exec yes", timeout=0.2)

    assert ran.end in ("timeout", "flooded")
    assert (LIMIT, True) == (len(ran.output), ran.cut)


def test_what_is_dropped_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_FLOOD", 100_000)

    ran = sh("exec yes", timeout=30)

    assert ("flooded", None, LIMIT, True) == (ran.end, ran.status, len(ran.output), ran.cut)


def test_the_end_of_stderr_is_kept() -> None:
    ran = sh("yes noise | head -n 20000 >&2; echo the reason >&2; exit 1")

    assert (1, b"the reason\n") == (ran.status, ran.errors[-11:])
    assert len(ran.errors) <= 4096


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are looked up in /proc")
def test_a_child_that_keeps_the_pipe_open_is_not_waited_for_and_does_not_stay() -> None:
    began = time.monotonic()

    ran = sh("sleep 60 & echo $!")

    assert ("exited", 0) == (ran.end, ran.status)
    assert time.monotonic() - began < 5
    assert gone(int(ran.output))


def test_a_program_is_stopped_from_outside() -> None:
    stop, began = threading.Event(), time.monotonic()
    threading.Timer(0.1, stop.set).start()

    ran = run(["sleep", "60"], b"", timeout=60, limit=LIMIT, stop=stop)

    assert ("stopped", None) == (ran.end, ran.status)
    assert time.monotonic() - began < 5


def test_a_signal_is_a_negative_status() -> None:
    assert -9 == sh("kill -9 $$").status


def test_what_cannot_be_started_says_why() -> None:
    ran = run(["/nowhere/at/all"], b"", timeout=1, limit=LIMIT)

    assert ("unstarted", b"No such file or directory") == (ran.end, ran.errors)


def test_no_shell_reads_the_arguments(tmp_path: Path) -> None:
    hostile = f"; touch {tmp_path}/made; $(touch {tmp_path}/made)"

    ran = run(["printf", "%s", hostile], b"", timeout=5, limit=LIMIT)

    assert (hostile, False) == (ran.output.decode(), (tmp_path / "made").exists())


def test_of_the_environment_only_what_is_harmless_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_KEY", "1")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(tmp_path)
    script = "import os, json; print(json.dumps([sorted(os.environ), os.getcwd()]))"

    ran = run([sys.executable, "-S", "-c", script], b"", timeout=20, limit=LIMIT)

    names, folder = __import__("json").loads(ran.output)
    assert str(tmp_path) == folder
    assert set(names) - {"LC_CTYPE"} == {name for name in ENVIRONMENT if name in os.environ}
    assert "SECRET_KEY" not in names
