"""The engine process: commands come in on stdin, events leave on the stdout it was started with.

Owns the process: its channel, its signals and its loop. Everything else that prints goes to
stderr, which the host keeps in a log file. Run as `python -m flarechat.engine.worker`.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

from flarechat.engine import late, leftovers
from flarechat.errors import EngineError, FlarechatError
from flarechat.protocol import (
    Boot,
    Cancel,
    ErrorInfo,
    Event,
    Failed,
    Shutdown,
    Spell,
    Spelled,
    Submit,
    decode,
    encode,
)

_NVIDIA = Path("/dev/nvidiactl")
_THREADS = 2  # The loop's and the one that reads commands.
# Seconds for what is still to be written: the host waits two, the step under way included.
_WRITING_S, _LEAVING_S = 1.5, 1.9


class Channel:
    """The process's two ends: `emit` writes an event line, `commands` fills from stdin."""

    def __init__(self, incoming: TextIO, outgoing: TextIO) -> None:
        self.commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.serving = False
        self._incoming, self._outgoing = incoming, outgoing

    def boot(self) -> Boot:
        """The first line says what to load."""
        boot = decode(self._incoming.readline())
        assert isinstance(boot, Boot), f"the first command must be a Boot, got {type(boot)}"
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        return boot

    def _read(self) -> None:
        """Queue commands; when the host is gone, so is this process, whatever it is doing. One that
        was told to leave, and can hear it, has time to do so itself."""
        told: Any = None
        try:
            for line in self._incoming:
                told = decode(line)
                self.commands.put(told)
        except Exception:
            # A line cut short is the host's last; nothing after it can be trusted either.
            traceback.print_exc()
        if isinstance(told, Shutdown) and self.serving:
            time.sleep(_LEAVING_S)
        os._exit(0)

    def emit(self, event: Event | Spelled) -> None:
        """Write one event; a host that went away ends the process quietly."""
        try:
            self._outgoing.write(encode(event) + "\n")
            self._outgoing.flush()
        except BrokenPipeError:
            os._exit(0)


def serve(channel: Channel) -> None:
    """Boot, then obey commands between the engine's steps until told to leave."""
    boot = channel.boot()
    # What loading makes stays; looking for garbage in it only slows the start.
    gc.disable()
    if not _NVIDIA.exists():  # What compiles for a GPU may ask torch for shapes.
        late.leave_out()
    from flarechat.engine.boot import boot_engine

    engine = boot_engine(boot, channel.emit)
    if threading.active_count() <= _THREADS:  # Nobody is loading a library meanwhile.
        leftovers.idle_code()
    gc.freeze()
    gc.enable()
    channel.serving = True
    engine.begin()
    while True:
        while not engine.busy or not channel.commands.empty():
            if channel.commands.empty():
                leftovers.freed_memory()
            command = channel.commands.get()
            if isinstance(command, Shutdown):
                engine.close(_WRITING_S)
                return
            if isinstance(command, Submit):
                engine.submit(command.request)
            elif isinstance(command, Cancel):
                engine.cancel(command.request)
            elif isinstance(command, Spell):
                texts = tuple(map(engine.language.tokenizer.spelled, command.tokens))
                channel.emit(Spelled(tokens=command.tokens, texts=texts))
        engine.step()


def main() -> int:
    """Serve on the inherited pipes. Exit 0 after a shutdown, 1 after a failure it reported."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outgoing = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    channel = Channel(sys.stdin, outgoing)
    try:
        serve(channel)
    except FlarechatError as error:
        channel.emit(Failed(error=ErrorInfo.of(error)))
        return 1
    except Exception as error:
        traceback.print_exc()
        told = EngineError(
            f"The model process failed: {type(error).__name__}: {error}",
            "The details are in the engine log; `flarechat doctor` says where logs are.",
        )
        channel.emit(Failed(error=ErrorInfo.of(told)))
        return 1
    return 0


if __name__ == "__main__":
    # Threads may be in the middle of something; nobody waits for what they would tidy up.
    os._exit(main())
