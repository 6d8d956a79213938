"""The seam of captured rounds on the CPU: what is captured is run again at every replay.

As on a GPU, a replay takes no arguments, writes the tensors that the capture returned, and reads
its inputs wherever they were when it was captured. Results are poisoned between replays, and what
is copied out lands only when its mark is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from flarechat.engine.boot import Catalogue
from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.executors.graph import GraphExecutor
from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.staging import Staging
from tests.engine.conftest import Desk

POISON = -77


class HostMark:
    """A mark that is reached at once; it counts how often it was waited for."""

    def __init__(self) -> None:
        self.recorded = self.waited = 0

    def record(self) -> None:
        self.recorded += 1

    def synchronize(self) -> None:
        self.waited += 1


class HostCapture:
    """Implements capture.Capture without a GPU."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0
        self.outputs: list[Tensor] = []
        self.marks: list[HostMark] = []

    def compile(
        self, works: Sequence[Callable[[], None]], told: Callable[[int, int], None]
    ) -> None:
        """Nothing is compiled here."""

    def warm(self) -> nullcontext[None]:
        return nullcontext()

    def capture(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        out = work()
        self.captured += 1
        self.outputs += out

        @torch.inference_mode()
        def replay() -> None:
            self.replayed += 1
            for old in self.outputs:
                old.fill_(POISON)
            for old, new in zip(out, work(), strict=True):
                assert old.shape == new.shape and old.dtype == new.dtype
                old.copy_(new)

        return replay, out

    def borrowed(self, tensor: Tensor) -> Tensor:
        return tensor

    def landing(self, size: int) -> Tensor:
        return torch.full((size,), POISON)

    def mark(self) -> HostMark:
        self.marks.append(HostMark())
        return self.marks[-1]

    def wait(self) -> None:
        """Everything has happened."""


def graph_of(
    desk: Desk, *, learned: bool = True, capacity: int = 128, capture: HostCapture | None = None,
    told: Callable[[str, int, int], None] = lambda *step: None,
) -> GraphExecutor:  # fmt: skip
    """A graph executor over the parts of a desk's engine, prepared."""
    own, pool = desk.engine.executor, desk.engine.pool
    assert isinstance(own, EagerExecutor)
    catalogue = Catalogue(
        slots=pool.slots, capacity=capacity, context=pool.context,
        extent=pool.context + SCRATCH_ROWS, learned=learned,
        always_absorbs=own.drafter.always_absorbs,
    )  # fmt: skip
    assert isinstance(own.staging, Staging)
    made = GraphExecutor(
        own.target, own.drafter, own.staging, pool, catalogue, capture or HostCapture()
    )
    made.prepare(told)
    return made


def captured(desk: Desk, **how: Any) -> Desk:
    """The same desk, its rounds replayed."""
    executor = graph_of(desk, **how)
    engine = desk.engine
    engine.executor = engine.player.executor = engine.bookings.executor = executor
    return desk
