"""Signals and closed pipes, met by a real process."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.cli import turn
from flarechat.cli.turn import STOP_PATIENCE_S
from flarechat.protocol import Request
from flarechat.sessions import store
from flarechat.sessions.session import Session
from tests.cli.conftest import Cli
from tests.cli.scripted import Deaf

ROOT = Path(__file__).parents[2]


class Program:
    """`flarechat run` over a scenario, its stderr read line by line."""

    def __init__(self, scenario: str, *arguments: str, shell: str = "") -> None:
        command = [sys.executable, "-m", "tests.cli.scripted", scenario, "run", *arguments]
        self.process = subprocess.Popen(
            ["sh", "-c", f"{shell} {shlex.join(command)}"] if shell else command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout and self.process.stderr
        self.stdout, self.stderr = self.process.stdout, self.process.stderr

    def until(self, word: str) -> None:
        for line in self.stderr:
            if line.strip() == word:
                return
        raise AssertionError(f"it never said {word!r}")

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_stops_the_answer_and_keeps_what_exists(number: int, code: int) -> None:
    program = Program("endless", "--session", "trip", "Hi")
    program.until("delta")
    program.process.send_signal(number)

    got, out, err = program.ended()

    assert code == got
    assert out.startswith("word") and out.endswith("\n")
    assert "Traceback" not in err
    assert err.endswith("closed\n")
    last = Session(store.find("trip")).tree.path()[-1]
    assert "stopped" == last.status
    assert out.split() == last.text.split()


def test_a_signal_stops_every_answer_of_a_fan_and_keeps_what_exists() -> None:
    program = Program("endless", "--fan", "2", "--session", "trips", "Hi")
    for _ in range(3):
        program.until("delta")
    program.process.send_signal(signal.SIGINT)

    got, out, err = program.ended()

    tree = Session(store.find("trips")).tree
    first = tree.path()[-1]
    answers = tree.siblings(first)
    assert 130 == got
    assert "Traceback" not in err and err.endswith("closed\n")
    assert ["stopped", "stopped"] == [turn.status for turn in answers]
    printed = [part.split("---\n")[1].split() for part in out.split("--- answer")[1:]]
    assert printed == [turn.text.split() for turn in answers] and all(printed)
    assert (answers[0], []) == (first, tree.open_fan())


@pytest.mark.parametrize(("scenario", "moment"), [("loading", "loading"), ("prefill", "progress")])
def test_an_interrupt_before_the_first_word_ends_at_once(scenario: str, moment: str) -> None:
    program = Program(scenario, "Hi")
    program.until(moment)
    program.process.send_signal(signal.SIGINT)

    got, out, err = program.ended()

    assert (130, "") == (got, out)
    assert "Traceback" not in err
    assert err.endswith("closed\n")


def test_an_interrupt_while_the_model_is_pulled_ends_at_once(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from flarechat import launch\n"
        "from flarechat.__main__ import main\n"
        "def engine_of(settings, progress):\n"
        "    print('pulling', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n"
        "launch.engine_of = engine_of\n"
        "sys.exit(main(['run', 'Hi']))\n"
    )
    program = Program.__new__(Program)
    program.process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.process.stdout and program.process.stderr
    program.stdout, program.stderr = program.process.stdout, program.process.stderr
    program.until("pulling")
    program.process.send_signal(signal.SIGINT)

    assert (130, "", "") == program.ended()


def gone(process: int, patience: float = 20.0) -> bool:
    """Whether the process is there no more; one that was ended may still have to be reaped."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_pull_that_is_ended_leaves_no_download_behind(number: int, code: int) -> None:
    script = (
        "import sys\n"
        "from flarechat.__main__ import main\n"
        "from flarechat.models import pull\n"
        "popen = pull.subprocess.Popen\n"
        "def spawn(command, **options):\n"
        "    sleeper = [command[0], '-c', 'import time; time.sleep(60)']\n"
        "    process = popen(sleeper, **options)\n"
        "    print(process.pid, flush=True)\n"
        "    return process\n"
        "pull.subprocess.Popen = spawn\n"
        "sys.exit(main(['models', 'pull', 'smollm2']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    child = int(process.stdout.readline())
    process.send_signal(number)
    process.communicate(timeout=20)

    assert code == process.returncode
    assert gone(child)
    assert ["smollm2.lock"] == [p.name for p in (paths.models_dir() / ".pull").iterdir()]


@pytest.mark.parametrize(
    ("ignored", "sent", "code"),
    [("INT", signal.SIGINT, 130), ("HUP", signal.SIGHUP, None)],
)
def test_a_background_job_can_be_interrupted_and_nohup_holds(
    ignored: str, sent: int, code: int | None
) -> None:
    program = Program("endless", "Hi", shell=f"trap '' {ignored}; exec")
    program.until("delta")
    program.process.send_signal(sent)
    if code is None:
        program.until("delta")
        program.process.send_signal(signal.SIGTERM)

    assert (code or 143) == program.ended()[0]


def test_a_second_interrupt_does_not_wait_for_the_engine() -> None:
    program = Program("deaf", "Hi")
    program.until("delta")
    program.process.send_signal(signal.SIGINT)
    program.until("ignored")
    program.process.send_signal(signal.SIGINT)
    began = time.monotonic()

    got, _, err = program.ended()

    assert 130 == got
    assert time.monotonic() - began < STOP_PATIENCE_S - 1
    assert "Traceback" not in err
    assert err.endswith("closed\n")


def test_an_engine_that_does_not_stop_is_left_after_a_while(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(Deaf):
        def submit(self, request: Request) -> None:
            super().submit(request)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(turn, "STOP_PATIENCE_S", 0.05)
    got = cli("run", "Hi", engine=Interrupting)

    assert 130 == got.code
    assert got.engines[0].closed


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_reader_that_goes_away_ends_it_quietly(arguments: tuple[str, ...]) -> None:
    program = Program("endless", *arguments, "Hi")
    assert program.stdout.read(1)
    program.stdout.close()

    program.until("closed")
    rest = program.stderr.read()
    program.stderr.close()

    assert 141 == program.process.wait(20)
    assert "" == rest


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [("run", "Hi"), ("run", "--json", "Hi"), ("--help",)])
def test_an_output_that_is_full_is_one_sentence(arguments: tuple[str, ...], home: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tests.cli.scripted", "answer", *arguments],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    said = [line for line in done.stderr.splitlines() if line.startswith("flarechat:")]
    assert 1 == done.returncode
    assert ["flarechat: The output cannot be written: No space left on device."] == said
    assert "Exception" not in done.stderr
    assert not (home / "logs").exists()


@pytest.mark.parametrize(("closed", "shown"), [("<&-", True), (">&-", False), ("2>&-", True)])
def test_a_closed_stream_does_no_harm(closed: str, shown: bool) -> None:
    command = f"{sys.executable} -m tests.cli.scripted answer run --session trip Hi {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)

    assert 0 == done.returncode
    assert ("Hello there, you.\n" if shown else "") == done.stdout
    assert "Something unexpected" not in done.stderr
    assert ["Hi", "Hello there, you."] == [
        turn.text for turn in Session(store.find("trip")).tree.path()
    ]


def test_head_takes_one_line_and_the_engine_is_closed() -> None:
    command = (
        f'{sys.executable} -m tests.cli.scripted endless run --json Hi 2>"$ERR" | head -n 1; '
        "echo ${PIPESTATUS[0]}"
    )
    err = Path(os.environ["FLARECHAT_HOME"]).parent / "err"

    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**os.environ, "ERR": str(err)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )

    first, code = done.stdout.splitlines()
    assert first.startswith('{"event":"started"')
    assert "141" == code
    assert "closed" == err.read_text().splitlines()[-1]
    assert "" == done.stderr
