"""The process that compiles kernels into Triton's folder: what to compile in, a line out for each.

Imports the kernels while its parent finds out what they are asked for, then forks, so it must never
touch a device. What fails here is left to the parent, which will say why.

The first line of its input is the GPU's [backend, architecture, warp size] and how many processes
may compile; each line after that is a variant's [module, name, data], until the input ends.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from contextlib import suppress
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from flarechat.engine.kernels.variants import Variant, settle_keys


class Absent:
    """In place of Triton's driver: a GPU of some kind, known by its name only."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        """What to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Its number."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Where nothing is launched."""
        return 0


def compile_one(variant: Variant) -> bool:
    """Compile a variant, or find it compiled; whether that went well."""
    try:
        made = variant.kernel.preload(variant.data)
    except Exception:
        return False
    # Some versions of Triton have a C compiler make the call of every signature.
    with suppress(Exception):
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(made.src, made.metadata)
    return True


def main() -> None:
    """Compile what is asked for on the standard input."""
    settle_keys()
    lines: list[Any] = [json.loads(line) for line in sys.stdin]
    (target, processes), wanted = lines[0], [Variant(*line) for line in lines[1:]]
    triton.runtime.driver.set_active(Absent(GPUTarget(*target)))
    forked = multiprocessing.get_context("fork")
    with forked.Pool(max(1, min(processes, len(wanted)))) as pool:
        for went_well in pool.imap_unordered(compile_one, wanted):
            print(int(went_well), flush=True)


if __name__ == "__main__":
    main()
