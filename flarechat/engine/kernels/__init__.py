"""Kernels of our own, in Triton; every one has a reference in plain torch, which tests hold it to.

Owns the choice between the two. The modules here are imported only where `fused` or `available`
says so, and know nothing of what the engine builds on them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Said out loud, as the default differs between versions of Triton.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

# Rows whose products go to kernels. More read the weights so often that torch's are faster.
FEW = 128

_interpreted = False


@functools.cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def fused(x: Tensor) -> bool:
    """Whether work on `x` goes to a kernel: on a GPU, or where `interpreted` asks for it."""
    return (x.is_cuda or _interpreted) and available()


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
