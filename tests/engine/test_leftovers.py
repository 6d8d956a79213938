"""What is given back to the operating system, and that nothing goes that exists nowhere else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from flarechat.engine import leftovers

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="others have no /proc")
PLACE = (0x7F0000004000, 0x7F0000005000)
LIBRARY = "/usr/lib/libtorch_cpu.so"


def mapping(mode: str, path: str, anonymous: int = 0, swap: int = 0) -> list[str]:
    start, end = PLACE
    return [
        f"{start:x}-{end:x} {mode} 00001000 fe:00 2608                  {path}\n",
        "Rss:                   4 kB\n",
        f"Anonymous:       {anonymous:7} kB\n",
        "AnonHugePages:         4 kB\n",
        f"Swap:            {swap:7} kB\n",
        "SwapPss:               4 kB\n",
        "VmFlags: rd ex mr mw me \n",
    ]


@pytest.mark.parametrize(
    ("mode", "path"),
    [
        ("r-xp", LIBRARY),
        ("r--p", "/usr/lib/libstdc++.so.6.0.30"),
        ("r-xp", "/home/a b/a (1)/x.cpython-311-x86_64-linux-gnu.so"),
    ],
)
def test_code_that_nobody_wrote_is_found(mode: str, path: str) -> None:
    assert [PLACE] == list(leftovers.unwritten(mapping(mode, path)))


@pytest.mark.parametrize(
    "lines",
    [
        mapping("r--p", LIBRARY, anonymous=4),
        mapping("r--p", LIBRARY, swap=4),
        mapping("rw-p", LIBRARY),
        mapping("r--s", LIBRARY),
        mapping("r--p", "/cache/converted/model.safetensors"),
        mapping("rw-p", "[heap]"),
        mapping("r-xp", "[vdso]"),
        mapping("r-xp", LIBRARY)[:-1],
    ],
)
def test_what_was_or_may_be_written_and_the_weights_are_left_alone(lines: list[str]) -> None:
    both = [*lines, *mapping("rw-p", "/lib/x.so")]

    assert [] == list(leftovers.unwritten(both))


def resident(kind: str) -> int:
    """KiB of this process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(kind))


@LINUX
def test_pages_of_libraries_go_and_what_they_compute_stays() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    before, product = resident("RssFile:"), x @ x.T
    leftovers.idle_code()
    after = resident("RssFile:")

    assert after < before / 2
    assert torch.equal(product, x @ x.T)


@LINUX
def test_freed_memory_goes() -> None:
    # Small enough to lie in the heap, kept apart by every other one.
    pieces = [torch.ones(16 << 10) for _ in range(2_000)]
    del pieces[::2]
    before = resident("RssAnon:")
    leftovers.freed_memory()

    assert resident("RssAnon:") < before - (16 << 10)
    assert all(bool((piece == 1).all()) for piece in pieces)
