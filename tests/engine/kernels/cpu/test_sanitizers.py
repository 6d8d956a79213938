"""The kernels' tests once more over a library that watches addresses and undefined behaviour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flarechat.engine.kernels.cpu import sources
from tests.engine.kernels.cpu.compiling import POOL, compile_c

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
WATCHED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def runtime() -> str:
    """The sanitizer's library, which must be there before Python's first allocation, and that of
    C++, whose exceptions it must know before torch throws one."""
    paths = []
    for name in ("libasan.so", "libstdc++.so"):
        asked = ["gcc", f"-print-file-name={name}"]
        try:
            found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            found = ""
        if not Path(found).is_absolute():
            pytest.skip(f"gcc's {name} is not installed")
        paths.append(found)
    return " ".join(paths)


@pytest.mark.sanitizers
def test_the_kernels_tests_run_clean_under_sanitizers(tmp_path: Path) -> None:
    preloaded = runtime()
    parts = sorted(sources.FOLDER.glob("*.c"))
    compile_c(tmp_path / sources.LIBRARY, "-O1", "-g", "-shared", *WATCHED, *parts)
    environment = os.environ | {
        "LD_PRELOAD": preloaded,
        # The interpreter itself leaves memory behind at exit.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    tests = [HERE / f"test_{name}.py" for name in ("linear", "blocks", "attention")]

    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.kernels.cpu.sanitized", tmp_path, *tests],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.sanitizers
def test_the_pool_runs_clean_under_sanitizers(tmp_path: Path) -> None:
    parts = [HERE / "pool_stress.c", *POOL]
    for watched in (WATCHED, ("-fsanitize=thread",)):
        built = tmp_path / watched[0][-4:]
        compile_c(built, "-O1", "-g", *watched, f"-I{sources.FOLDER}", *parts)
        environment = os.environ | {"TSAN_OPTIONS": "die_after_fork=0 halt_on_error=1"}

        done = subprocess.run(
            [built, "2000"], env=environment, capture_output=True, text=True, timeout=300
        )

        assert (0, "ok\n") == (done.returncode, done.stdout), done.stderr[-4000:]
