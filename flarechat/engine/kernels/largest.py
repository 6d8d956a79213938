"""The largest of many int64 numbers, falling, in Triton: a bitonic network that forgets early.

Owns the network. Runs of the number asked for are sorted, each in the other direction than its
neighbour; then of two runs the larger halves are kept and sorted again, until one run is left. A
tensor of 2^n numbers is held as n axes of length 2, so that every exchange is along one axis.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _side(AXES: tl.constexpr, BIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """0 or 1: bit number BIT of a number's place."""
    return tl.reshape(tl.arange(0, 2), [1] * (AXES - BIT - 1) + [2] + [1] * BIT)


@triton.jit  # type: ignore[untyped-decorator]
def _exchanged(x, falling, BIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pairs that differ in one bit of their place, put in order."""
    AXES: tl.constexpr = len(x.shape)
    # The other of two is their sum less the one, whatever overflows.
    other = tl.sum(x, AXES - 1 - BIT, keep_dims=True) - x
    return tl.where((x > other) != ((falling ^ _side(AXES, BIT)) != 0), other, x)


@triton.jit  # type: ignore[untyped-decorator]
def _merged(x, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bitonic runs of 2^BITS sorted: every other one falling, a single one falling."""
    if len(x.shape) == BITS:
        for step in tl.static_range(BITS):
            x = _exchanged(x, 1, BITS - 1 - step)
    else:
        falling = _side(len(x.shape), BITS)
        for step in tl.static_range(BITS):
            x = _exchanged(x, falling, BITS - 1 - step)
    return x


@triton.jit  # type: ignore[untyped-decorator]
def _narrowed(x, BITS: tl.constexpr, TURNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """2^TURNS runs of 2^BITS, sorted in turns up and down, to one, falling."""
    for _ in tl.static_range(TURNS):
        x = _merged(tl.max(x, len(x.shape) - 1 - BITS), BITS)
    return x


@triton.jit  # type: ignore[untyped-decorator]
def largest(x, BITS: tl.constexpr, TURNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The 2^BITS largest of x int64 [2^(BITS + TURNS)], falling."""
    cube = tl.reshape(x, [2] * (BITS + TURNS))
    for bits in tl.static_range(1, BITS + 1):
        cube = _merged(cube, bits)
    return tl.reshape(_narrowed(cube, BITS, TURNS), [2**BITS])


@triton.jit  # type: ignore[untyped-decorator]
def largest_of_runs(x, BITS: tl.constexpr, TURNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same where x is in runs of 2^BITS, sorted in turns up and down."""
    cube = tl.reshape(x, [2] * (BITS + TURNS))
    return tl.reshape(_narrowed(cube, BITS, TURNS), [2**BITS])
