"""The seam of captured rounds on the CPU: what is captured is run again at every replay.

As on a GPU, a replay takes no arguments, writes the tensors that the capture returned, and reads
its inputs wherever they were when it was captured. Results are poisoned between replays, and what
is copied out lands only when its mark is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from flarechat.engine.boot import Catalogue
from flarechat.engine.executors.catalogue import Captured
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
    """Implements capture.Capture without a GPU.

    Of works that are `alike`, captured in one order by several, only the first to capture them runs
    them; the others have results of the same shapes, unwritten until the first replay.
    """

    _shapes: ClassVar[dict[tuple[Hashable, int], tuple[Tensor, ...]]] = {}

    def __init__(self, alike: Hashable = None) -> None:
        self.alike = alike
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
        out = self._results(work)
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

    def _results(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if self.alike is None:
            return work()
        place = self.alike, self.captured
        if place not in self._shapes:
            self._shapes[place] = tuple(t.to("meta") for t in work())
        return tuple(torch.full_like(t, POISON, device="cpu") for t in self._shapes[place])

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
    kind: type[GraphExecutor] = GraphExecutor,
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
    made = kind(own.target, own.drafter, own.staging, pool, catalogue, capture or HostCapture())
    made.prepare(told)
    return made


class Unwarmed(GraphExecutor):
    """Captures at once what would be played before to have it compiled."""

    def _tried(self, captured: Captured) -> Callable[[], None]:
        return lambda: None


def captured(desk: Desk, **how: Any) -> Desk:
    """The same desk, its rounds replayed. Nothing is played before the first replay but, once for
    engines that are alike, what tells the shapes of results."""
    target, pool = desk.engine.executor.target, desk.engine.pool  # type: ignore[attr-defined]
    parts = (type(target), type(desk.engine.drafter), pool.slots, pool.context, pool.vocabulary)
    alike = (*parts, *(how.get(name) for name in ("learned", "capacity")))
    executor = graph_of(desk, kind=Unwarmed, **{"capture": HostCapture(alike), **how})
    engine = desk.engine
    engine.executor = engine.player.executor = engine.bookings.executor = executor
    return desk
