"""The C library, where a compiler has made one of the sources as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flarechat.engine.kernels import cpu
from flarechat.engine.kernels.cpu.library import Library


@pytest.fixture
def kernels() -> Iterator[Library]:
    """The library with one thread; threads and instruction set are as before afterwards."""
    library = cpu.library()
    if library is None and cpu.reason().startswith("not built"):
        pytest.skip(f"the CPU kernels are {cpu.reason()}")
    assert library is not None, f"{cpu.reason()}: run `python setup.py build_ext --inplace`"
    threads, instructions = library.most_threads, library.instructions
    library.set_threads(1)
    yield library
    library.set_threads(threads)
    library.use(instructions)
