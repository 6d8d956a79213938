"""The C library of CPU kernels, loaded once, or the sentence why it is not.

Owns the structures and prototypes of csrc/flarechat.h and the choice of instruction set. Imports no
torch: `flarechat doctor` asks it too.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

from flarechat.engine.kernels.cpu.sources import FOLDER, LIBRARY, digest
from flarechat.errors import SettingsError

SWITCH, FORCED = "FLARECHAT_CPU_KERNELS", "FLARECHAT_CPU_ISA"
INSTRUCTIONS = ("portable", "avx2", "avxvnni", "avx512")
KINDS = {"q4_0": 0, "q4_1": 1, "q8_0": 2, "bf16": 3}
"""Kinds of weights by their numbers in C."""

TILE, GROUP, MOST_HEAD_DIM = 16, 32, 256
_X86 = ("x86_64", "amd64")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_PART_BYTES = {"q4_0": 288, "q4_1": 320, "q8_0": 544, "bf16": 32 * GROUP}


def matrix_bytes(kind: str, rows: int, columns: int) -> int:
    """Bytes of a weight [rows, columns] in tiles, as flarechat.h lays them out."""
    return -(-rows // TILE) * columns * _PART_BYTES[kind] // GROUP


class Matrix(ctypes.Structure):
    """fc_matrix."""

    _fields_ = (("data", c_void_p), ("kind", c_int32), ("rows", c_int32), ("columns", c_int32))


class WindowFields(ctypes.Structure):
    """fc_window."""

    _fields_ = (
        *((name, c_void_p) for name in ("index", "consumed", "finish")), ("spare", c_int64),
        *((name, c_int32) for name in ("lanes", "width", "shift", "prefilling")),
    )  # fmt: skip


class AttentionFields(ctypes.Structure):
    """fc_attention."""

    _fields_ = (
        *((name, c_void_p) for name in ("norm", "cos", "sin", "keys", "values")),
        ("slot_stride", c_int64), ("head_stride", c_int64),
        *((name, Matrix) for name in ("q", "k", "v", "out")), ("eps", c_float),
        *((name, c_int32) for name in ("heads", "kv_heads", "head_dim")),
    )  # fmt: skip


class MlpFields(ctypes.Structure):
    """fc_mlp."""

    _fields_ = (
        ("norm", c_void_p), *((name, Matrix) for name in ("gate", "up", "down")), ("eps", c_float),
    )  # fmt: skip


_STALE = "built from other sources: install flarechat again"
_P, _I = c_void_p, c_int32
_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "attention_block": (None, (_P, _P, _P, _P)),
    "attention_write": (None, (_P, _P, _P)),
    "mlp_block": (None, (_P, _I, _P, _P)),
    "linear": (None, (_P, _P, c_float, _I, _P, _P)),
    "lookup": (None, (_P, _I, _P, _P)),
    "set_threads": (None, (_I,)),
    "threads": (_I, ()),
    "sources": (c_char_p, ()),
    "instructions": (c_char_p, ()),
    "use": (_I, (c_char_p,)),
}


class Library:
    """The functions of flarechat.h without their fc_, pointers as addresses.

    Calls release the interpreter's lock and must come from one thread at a time.
    """

    attention_block: Callable[[int, int, int, int], None]
    attention_write: Callable[[int, int, int], None]
    mlp_block: Callable[[int, int, int, int], None]
    linear: Callable[[int, int | None, float, int, int, int], None]
    lookup: Callable[[int, int, int, int], None]
    threads: Callable[[], int]

    def __init__(self, handle: ctypes.CDLL) -> None:
        self.handle = handle
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(handle, f"fc_{name}")
            function.restype, function.argtypes = result, arguments
            if name not in ("set_threads", "instructions", "use", "sources"):
                setattr(self, name, function)
        self.set_threads(_cores())

    def bound(self, prototypes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Functions that return nothing, by their names without fc_, told what they take."""
        functions = {name: getattr(self.handle, f"fc_{name}") for name in prototypes}
        for name, function in functions.items():
            function.restype, function.argtypes = None, prototypes[name]
        return functions

    def set_threads(self, threads: int) -> None:
        """Let so many work together, the caller's included, but no more than cores: `most_threads`.
        `threads` says how many worked in the last call."""
        self.handle.fc_set_threads(threads)
        self.most_threads = max(1, min(threads, _cores()))

    @property
    def instructions(self) -> str:
        """The instruction set in use, one of INSTRUCTIONS."""
        return str(self.handle.fc_instructions().decode())

    @property
    def pays(self) -> bool:
        """Whether it is faster than torch: an x86 without AVX2 has no fused multiply-add either,
        and works each one out in software."""
        return self.instructions != "portable" or platform.machine().lower() not in _X86

    @property
    def made_of(self) -> str:
        """The digest of its sources."""
        return str(self.handle.fc_sources().decode())

    def use(self, name: str) -> bool:
        """Take an instruction set for all later calls; False where the machine lacks it."""
        return bool(self.handle.fc_use(name.encode()))


def load(folder: Path, sources: Path, environment: Mapping[str, str]) -> tuple[Library | None, str]:
    """The library in a folder, and "", or None and the reason in words that fit behind "are".

    One made of other sources than those in `sources` is not taken. SettingsError on a variable
    with a value that cannot be.
    """
    switch, forced = environment.get(SWITCH) or "on", environment.get(FORCED)
    _check(SWITCH, switch, ("on", "off"))
    if forced:
        _check(FORCED, forced, INSTRUCTIONS)
    if switch == "off":
        return None, f"switched off by {SWITCH}=off"
    path = folder / LIBRARY
    if not path.exists():
        return None, "not built (no working C compiler when flarechat was installed)"
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"not loaded ({str(error).splitlines()[0]})"
    try:
        library = Library(handle)
    except AttributeError:  # A function is not there that the sources have by now.
        return None, _STALE
    if sources.exists() and library.made_of != digest(sources):
        return None, _STALE
    if forced and not library.use(forced):
        raise SettingsError(
            f"{FORCED} asks for {forced}, which this machine lacks.", f"Unset {FORCED}."
        )
    return library, ""


def _check(variable: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SettingsError(
            f"{variable} is {value!r}, not one of {', '.join(known)}.", f"Unset {variable}."
        )


def _cores(quota: Path = _QUOTA) -> int:
    """Cores that this process may use, of which a container may have a share."""
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    try:
        share, period = map(int, quota.read_text().split())
    except (OSError, ValueError):  # No container, or one without a bound ("max").
        return allowed
    return max(1, min(allowed, -(-share // max(1, period))))


@functools.cache
def _loaded() -> tuple[Library | None, str]:
    return load(Path(__file__).parent, FOLDER, os.environ)


@functools.cache
def library() -> Library | None:
    """The library, loaded at the first call; None where `reason` says why not."""
    return _loaded()[0]


def reason() -> str:
    """Which instruction set runs on how many threads, or why the kernels do not, in words that fit
    behind "they are"."""
    found, why = _loaded()
    if found is None:
        return why
    threads = found.most_threads
    return f"{found.instructions} on {threads} thread{'s' if threads > 1 else ''}"
