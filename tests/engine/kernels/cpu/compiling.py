"""The C compiler of this machine, for tests that compile something themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from flarechat.engine.kernels.cpu import sources

POOL = [sources.FOLDER / f"{name}.c" for name in ("parallel", "attendance", "scratch")]
"""The pool's sources, which need no others."""


def compile_c(output: Path, *arguments: str | Path) -> None:
    """Compile as the package does, with more arguments; skip where there is no compiler."""
    command = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if command is None:
        pytest.skip("there is no C compiler")
    flags = ("-std=c11", "-ffp-contract=off", "-fPIC", "-pthread")
    subprocess.run([command, *flags, *arguments, "-lm", "-o", output], check=True, timeout=600)
