"""Keeps the terminal usable whatever ends the chat.

Owns the reset sequence and a small parent process: the chat runs in a child, and when that child
dies without cleaning up (a native crash, a kill), the parent restores the terminal. Knows no
widget and no engine.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from flarechat.errors import EXIT_INTERRUPTED

Handlers = dict[signal.Signals, Any]
Lines = list[Any]  # what termios says of a terminal's lines
ENDINGS = (signal.SIGTERM, signal.SIGHUP)

RESET = (
    "\x1b[?1049l"  # leave the alternate screen
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # mouse off
    "\x1b[?2004l\x1b[?1004l\x1b[?2026l\x1b[?2048l"  # paste, focus, sync, resize reports off
    "\x1b[<u\x1b[?25h\x1b[0m\r\n"  # keyboard protocol back, cursor on, colours off
)
PATIENCE_S = 5
KILLED = (
    "flarechat: the chat ended without warning ({}).\n"
    "           What was written is saved; flarechat --continue goes on with it."
)


def interactive() -> bool:
    """Whether there is a terminal to draw on and to read from."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def supervise(body: Callable[[], int]) -> int:
    """Run `body` in a child process and return its exit code; restore the terminal if it died.

    SIGTERM and SIGHUP are handed on to the child, which saves and leaves; one that does not leave
    in time is killed.
    """
    before = termios.tcgetattr(sys.stdin.fileno())
    sys.stdout.flush()
    sys.stderr.flush()
    children: list[int] = []
    previous = _guard(children)
    # A signal that comes meanwhile waits until both processes know what to do with it.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    child = os.fork()
    if child == 0:
        _unguard(previous)
        _live(body, before)
    children.append(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
    _, status = os.waitpid(child, 0)
    _unguard(previous)
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    restore(before)
    print(KILLED.format(signal.Signals(number).name), file=sys.stderr)
    return 128 + number


def restore(before: Lines) -> None:
    """Write the reset sequence and put the line settings back."""
    try:
        sys.stdout.write(RESET)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
    except (OSError, termios.error):
        return


def _live(body: Callable[[], int], before: Lines) -> NoReturn:
    """Run `body` as the whole life of this process; a model's pull ends with it."""
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        threading.Thread(target=_end_when_hung_up, daemon=True).start()
        code = body()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except KeyboardInterrupt as interrupt:  # a signal before the application took them over
        restore(before)
        code = getattr(interrupt, "exit_code", EXIT_INTERRUPTED)
    finally:
        from flarechat.models import pull  # by now whoever pulls has imported it

        pull.stop_all()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_when_hung_up() -> None:
    """End this process as SIGHUP would once its terminal is gone.

    The kernel tells only the processes a terminal controls; others, or a chat whose parent was
    killed, would read nothing for ever.
    """
    terminal = select.poll()
    terminal.register(sys.stdin.fileno(), 0)
    terminal.poll()
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(PATIENCE_S)
    os._exit(128 + signal.SIGHUP)


def _guard(children: list[int]) -> Handlers:
    """Hand ending signals on to the child; kill it when it does not leave. Returns the former."""

    def hand_on(number: int, frame: FrameType | None) -> None:
        signal.alarm(PATIENCE_S)
        for child in children:
            os.kill(child, number)

    def kill(number: int, frame: FrameType | None) -> None:
        for child in children:
            os.kill(child, signal.SIGKILL)

    return {
        signal.SIGTERM: signal.signal(signal.SIGTERM, hand_on),
        signal.SIGHUP: signal.signal(signal.SIGHUP, hand_on),
        signal.SIGALRM: signal.signal(signal.SIGALRM, kill),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
    }


def _unguard(previous: Handlers) -> None:
    signal.alarm(0)
    for number, handler in previous.items():
        signal.signal(number, handler)
