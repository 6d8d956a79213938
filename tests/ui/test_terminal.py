"""Whatever ends the chat, the terminal is usable afterwards, seen through a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.__main__ import Terminated
from flarechat.chat import Conversation
from flarechat.config import Settings
from flarechat.models import pull
from flarechat.ui import terminal
from flarechat.ui.app import FlarechatApp, live
from tests.fakes import ScriptedEngine

CHAT = """
import sys
from flarechat.config import Settings
from flarechat.ui import terminal
from flarechat.ui.app import live
from tests.fakes import ScriptedEngine, words

class Breaking(ScriptedEngine):
    def submit(self, request):
        if request.messages[-1].content == "break":
            raise ValueError("planted")
        super().submit(request)

engine = Breaking([words("word " * 5000)])
sys.exit(terminal.supervise(lambda: live(Settings(), engine, resume=None, continue_last=False)))
"""
OFF = ("\x1b[?1049l", "\x1b[?1000l", "\x1b[?1003l", "\x1b[?2004l", "\x1b[?25h")
PATIENCE_S = 30


class Window:
    """A chat in a pseudo-terminal."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (24, 80))
        self.before = termios.tcgetattr(self.slave)
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHAT],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            cwd=root,
            env=os.environ | {"TERM": "xterm-256color", "PYTHONPATH": str(root)},
            start_new_session=True,
        )
        self.output = ""

    def read_until(self, text: str) -> None:
        """Read what is drawn until `text` was."""
        end = time.monotonic() + PATIENCE_S
        while text not in self.output:
            assert time.monotonic() < end, f"{text!r} never came: {self.output[-500:]!r}"
            self._read()

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> int:
        """Wait for the end and read the rest."""
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, "the chat does not end"
            self._read()
        self._read()
        return self.process.returncode

    def child(self) -> int:
        """The process that draws, below the one that watches."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def _read(self) -> None:
        while select.select([self.master], [], [], 0.1)[0]:
            self.output += os.read(self.master, 65536).decode("utf-8", "replace")

    def hang_up(self) -> None:
        """Take the terminal away, as a closed window does."""
        for end in (self.master, self.slave):
            os.close(end)
        self.master = self.slave = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.master >= 0:
            self.hang_up()


@pytest.fixture
def window() -> Iterator[Window]:
    opened = Window()
    yield opened
    opened.close()


def assert_usable(window: Window) -> None:
    """Every mode is off again after it was last on, and lines are edited by the terminal."""
    for code in OFF:
        assert code in window.output, f"{code!r} was not written"
        switched_on = code.replace("l", "h") if code.endswith("l") else "\x1b[?25l"
        assert window.output.rfind(code) > window.output.rfind(switched_on)
    flags = termios.tcgetattr(window.slave)[3]
    assert flags & (termios.ICANON | termios.ECHO) == window.before[3] & (
        termios.ICANON | termios.ECHO
    )


def wait_gone(pid: int) -> None:
    """Wait until a process is no more, or only a record of one."""
    end = time.monotonic() + PATIENCE_S
    status = Path(f"/proc/{pid}/stat")
    while status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < end, "the chat does not end"
        time.sleep(0.05)


@pytest.mark.parametrize("parent_killed", [False, True])
def test_a_terminal_that_vanishes_ends_the_chat_and_saves_the_partial_turn(
    window: Window, parent_killed: bool
) -> None:
    window.read_until("IDLE")
    window.type("hi\r")
    window.read_until("GEN")
    drawing = window.child()
    if parent_killed:
        window.process.kill()
    window.hang_up()
    window.process.wait(PATIENCE_S)
    wait_gone(drawing)
    resumed = Conversation.resume(ScriptedEngine(), Settings(), "hi")
    turns = resumed.turns
    resumed.close()

    assert ["hi", "partial"] == [turns[0].text, turns[1].status]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_saves_the_partial_turn_and_restores_the_terminal(
    window: Window, number: signal.Signals
) -> None:
    window.read_until("IDLE")
    window.type("hi\r")
    window.read_until("GEN")
    window.process.send_signal(number)
    status = window.end()
    resumed = Conversation.resume(ScriptedEngine(), Settings(), "hi")
    turns = resumed.turns
    resumed.close()

    assert 128 + number == status
    assert_usable(window)
    assert ["hi", "partial"] == [turns[0].text, turns[1].status]
    assert turns[1].text.startswith("word")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_chat_that_dies_leaves_a_usable_terminal_and_one_sentence(
    window: Window, number: signal.Signals
) -> None:
    window.read_until("IDLE")
    os.kill(window.child(), number)
    status = window.end()

    assert 128 + number == status
    assert_usable(window)
    assert f"flarechat: the chat ended without warning ({number.name})." in window.output


def test_quitting_by_key_is_a_clean_exit(window: Window) -> None:
    window.read_until("IDLE")
    window.type("\x11")

    assert 0 == window.end()
    assert_usable(window)


def test_a_fault_in_the_interface_is_one_sentence_and_a_report(window: Window) -> None:
    window.read_until("IDLE")
    window.type("break\r")
    status = window.end()
    reports = list(paths.logs_dir().glob("crash-*.txt"))

    assert 1 == status
    assert_usable(window)
    assert "flarechat: The chat failed: ValueError: planted." in window.output
    assert "Traceback" not in window.output
    assert ["Traceback (most recent call last):"] == [
        report.read_text("utf-8").splitlines()[0] for report in reports
    ]


@pytest.fixture
def lived(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], list[object]]:
    """Live a body to its end in this process; returns what came of it, in order."""

    def live_through(body: Callable[[], int]) -> list[object]:
        seen: list[object] = []
        monkeypatch.setattr(terminal, "_end_when_hung_up", lambda: None)
        monkeypatch.setattr(terminal, "restore", lambda before: seen.append("restored"))
        monkeypatch.setattr(pull, "stop_all", lambda: seen.append("no pip"))
        monkeypatch.setattr(os, "_exit", seen.append)
        terminal._live(body, [])
        return seen

    return live_through


def test_a_chat_that_ends_takes_a_pull_with_it(
    lived: Callable[[Callable[[], int]], list[object]],
) -> None:
    assert ["no pip", 0] == lived(lambda: 0)


@pytest.mark.parametrize(
    ("interrupt", "code"), [(Terminated(signal.SIGTERM), 143), (KeyboardInterrupt(), 130)]
)
def test_a_signal_before_the_application_took_them_over_is_told_by_the_exit_code(
    lived: Callable[[Callable[[], int]], list[object]], interrupt: KeyboardInterrupt, code: int
) -> None:
    def body() -> int:
        raise interrupt

    assert ["restored", "no pip", code] == lived(body)


def test_a_chat_that_the_disk_refused_until_the_end_is_admitted_after_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    (home / "data").write_text("a file where the folder should be")

    def chat(app: FlarechatApp) -> None:
        app.bridge.send("hi")

    monkeypatch.setattr(FlarechatApp, "run", chat)
    status = live(Settings(), ScriptedEngine(), resume=None, continue_last=False)

    assert 1 == status
    assert "flarechat: This chat was closed unsaved: " in capsys.readouterr().err
