"""The pool: each chunk once, whatever its threads do, and no work while there is none."""

from __future__ import annotations

import ctypes
import subprocess
import threading
import time
from pathlib import Path

import pytest

from flarechat.engine.kernels.cpu import sources
from flarechat.engine.kernels.cpu.library import Library
from tests.engine.kernels.cpu.compiling import compile_c

WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)
STRESS = Path(__file__).with_name("pool_stress.c")


@pytest.mark.parametrize("threads", (1, 2, 3))
def test_chunks_run_once_each(kernels: Library, threads: int) -> None:
    kernels.set_threads(threads)
    for chunks in (0, 1, 2, 3, 7, 100, 1000):
        ran: list[int] = []
        kernels.handle.fc_parallel(WORK(lambda _, chunk, ran=ran: ran.append(chunk)), None, chunks)

        assert sorted(ran) == list(range(chunks))
        assert 1 <= kernels.threads() <= max(1, min(threads, chunks))


def test_two_threads_work_together(kernels: Library) -> None:
    """Each of two chunks waits for the other: one thread alone would not come through."""
    kernels.set_threads(2)
    if kernels.most_threads < 2:
        pytest.skip("this process may use one core")
    together = threading.Barrier(2, timeout=30)
    work = WORK(lambda _, chunk: together.wait() and None)

    kernels.handle.fc_parallel(work, None, 2)

    assert not together.broken


def test_threads_sleep_when_there_is_nothing_to_do(kernels: Library) -> None:
    kernels.set_threads(2)
    kernels.handle.fc_parallel(WORK(lambda _, chunk: None), None, 8)
    time.sleep(0.05)

    before = time.process_time()
    time.sleep(0.3)

    assert time.process_time() - before < 0.02


def test_scratch_grows_and_keeps_what_is_in_it(kernels: Library) -> None:
    scratch = kernels.handle.fc_scratch
    scratch.restype, scratch.argtypes = ctypes.c_void_p, (ctypes.c_int32, ctypes.c_size_t)
    purposes = range(20, 22)
    for size in (1, 100, 5000, 100_000):
        places = [scratch(purpose, size) for purpose in purposes]
        for purpose, place in zip(purposes, places, strict=True):
            assert place % 64 == 0
            ctypes.memset(place, purpose, size)
        for purpose, place in zip(purposes, places, strict=True):
            assert ctypes.string_at(place, size) == bytes([purpose]) * size


def test_nothing_is_lost_under_stress_nor_after_a_fork(tmp_path: Path) -> None:
    built = tmp_path / "stress"
    parts = [STRESS, sources.FOLDER / "parallel.c", sources.FOLDER / "scratch.c"]
    compile_c(built, "-O2", f"-I{sources.FOLDER}", *parts)

    done = subprocess.run([built, "20000"], capture_output=True, text=True, timeout=120)

    assert (0, "ok\n") == (done.returncode, done.stdout)
