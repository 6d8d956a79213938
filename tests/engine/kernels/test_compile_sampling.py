"""The kernels of laws, draws and commit compile for a GPU, at real sizes, and spill nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_kernels_of_sampling_compile_for_a_gpu_and_spill_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.kernels.compile_sampling"],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line.split(",") for line in done.stdout.splitlines()]

    assert 0 == done.returncode, done.stderr
    assert 16 == len(lines)
    assert [] == [line for line in lines if int(line[-1])]
