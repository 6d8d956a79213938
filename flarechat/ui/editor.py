"""Edits a text in the user's own editor. Owns the temporary file; the caller owns the text."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from textual.app import App, SuspendNotSupported

from flarechat.errors import UsageError


def edit(app: App[None], text: str) -> str:
    """The text as $VISUAL or $EDITOR left it; the terminal is lent to the editor meanwhile."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="flarechat-") as folder:
        path = Path(folder) / "prompt.md"
        path.write_text(text, "utf-8")
        try:
            with app.suspend():
                done = subprocess.run([*shlex.split(command), str(path)])
        except SuspendNotSupported:
            raise UsageError(
                "This terminal cannot be lent to an editor.", "Write in the prompt instead."
            ) from None
        except (OSError, ValueError) as error:
            raise UsageError(
                f"The editor {command!r} does not start: {error}.", "Set EDITOR to another."
            ) from None
        if done.returncode != 0:
            raise UsageError(
                f"The editor {command!r} left with status {done.returncode}.",
                "The prompt was left as it was.",
            )
        return path.read_text("utf-8").rstrip("\n")
