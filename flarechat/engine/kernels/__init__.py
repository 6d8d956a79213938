"""Kernels of our own, in Triton; every one has a reference in plain torch, which tests hold it to.

The modules here are imported only where `available` says so.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

# Said out loud, as the default differs between versions of Triton.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None
