"""Has a random checkpoint written by a process of its own, so that no torch is imported here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flarechat.errors import EngineError
from flarechat.protocol import Failed, Loading, decode

COMMAND = [sys.executable, "-m", "flarechat.engine.make_random"]


def make_random(
    folder: Path, progress: Callable[[str, int, int], None], **wanted: str | int
) -> Path:
    """Write the checkpoint `wanted` (family, layers, geometry, format, mtp, seed) into a folder
    that is new or empty; returns it. `progress` hears (stage, done, total) in bytes.
    """
    folder = folder.expanduser().absolute()
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    failed: Failed | None = None
    try:
        # A process that could not start reads nothing; its status says so below.
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(wanted | {"folder": str(folder)}) + "\n")
        with process.stdout:
            for line in process.stdout:
                event = decode(line)
                if isinstance(event, Loading):
                    progress(event.stage, event.done, event.total)
                elif isinstance(event, Failed):
                    failed = event
            code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if failed is not None:
        raise failed.error.exception()
    if code:
        raise EngineError(
            f"The process that writes the model ended with status {code}.",
            "`flarechat doctor` shows memory, free disk and versions.",
        )
    return folder
