"""The pool: each chunk once, whatever its threads do, and no work while there is none."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from flarechat.engine.kernels.cpu import sources
from flarechat.engine.kernels.cpu.library import Library
from tests.engine.kernels.cpu.compiling import POOL, compile_c

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


def straggle(kernels: Library, seconds: float) -> list[int]:
    """Two chunks that wait for each other, so that each has its thread, and that end at the same
    time but for the one that is not the caller's; which ended before the call did."""
    together, caller = threading.Barrier(2, timeout=30), threading.get_ident()
    ended: list[int] = []

    def work(_: int | None, chunk: int) -> None:
        together.wait()
        if threading.get_ident() != caller:
            time.sleep(seconds)
        ended.append(chunk)

    kernels.handle.fc_parallel(WORK(work), None, 2)
    return ended.copy()


@pytest.fixture
def pair(kernels: Library) -> Library:
    """The library with two threads."""
    kernels.set_threads(2)
    if kernels.most_threads < 2:
        pytest.skip("this process may use one core")
    return kernels


def test_a_call_returns_when_its_last_chunk_is_done(pair: Library) -> None:
    for seconds in (0.0, 0.02, 0.0):
        pair.set_threads(2)
        assert {0, 1} == set(straggle(pair, seconds))


def test_a_thread_that_keeps_others_waiting_is_left_out_for_a_while(pair: Library) -> None:
    """For forty milliseconds, within which this process may not be run itself: hence the turns."""
    idle = WORK(lambda _, chunk: None)
    seen = set()
    for _ in range(20):
        pair.set_threads(2)
        straggle(pair, 0.02)
        pair.handle.fc_parallel(idle, None, 8)
        seen.add(pair.threads())
    assert 1 in seen

    end = time.monotonic() + 5
    while pair.threads() < 2 and time.monotonic() < end:
        pair.handle.fc_parallel(idle, None, 8)
        time.sleep(0.001)
    if pair.threads() < 2 and os.getloadavg()[0] > 1.5:
        pytest.skip("others keep the cores busy, so that the thread rightly stays out")
    assert 2 == pair.threads()


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
    parts = [STRESS, *POOL]
    compile_c(built, "-O2", f"-I{sources.FOLDER}", *parts)

    done = subprocess.run([built, "100000"], capture_output=True, text=True, timeout=120)

    assert (0, "ok\n") == (done.returncode, done.stdout)
