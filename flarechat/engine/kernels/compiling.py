"""Compilation of kernels in several processes, before anything is launched for the first time.

Owns the other processes. They only fill Triton's folder: whatever does not come of it is compiled
as ever, one after the other, where it is first launched.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import triton

from flarechat.engine.kernels.variants import Variant, Work, asked_for, settle_keys, stored

MOST = 16  # processes
SAMPLED = 16  # of so many works one tells whether the folder is cold
PATIENCE = 60.0  # seconds until the next is done
COMMAND = [sys.executable, "-m", "flarechat.engine.kernels.compiler"]

Told = Callable[[int, int], None]


def compile_ahead(works: Sequence[Work], told: Told, processes: int | None = None) -> bool:
    """Have compiled what works will launch, if Triton's folder lacks it; `told` hears (done,
    total). Works are called, some twice, with nothing launched. False: it is as it was."""
    processes = min(processes or _processors(), MOST)
    if processes < 2:
        return False
    try:
        settle_keys()
        if all(stored(variant) for variant in asked_for((*works[::SAMPLED], works[-1]))):
            return False
        with _compiler() as compiler:
            wanted = [variant for variant in asked_for(works) if not stored(variant)]
            _hand_over(compiler, wanted, processes)
            done = 0
            while done < len(wanted):
                told(done, len(wanted))
                done += _lines_from(compiler)
            told(done, done)
    except Exception:
        traceback.print_exc()
        return False
    return True


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


@contextmanager
def _compiler() -> Iterator[subprocess.Popen[bytes]]:
    """The process, which is gone in the end."""
    # It needs no GPU, and no threads of its libraries.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


def _hand_over(
    compiler: subprocess.Popen[bytes], wanted: Sequence[Variant], processes: int
) -> None:
    target = triton.runtime.driver.active.get_current_target()
    lines = [[[target.backend, target.arch, target.warp_size], processes]]
    lines += [[variant.module, variant.name, variant.data] for variant in wanted]
    assert compiler.stdin is not None
    with compiler.stdin as pipe:
        pipe.write("".join(json.dumps(line) + "\n" for line in lines).encode())


def _lines_from(compiler: subprocess.Popen[bytes]) -> int:
    """How many lines it said since it was last listened to, one at least."""
    assert compiler.stdout is not None
    ready, _, _ = select.select([compiler.stdout], [], [], PATIENCE)
    said = os.read(compiler.stdout.fileno(), 4096) if ready else b""
    if not said:
        raise RuntimeError("the process that compiles kernels says nothing more")
    return said.count(b"\n")
