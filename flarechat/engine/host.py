"""EngineHost: starts the engine process and is the only door to it from torch-free code.

Owns the child process, its pipes and the events that came and were not read. No call but `wait`
and `close` blocks; nothing here touches a widget.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import IO, Any

from flarechat import paths
from flarechat.errors import EngineError, StorageError
from flarechat.protocol import (
    Boot,
    Cancel,
    Command,
    ErrorInfo,
    Event,
    Failed,
    Request,
    Shutdown,
    Spell,
    Spelled,
    Submit,
    decode,
    encode,
)

LOG_NAME = "engine.log"
COMMAND = [sys.executable, "-m", "flarechat.engine.worker"]
_LOG_LIMIT = 1 << 20


class EngineHost:
    """Implements protocol.EngineDoor over a child process."""

    def __init__(self, boot: Boot) -> None:
        self.boot = boot
        self._events: deque[Event] = deque()
        self._spelled: dict[int, str] = {}
        self._arrived = threading.Condition()
        self._writing = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._closing = self._over = False

    @property
    def pid(self) -> int | None:
        """The child's process id, None before start."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Spawn the child and hand it the boot line; returns at once."""
        if self._process is not None:
            return
        with _open_log() as log:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env=_environment(),
                process_group=0 if os.name == "posix" else None,
            )
        self._send(self.boot)
        self._reader = threading.Thread(target=self._read, name="engine events", daemon=True)
        self._reader.start()

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self._send(Submit(request=request))

    def cancel(self, request: str) -> None:
        """Ask a request to stop within one round."""
        self._send(Cancel(request=request))

    def spell(self, tokens: tuple[int, ...]) -> None:
        """Ask what tokens say."""
        self._send(Spell(tokens=tokens))

    def spelled(self) -> dict[int, str]:
        """What tokens say, as far as it came since the last call."""
        with self._arrived:
            spelled, self._spelled = self._spelled, {}
        return spelled

    def drain(self) -> list[Event]:
        """Events since the last call."""
        with self._arrived:
            events = list(self._events)
            self._events.clear()
        return events

    def wait(self, timeout: float | None = None) -> list[Event]:
        """Block until an event is there, the engine is gone or `timeout` seconds passed."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._events or self._over, timeout)
        return self.drain()

    def close(self, patience: float = 2.0) -> None:
        """Ask the child to leave, then make it: `patience` seconds each step.

        A child that is still loading obeys no command, but it leaves when its stdin ends.
        """
        process = self._process
        if process is None or self._closing:
            return
        self._closing = True
        self._send(Shutdown())
        _close_quietly(process.stdin)
        for end in (_nothing, process.terminate, process.kill):
            end()
            try:
                process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                continue
        _close_quietly(process.stdout)
        if self._reader is not None:
            self._reader.join(patience)

    def _send(self, command: Command | Boot | Spell) -> None:
        """Write one line; a child that is gone is reported by its reader, not here."""
        process = self._process
        if process is None or process.stdin is None:
            raise EngineError("The engine was not started.", "Call start first.")
        try:
            with self._writing:
                process.stdin.write(encode(command) + "\n")
                process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def _read(self) -> None:
        """Reader thread: queue events until the pipe ends, then say how the child ended."""
        process = self._process
        assert process is not None and process.stdout is not None
        failed = False
        try:
            for line in _lines(process.stdout):
                event = decode(line)
                failed |= isinstance(event, Failed)
                self._queue(event)
            if not (failed or self._closing):
                self._queue(Failed(error=_obituary(process)))
        except Exception as error:
            told = EngineError(
                f"The model process said something unreadable: {error}", "Restart flarechat."
            )
            self._queue(Failed(error=ErrorInfo.of(told)))
        finally:
            with self._arrived:
                self._over = True
                self._arrived.notify_all()

    def _queue(self, event: Event | Spelled) -> None:
        with self._arrived:
            if isinstance(event, Spelled):
                self._spelled.update(zip(event.tokens, event.texts, strict=True))
                return
            self._events.append(event)
            self._arrived.notify_all()


def _lines(pipe: IO[str]) -> Iterator[str]:
    """The pipe's lines until it ends or is closed under the reader."""
    try:
        yield from pipe
    except ValueError:
        return


def _environment() -> dict[str, str]:
    """The child's environment: worker threads spin briefly, so that a busy machine stays usable."""
    return {"GOMP_SPINCOUNT": "2000", **os.environ, "PYTHONUNBUFFERED": "1"}


def _open_log() -> IO[bytes]:
    """The engine's log, begun anew once it has grown past a megabyte.

    A disk that takes no log must not refuse the chat: what would be logged is then lost.
    """
    try:
        path = paths.logs_dir() / LOG_NAME
        large = path.exists() and path.stat().st_size > _LOG_LIMIT
        log = path.open("wb" if large else "ab", buffering=0)
    except (OSError, StorageError):
        return open(os.devnull, "wb", buffering=0)
    with contextlib.suppress(OSError):
        log.write(f"-- engine start {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
    return log


def _obituary(process: subprocess.Popen[Any]) -> ErrorInfo:
    code = process.wait()
    named = {number.value: number.name for number in signal.Signals}
    how = f"signal {named.get(-code, -code)}" if code < 0 else f"exit status {code}"
    return ErrorInfo.of(
        EngineError(
            f"The model process ended unexpectedly ({how}).",
            f"Send the message again to restart it; its log is {paths.logs_dir() / LOG_NAME}.",
        )
    )


def _nothing() -> None:
    """First step of closing: the shutdown command was sent, wait for it."""


def _close_quietly(pipe: IO[str] | None) -> None:
    if pipe is not None:
        try:
            pipe.close()
        except OSError:
            return
