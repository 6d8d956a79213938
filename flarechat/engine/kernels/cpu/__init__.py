"""Kernels of our own for the CPU, in C: weights stay quantised as their file has them.

Owns whether they are there. `operators` has what a recipe calls, with a reference in the tests;
nothing here imports torch before that does.
"""

from __future__ import annotations

from flarechat.engine.kernels.cpu.library import library, reason

__all__ = ["hindrance", "library", "reason"]


def hindrance() -> str:
    """Why it is not used unless asked for, in words that fit behind "are"; "" where it is."""
    made = library()
    if made is None:
        return reason()
    return "" if made.pays else "slow without AVX2"
