"""What kernels of a round have in common: how one follows the other, and where its rows stand.

Owns programmatic dependent launch, by which a kernel may begin while those before it run. Before
`wait` it may read what never changes, such as weights, and what nothing of the same round writes:
where its lanes stand, and cache rows of earlier rounds. Only after it, what kernels before left.
The kernel that moves the lanes on lets none begin before it has ended, so rounds do not overlap.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from flarechat.engine.window import Window

# 0: a kernel begins when the one before has ended. 1: when that has its inputs. 2: when it begins.
ALONE, BEHIND, AHEAD = 0, 1, 2
overlap = BEHIND

TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
PLACES = ("index", "consumed", "finish", "width", "shift", "spare")

# A lane's finish column while it plays, as `accept` has it; a test holds the two together.
RUNNING = 0
_RUNNING: tl.constexpr = tl.constexpr(RUNNING)


@contextmanager
def overlapping(mode: int) -> Iterator[None]:
    """Launch kernels in another mode than usual."""
    global overlap
    before, overlap = overlap, mode
    try:
        yield
    finally:
        overlap = before


@functools.cache
def _dependent(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def options(x: Tensor) -> dict[str, Any]:
    """Options of a launch on the device of `x`, of which PDL is for the kernel."""
    mode = overlap if _dependent(x.device) else ALONE
    return {"PDL": mode, "launch_pdl": True} if mode else {"PDL": ALONE}


def product_type(x: Tensor) -> Any:
    """What tiles of x's dtype are multiplied in; Triton's interpreter multiplies no bfloat16."""
    return tl.float32 if x.device.type == "cpu" else TYPES[x.dtype]


def places(window: Window) -> dict[str, Any]:
    """The arguments from which `placed` works out where the rows of a window stand."""
    return {
        "index": window.index, "consumed": window.consumed, "finish": window.finish,
        "width": window.width, "shift": window.shift, "spare": window.spare,
        "PREFILLING": window.lanes.prefilling,
    }  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def begin(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """First in a kernel."""
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit  # type: ignore[untyped-decorator]
def wait(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Until the kernels before have ended and what they wrote can be read."""
    if PDL > 0:
        tl.extra.cuda.gdc_wait()
    if PDL == 1:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit  # type: ignore[untyped-decorator]
def ended(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """As `wait`, for a kernel behind which none may begin before it has ended."""
    if PDL > 0:
        tl.extra.cuda.gdc_wait()


@triton.jit  # type: ignore[untyped-decorator]
def placed(  # type: ignore[no-untyped-def]
    row, known, index, consumed, finish, width, shift, spare, PREFILLING: tl.constexpr
):
    """Slots, positions (those before the sequence at 0) and cache rows of rows int32 [n], int64
    [n] each, and whether they are written to rows of their own; only of those `known`."""
    lane, w = row // width, row % width
    slot = tl.load(index + lane, known, other=0)
    position = tl.load(consumed + slot, known, other=0) + shift + w
    live = position >= 0
    if not PREFILLING:
        live = live & (tl.load(finish + slot, known, other=1) == _RUNNING)
    return slot, tl.maximum(position, 0), tl.where(live, position, spare + w), live


@triton.jit  # type: ignore[untyped-decorator]
def standing(  # type: ignore[no-untyped-def]
    index, consumed, finish, ahead, ROWS: tl.constexpr, PREFILLING: tl.constexpr
):
    """A lane's slot, its consumed tokens, and the positions int32 [n] of the rows that far ahead.
    Rows at rest see the first key alone, whatever it is."""
    slot = tl.load(index)
    before = tl.load(consumed + slot)
    position = before + ahead
    live = position >= 0
    if not PREFILLING:
        live = live & (tl.load(finish + slot) == _RUNNING)
    return slot, before, tl.where(live, tl.minimum(position, ROWS - 1), 0).to(tl.int32)
