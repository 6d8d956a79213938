"""Kernels of our own, in Triton for GPUs and in C for CPUs; every one has a reference in plain
torch, which tests hold it to.

Owns the choice between them. The modules here are imported only where `fused`, `native` or
`available` says so, and know nothing of what the engine builds on them.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from flarechat.engine.kernels.cpu import library

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

# Said out loud, as the default differs between versions of Triton.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

# Rows whose products go to kernels. More read the weights so often that torch's are faster.
FEW = 128

_interpreted = _in_torch = False


@functools.cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def fused(x: Tensor) -> bool:
    """Whether work on `x` goes to a kernel: on a GPU, or where `interpreted` asks for it."""
    return (x.is_cuda or _interpreted) and available()


def native(x: Tensor) -> bool:
    """Whether work on `x` goes to the C library: on a CPU where that is there."""
    return x.is_cpu and not (_interpreted or _in_torch) and library() is not None


def of_round(x: Tensor) -> ModuleType | None:
    """The kernels for the small steps of a round on `x`, `rounds` or `cpu.rounds`; None where
    torch takes them."""
    if fused(x):
        return _imported("rounds")
    return _imported("cpu.rounds") if native(x) else None


@functools.cache
def _imported(name: str) -> ModuleType:
    """A module of this package, once it is known that its compiler or library is there."""
    return importlib.import_module(f"{__name__}.{name}")


def few(x: Tensor) -> bool:
    """Whether products of x [..., D] go to kernels for few rows."""
    return fused(x) and x.numel() <= FEW * x.shape[-1]


@contextmanager
def interpreted() -> Iterator[None]:
    """Send work on the CPU's tensors to the kernels too, for which Triton must be interpreting."""
    global _interpreted
    before, _interpreted = _interpreted, True
    try:
        yield
    finally:
        _interpreted = before


@contextmanager
def in_torch() -> Iterator[None]:
    """Leave the CPU's tensors to torch, though the C library is there."""
    global _in_torch
    before, _in_torch = _in_torch, True
    try:
        yield
    finally:
        _in_torch = before
