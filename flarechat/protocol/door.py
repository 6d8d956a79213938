"""The engine's door: the few calls through which everything above reaches an engine."""

from __future__ import annotations

from typing import Protocol

from flarechat.protocol.events import Event
from flarechat.protocol.requests import Request


class EngineDoor(Protocol):
    """What the application may ask of an engine, real or scripted. No call blocks but `wait`."""

    def start(self) -> None:
        """Begin loading; events tell how it goes."""

    def submit(self, request: Request) -> None:
        """Queue a request."""

    def cancel(self, request: str) -> None:
        """Ask a request to stop within one round."""

    def spell(self, tokens: tuple[int, ...]) -> None:
        """Ask what tokens say; `spelled` has it some time later, while answers go on."""

    def spelled(self) -> dict[int, str]:
        """What tokens say, of those whose texts came since the last call; see Spelled."""

    def drain(self) -> list[Event]:
        """Return the events that came since the last call."""

    def wait(self, timeout: float | None = None) -> list[Event]:
        """Block until at least one event is there or `timeout` seconds passed; drain."""

    def close(self) -> None:
        """End the engine; safe to call twice."""
