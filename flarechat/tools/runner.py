"""Runs one program: its input on stdin, its output within a limit, its end within a time.

Owns the process, its group and its environment. No shell is involved. Whatever the program does,
`run` returns soon after the time is over, and nothing of its process group is left.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import IO

from flarechat.errors import reason_of

ENVIRONMENT = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
# Of what is written beyond the limit so much is read and dropped, then the program is ended.
_FLOOD = 64 << 20
_STDERR = 4096
_POLL_S = 0.02
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a program did. `end` is exited, timeout, stopped, flooded or unstarted; `status` is its
    exit status, negative for a signal, None where it did not end by itself. `output` has the
    beginning of stdout, `errors` the end of stderr; `cut` says that there was more output.
    """

    end: str
    status: int | None = None
    output: bytes = b""
    errors: bytes = b""
    cut: bool = False


def run(
    command: Sequence[str], data: bytes, *, timeout: float, limit: int, stop: Event | None = None
) -> Ran:
    """Run a program with `data` on its stdin; at most `timeout` seconds, `limit` bytes of output.

    Where it cannot be started `errors` says why. Setting `stop` ends it.
    """
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return Ran(end="unstarted", errors=reason_of(error).encode())
    with process:
        pipes = _Pipes(process, data, limit)
        try:
            end = _watch(process, pipes, time.monotonic() + timeout, stop or Event())
        finally:
            # Before its leader is waited for: until then no other process can have its number.
            _kill(process)
            pipes.close()
        status = process.wait()
    return Ran(
        end=end,
        status=status if end == "exited" else None,
        output=bytes(pipes.output),
        errors=bytes(pipes.errors),
        cut=pipes.dropped > 0,
    )


def _watch(process: subprocess.Popen[bytes], pipes: _Pipes, deadline: float, stop: Event) -> str:
    """Feed and read until the program is over, or must be; says which."""
    while True:
        if stop.is_set():
            return "stopped"
        ended = _ended(process)
        left = deadline - time.monotonic()
        pipes.turn(0 if ended else max(0.0, min(_POLL_S, left)))
        # What a child that it left behind may still write is not waited for.
        if ended:
            while pipes.turn(0) and pipes.dropped <= _FLOOD and time.monotonic() < deadline:
                pass
            return "exited"
        if pipes.dropped > _FLOOD:
            return "flooded"
        if left <= 0:
            return "timeout"


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended, without waiting for it, so that its number stays its own."""
    if hasattr(os, "waitid"):
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process.pid, options) is not None
    return process.poll() is not None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class _Pipes:
    """The three pipes of a program, none of which is ever waited for alone."""

    def __init__(self, process: subprocess.Popen[bytes], data: bytes, limit: int) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.output, self.errors, self.dropped = bytearray(), bytearray(), 0
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._data, self._limit = memoryview(data), limit
        self._selector = selectors.DefaultSelector()
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._selector.register(self._stdin, selectors.EVENT_WRITE)
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr, selectors.EVENT_READ)

    def turn(self, seconds: float) -> bool:
        """Wait so long for something to do and do it once; whether anything was read."""
        if not self._selector.get_map():
            time.sleep(seconds)
            return False
        read = False
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._stdin:
                self._write()
            else:
                read |= self._read(self._stdout if key.fileobj is self._stdout else self._stderr)
        return read

    def _write(self) -> None:
        try:
            written = os.write(self._stdin.fileno(), self._data[:_CHUNK]) if self._data else 0
        except BlockingIOError:
            return
        except OSError:
            self._data = self._data[:0]
        else:
            self._data = self._data[written:]
        if not self._data:
            self._drop(self._stdin)

    def _read(self, pipe: IO[bytes]) -> bool:
        try:
            data = os.read(pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._drop(pipe)
        elif pipe is self._stdout:
            kept = data[: self._limit - len(self.output)]
            self.output += kept
            self.dropped += len(data) - len(kept)
        else:
            self.errors = (self.errors + data)[-_STDERR:]
        return bool(data)

    def _drop(self, pipe: IO[bytes]) -> None:
        self._selector.unregister(pipe)
        with contextlib.suppress(OSError):
            pipe.close()

    def close(self) -> None:
        """Close what is open."""
        self._selector.close()
        for pipe in (self._stdin, self._stdout, self._stderr):
            with contextlib.suppress(OSError):
                pipe.close()
