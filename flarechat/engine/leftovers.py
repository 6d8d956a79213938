"""Gives the operating system back what is not needed any more: memory that was freed, and pages of
libraries that only loading read. Whatever is used again comes back by itself.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_MAPPINGS = Path("/proc/self/smaps")
# The code and the constants of a library.
_LIBRARY = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-[-x]p .*/[^/]+\.so[.\d]*$")
_WRITTEN = re.compile(r"(Anonymous|Swap): +[1-9]")
_LAST_LINE = "VmFlags:"

_C = ctypes.CDLL(None) if os.name == "posix" else None
_trim = getattr(_C, "malloc_trim", None)
_advise = getattr(_C, "madvise", None)


def freed_memory() -> None:
    """What was freed and is held for later, where the C library can: a tenth of a millisecond, or
    ten where a long prompt was read."""
    if _trim is not None:
        _trim(0)


def idle_code() -> None:
    """Pages of libraries, most of which are read once to relocate them; some 15 ms."""
    if _advise is None or not _MAPPINGS.exists():
        return
    with _MAPPINGS.open() as lines:
        found = list(unwritten(lines))
    for start, end in found:
        _advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def unwritten(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """From where to where each library's mapping in `lines` of /proc/PID/smaps goes that cannot be
    written and never was: relocated pages, though closed by now, exist nowhere else."""
    held: re.Match[str] | None = None
    for line in lines:
        if line[0] in "0123456789abcdef":
            held = _LIBRARY.match(line)
        elif _WRITTEN.match(line):
            held = None
        elif held and line.startswith(_LAST_LINE):
            yield int(held[1], 16), int(held[2], 16)
