"""Staging: the one block of numbers that the host puts on the device for a round.

Owns an int64 block of COLUMNS numbers a slot, handed out in columns to whoever stages something:
the lanes' slots, copied drafts, the depth of a chain. The host writes its own block as it likes;
`upload` moves all of it in one asynchronous copy, and nothing else is written from the host in a
round. On the CPU the device's block is the host's.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

COLUMNS = 16


class Staging:
    """The block of S slots. Two pinned copies take turns, so that a round's is not overwritten
    before it has left: at most two rounds may be under way."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.slots, self.device = slots, device
        self._host = np.zeros(slots * COLUMNS, dtype=np.int64)
        self._given, self._turn = 0, 0
        self._pinned: list[Tensor] = []
        if device.type == "cpu":
            self._device = torch.from_numpy(self._host)
            return
        self._device = torch.zeros(slots * COLUMNS, dtype=torch.int64, device=device)
        self._pinned = [torch.zeros(self._host.size, dtype=torch.int64).pin_memory() for _ in "ab"]
        self._views = [block.numpy() for block in self._pinned]

    @staticmethod
    def price(slots: int) -> int:
        """Bytes on the device."""
        return slots * COLUMNS * torch.int64.itemsize

    def columns(self, width: int) -> tuple[np.ndarray, Tensor]:
        """`width` more columns: the host's view [S, width] to write, and the device's to read."""
        start, self._given = self._given, self._given + width
        assert self._given <= COLUMNS, "the staging block has no columns left"
        part = slice(start * self.slots, self._given * self.slots)
        shape = (self.slots, width)
        return self._host[part].reshape(shape), self._device[part].view(shape)

    def upload(self) -> None:
        """Give the device what the host has now; returns before it has arrived."""
        if not self._pinned:
            return
        self._views[self._turn][:] = self._host
        self._device.copy_(self._pinned[self._turn], non_blocking=True)
        self._turn = 1 - self._turn
