"""Captures: work on a GPU recorded once and replayed by one call. The seam that tests replace.

Owns CUDA graphs, their memory pool, and the events and pinned memory by which results reach the
host. Knows no round.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from flarechat.engine.frame import Arrival

Out = TypeVar("Out", bound=tuple[Tensor, ...])
Replay = Callable[[], None]
_INTEGERS = {1: "|i1", 2: "<i2", 4: "<i4", 8: "<i8"}


class Mark(Arrival, Protocol):
    """A place in the device's order of work, `record`ed again and again."""

    def record(self) -> None: ...


class Capture(Protocol):
    """How work is captured, and what passes from its device to the host."""

    def compile(
        self, works: Sequence[Callable[[], None]], told: Callable[[int, int], None]
    ) -> None:
        """Have compiled what works will launch, if that can be had sooner than by doing them;
        `told` hears (done, total)."""

    def warm(self) -> AbstractContextManager[Any]:
        """Around plain calls of work that will be captured, so that all of it is compiled."""

    def capture(self, work: Callable[[], Out]) -> tuple[Replay, Out]:
        """Record `work`; the replay writes the very tensors that are returned here."""

    def borrowed(self, tensor: Tensor) -> Tensor:
        """The memory of a captured result, to be read right after its replay, without keeping it
        from other captures."""

    def landing(self, size: int) -> Tensor:
        """int64 [size] of the host's, to which the device can copy while the host goes on."""

    def mark(self) -> Mark:
        """A new mark."""

    def wait(self) -> None:
        """Until all that was asked for has happened."""


class CudaCapture:
    """Captures as CUDA graphs that share one memory pool, as they are replayed one at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def compile(
        self, works: Sequence[Callable[[], None]], told: Callable[[int, int], None]
    ) -> None:
        """In several processes, where Triton's folder is cold."""
        from flarechat.engine.kernels.compiling import compile_ahead

        compile_ahead(works, told)

    @contextmanager
    def warm(self) -> Iterator[None]:
        """Work on the stream that captures; what it used is given back."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()
        torch.cuda.empty_cache()

    def capture(self, work: Callable[[], Out]) -> tuple[Replay, Out]:
        """Record `work` as a graph; nothing of it happens yet."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with _uncollected(), torch.cuda.stream(self._stream):
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                out = work()
            finally:
                graph.capture_end()
        self._graphs.append(graph)
        return graph.replay, out

    def borrowed(self, tensor: Tensor) -> Tensor:
        """A tensor over the same memory that does not own it."""
        assert tensor.is_contiguous()
        whole = torch.as_tensor(_Address(tensor), device=self.device)
        return whole.view(tensor.dtype)

    def landing(self, size: int) -> Tensor:
        """Pinned memory."""
        return torch.zeros(size, dtype=torch.int64).pin_memory()

    def mark(self) -> Mark:
        """An event of the stream in use when it is recorded."""
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait for the stream in use."""
        torch.cuda.current_stream(self.device).synchronize()


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is looked for: graphs of an engine that is gone, dropped in the middle of a
    capture, would spoil it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Address:
    """A tensor's memory as integers of its size, in the form that other libraries exchange."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": _INTEGERS[tensor.element_size()],
            "data": (tensor.data_ptr(), False),
            "strides": None,
            "version": 2,
        }
