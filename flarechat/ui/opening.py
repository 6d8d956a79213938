"""An engine door that opens later: the screen is up before the model is found, pulled or loaded.

Owns the thread that opens the real door and what was asked of it meanwhile. Knows no widget. The
opener starts a process by explicit pipes, which is safe while the application owns the terminal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from flarechat.errors import EngineError, FlarechatError
from flarechat.protocol import (
    EngineDoor,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    Loading,
    Request,
)

Progress = Callable[[str, int, int], None]
Opener = Callable[[Progress], EngineDoor]


class LateEngine:
    """Implements protocol.EngineDoor before there is an engine.

    The opener returns an engine that is loading; `start` again closes it and opens another. What
    waited for an engine that failed to open, or for the one before, ends as cancelled.
    """

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._inner: EngineDoor | None = None
        self._events: list[Event] = []
        self._waiting: list[Request] = []
        self._opening = 0
        self._closed = self._ahead = False

    def open_ahead(self) -> None:
        """Begin to open before the screen asks: its first `start` finds the engine under way."""
        self.start()
        self._ahead = True

    def start(self) -> None:
        if self._ahead:
            self._ahead = False
            return
        with self._lock:
            old, self._inner = self._inner, None
            if self._opening:
                self._drop_waiting()
            self._opening += 1
            turn = self._opening
            self._closed = False
        if old is not None:
            old.close()
        threading.Thread(target=self._open, args=(turn,), name="open-engine", daemon=True).start()

    def _open(self, turn: int) -> None:
        try:
            inner = self._opener(self._progress)
        except FlarechatError as error:
            self._failed(turn, error)
            return
        except Exception as error:
            self._failed(turn, EngineError(f"The model process could not be started: {error}."))
            return
        with self._lock:
            current = turn == self._opening and not self._closed
            if current:
                self._inner = inner
                waiting, self._waiting = self._waiting, []
                for request in waiting:
                    inner.submit(request)
        if not current:
            inner.close()

    def _failed(self, turn: int, error: FlarechatError) -> None:
        with self._lock:
            if turn == self._opening:
                self._events.append(Failed(error=ErrorInfo.of(error)))
                self._drop_waiting()

    def _drop_waiting(self) -> None:
        """End the requests that wait for an engine that will not come; the lock is held."""
        waiting, self._waiting = self._waiting, []
        self._events += [Finished.unplayed(request.id, "cancelled") for request in waiting]

    def _progress(self, stage: str, done: int, total: int) -> None:
        self._post(Loading(stage=stage, done=done, total=total))

    def _post(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    def submit(self, request: Request) -> None:
        with self._lock:
            if self._inner is None:
                self._waiting.append(request)
            else:
                self._inner.submit(request)

    def cancel(self, request: str) -> None:
        with self._lock:
            if any(waiting.id == request for waiting in self._waiting):
                self._waiting = [waiting for waiting in self._waiting if waiting.id != request]
                self._events.append(Finished.unplayed(request, "cancelled"))
            elif self._inner is not None:
                self._inner.cancel(request)

    def spell(self, tokens: tuple[int, ...]) -> None:
        with self._lock:
            if self._inner is not None:
                self._inner.spell(tokens)

    def spelled(self) -> dict[int, str]:
        with self._lock:
            return self._inner.spelled() if self._inner else {}

    def drain(self) -> list[Event]:
        with self._lock:
            events, self._events = self._events, []
            return events + (self._inner.drain() if self._inner else [])

    def wait(self, timeout: float | None = None) -> list[Event]:
        with self._lock:
            inner = self._inner
        if inner is not None:
            return self.drain() or inner.wait(timeout)
        threading.Event().wait(timeout)
        return self.drain()

    def close(self) -> None:
        with self._lock:
            self._closed, inner, self._inner = True, self._inner, None
        if inner is not None:
            inner.close()
