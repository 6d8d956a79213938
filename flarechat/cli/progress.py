"""One progress bar on stderr, for pulling, converting, loading and reading the prompt.

Owns the line it draws; draws nothing, and imports nothing, when stderr is no terminal.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

_WORDS = {
    "download": "Downloading",
    "prefill": "Reading the prompt",
    "compiling": "Compiling kernels",
    "kernels": "Trying kernels",
    "graphs": "Capturing rounds",
}


class Bar:
    """A bar that appears with the first `show` and goes without a trace."""

    def __init__(self, enabled: bool | None = None) -> None:
        self._enabled = sys.stderr.isatty() if enabled is None else enabled
        self._progress: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, stage: str, done: int, total: int) -> None:
        """Draw `done` of `total`; a total of 0 means that nobody knows how much it is."""
        if not self._enabled:
            return
        if self._progress is None:
            self._progress = _progress()
            self._task = self._progress.add_task("", total=None)
            self._progress.start()
        words = _WORDS.get(stage, stage.replace("_", " ").capitalize())
        self._progress.update(self._task, description=words, completed=done, total=total or None)

    def clear(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
