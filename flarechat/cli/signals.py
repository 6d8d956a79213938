"""What an interrupt does to `flarechat run`. Owns the handlers while it is entered.

At first an interrupt is raised where it falls; once `quietly` was called it is only noted, so
that the turn can be stopped in order, and a second one is raised.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Interrupted(BaseException):
    """The user or the system wants the process to end. Not an error: nothing may swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Interrupts:
    """Turns signals into `caught` or into Interrupted."""

    def __init__(self) -> None:
        self.caught: int | None = None
        self._raises = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            before = signal.getsignal(number)
            # Under nohup a hang-up is ignored, and stays so. A shell's background job ignores
            # SIGINT too, but whoever sends one to it by hand means it.
            if before != signal.SIG_IGN or number == signal.SIGINT:
                self._before[number] = before
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def quietly(self) -> None:
        """From now on only note the first signal."""
        self._raises = False

    @property
    def exit_code(self) -> int:
        """The process's exit code for the signal caught; 0 without one."""
        return 128 + self.caught if self.caught else 0

    def check(self) -> None:
        """Raise what was noted."""
        if self.caught:
            raise Interrupted(self.caught)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        again = self.caught is not None
        self.caught = number
        if self._raises or again:
            raise Interrupted(number)
