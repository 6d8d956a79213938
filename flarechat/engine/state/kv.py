"""Key and value rows of every layer, contiguous per slot at fixed addresses.

Owns the cache tensors [S, H, rows, D], which lie side by side in one, so that what a token left in
all layers is one view. A row's logical existence is `consumed` in the slot pool:
rows past it are unreachable, so keeping fewer rows than were verified needs no copy.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.state.views import SlotViews

if TYPE_CHECKING:
    from flarechat.engine.slot import Lanes


def zeroed(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On the CPU the operating system clears pages when they are first touched, so a long
    context costs nothing until it is used. They are asked of it directly: an allocator clears
    itself what was in use before."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.zeros(shape, dtype=dtype, device=device)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    pages = np.frombuffer(mmap.mmap(-1, size, **private), dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).view(shape)


class KVState(SlotViews):
    """KV rows of `layers` attention layers for S slots of `context` tokens each.

    Past the context lie SCRATCH_ROWS for rows verified beyond it and SCRATCH_ROWS that finished
    lanes write instead of their own rows. Rows that pair a token with the one before it lie one
    `behind`: token n leaves row n - 1.
    """

    def __init__(
        self, layers: int, slots: int, context: int, heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device, behind: int = 0,
    ) -> None:  # fmt: skip
        self.behind = behind
        self.capacity = context + 2 * SCRATCH_ROWS
        shape = (2 * layers, slots, heads, self.capacity, head_dim)
        self.pairs = zeroed(shape, dtype, device)
        self.keys, self.values = list(self.pairs[:layers]), list(self.pairs[layers:])

    @staticmethod
    def price(
        layers: int, slots: int, context: int, heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes such a state takes."""
        rows = slots * heads * (context + 2 * SCRATCH_ROWS)
        return 2 * layers * rows * head_dim * dtype.itemsize

    def write(
        self, layer: int, slots: Sequence[int], rows: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Put keys and values [B, H, T, D] at rows int64 [B, T] of B slots."""
        for lane, slot in enumerate(slots):
            self.keys[layer][slot].index_copy_(1, rows[lane], keys[lane])
            self.values[layer][slot].index_copy_(1, rows[lane], values[lane])

    def put(self, layer: int, index: Tensor, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """As `write`, of B slots that only the device knows: index int64 [B]."""
        self.keys[layer][index[:, None], :, rows] = keys.transpose(1, 2)
        self.values[layer][index[:, None], :, rows] = values.transpose(1, 2)

    def read(self, layer: int, slot: int, extent: int) -> tuple[Tensor, Tensor]:
        """Views [H, extent, D] of a slot's keys and values."""
        return self.keys[layer][slot, :, :extent], self.values[layer][slot, :, :extent]

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Nothing to move: `consumed` alone says which rows exist."""

    def reusable(self, held: int, rows: int) -> int:
        """Every prefix of the rows stands on its own."""
        return rows

    def by_token(self, slot: int, start: int, end: int) -> dict[str, Tensor]:
        """A view [2 * layers, H, rows, D]: the keys of all layers, then their values."""
        first, last = max(start - self.behind, 0), max(end - self.behind, 0)
        return {"pairs": self.pairs[:, slot, :, first:last]}

    def tensors(self) -> dict[str, Tensor]:
        """All keys and values by layer."""
        named = {f"keys.{i}": t for i, t in enumerate(self.keys)}
        return named | {f"values.{i}": t for i, t in enumerate(self.values)}

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(t.nbytes for t in self.tensors().values())
