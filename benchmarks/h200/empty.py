"""A kernel that does nothing, to time what launching one costs inside a graph."""

from __future__ import annotations

import triton


@triton.jit
def _nothing() -> None:
    pass


def launch() -> None:
    """Queue one of a single program."""
    _nothing[(1,)]()
