"""The kernels of a model's pass compile for a GPU, at the real models' sizes, and fit it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_kernels_of_a_pass_compile_for_a_gpu_and_spill_nothing() -> None:
    script = __file__.replace("test_compile_pass.py", "compile_pass.py")
    done = subprocess.run(
        [sys.executable, script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    lines = [line.split(",") for line in done.stdout.splitlines()]

    assert 0 == done.returncode, done.stderr
    assert 30 == len(lines)
    # Float32 is not multiplied by the tensor cores, and may.
    assert [] == [line for line in lines if int(line[-1]) and "fp32" not in line[1]]
