"""Slots, windows and poisoned outputs for tests of kernels."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from flarechat.engine import kernels
from flarechat.engine.accept import RUNNING, STOPPED
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.engine.window import Window

CPU = torch.device("cpu")


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def window_on(
    consumed: Sequence[int], width: int, *, context: int, shift: int = 0, slots: int | None = None,
    idle: Collection[int] = (), prefilling: bool = False,
) -> Window:  # fmt: skip
    """W rows of a lane for each of `consumed`, in slots from the last one down; the pool has spare
    ones. Lanes in `idle` have stopped."""
    pool = SlotPool(slots or len(consumed) + 1, context, 4, CPU)
    own = tuple(pool.slots - 1 - lane for lane in range(len(consumed)))
    for lane, slot in enumerate(own):
        pool.consumed[slot] = consumed[lane]
        pool.finish[slot] = STOPPED if lane in idle else RUNNING
    return Window(Lanes(pool, own, prefilling=prefilling), width, shift)


@pytest.fixture(autouse=True)
def references() -> Iterator[None]:
    """What is not sent to a kernel by name is plain torch, though the C library may be there."""
    with kernels.in_torch():
        yield


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allocated empty is full of what is no number, until it is written."""
    plain = torch.empty

    def poisoned(*shape: Any, **options: Any) -> Tensor:
        made: Tensor = plain(*shape, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned)


def require_near(own: Tensor, theirs: Tensor, most: float = 2e-6) -> None:
    """Equal to `most` of the largest value, the reference being float64."""
    assert theirs.shape == own.shape
    torch.testing.assert_close(
        own.double(), theirs.double(), atol=most * float(theirs.abs().max()), rtol=0
    )
