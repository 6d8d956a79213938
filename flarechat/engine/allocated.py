"""What a loaded model really holds in memory: the other side of its price.

On a GPU the allocator says so. On the CPU no allocator tells the model's tensors from the rest, so
they are looked for in the model's own objects; the n-gram table's rows are the host's, not counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from flarechat.engine.layers.ngram_table import NgramTable
from flarechat.protocol import PACKED


def allocated(things: Any, device: torch.device, dtype: str, executor: str = "eager") -> int | None:
    """Bytes that `things` hold on the device; None where packed products hide their tensors.

    What captured rounds need is the allocator's to keep, though no tensor has it between them.
    """
    if device.type == "cuda":
        captured = executor == "graph"
        held = torch.cuda.memory_reserved if captured else torch.cuda.memory_allocated
        return held(device)
    return None if dtype == PACKED else storage(things, set())


def storage(thing: Any, seen: set[int]) -> int:
    """Bytes of every tensor that can be reached and is not in `seen`, which takes them in."""
    held: dict[int, int] = {}
    for tensor in _tensors(thing, seen):
        if tensor.numel():
            memory = tensor.untyped_storage().data_ptr()
            held[memory] = max(held.get(memory, 0), tensor.nbytes)
    return sum(held.values())


def _tensors(thing: Any, seen: set[int]) -> Iterator[Tensor]:
    if id(thing) in seen or isinstance(thing, (str, int, float, bool, type)):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
        return
    parts: Any = ()
    if isinstance(thing, NgramTable):
        parts = thing.factors, thing.cache.held
    elif isinstance(thing, dict):
        parts = thing.values()
    elif isinstance(thing, (list, tuple)):
        parts = thing
    elif dataclasses.is_dataclass(thing):
        parts = [getattr(thing, field.name) for field in dataclasses.fields(thing)]
    elif hasattr(thing, "__dict__"):
        parts = vars(thing).values()
    for part in parts:
        yield from _tensors(part, seen)
