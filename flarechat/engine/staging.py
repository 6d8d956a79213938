"""Staging: the one block of numbers that the host puts on the device for a round.

Owns an int64 block of COLUMNS numbers a slot, handed out in columns to whoever stages something:
the lanes' slots, copied drafts and where they hold, the depth of a chain. The host writes its own
block as it likes; `upload` moves all of it in one asynchronous copy, and nothing else is written
from the host in a round. On the CPU the device's block is the host's.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

COLUMNS = 16


class Block:
    """`size` numbers of the host's, `host`, and the device's copy of them, `device`.

    Two pinned copies take turns, so that one is filled while the other may not have left yet.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.host = np.zeros(size, dtype=np.int64)
        self._turn = 0
        self._pinned: list[tuple[Tensor, np.ndarray, torch.cuda.Event]] = []
        if device.type == "cpu":
            self.device = torch.from_numpy(self.host)
            return
        self.device = torch.zeros(size, dtype=torch.int64, device=device)
        for _ in range(2):
            pinned = torch.zeros(size, dtype=torch.int64).pin_memory()
            self._pinned.append((pinned, pinned.numpy(), torch.cuda.Event()))  # type: ignore[no-untyped-call]

    def upload(self) -> None:
        """Give the device what the host has now; returns before it has arrived."""
        if not self._pinned:
            return
        pinned, view, left = self._pinned[self._turn]
        left.synchronize()
        view[:] = self.host
        self.device.copy_(pinned, non_blocking=True)
        left.record()
        self._turn = 1 - self._turn


class Staging:
    """The block of S slots."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.slots, self.device = slots, device
        self._block = Block(slots * COLUMNS, device)
        self._given = 0

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
        return self._block.host[part].reshape(shape), self._block.device[part].view(shape)

    def upload(self) -> None:
        """Give the device what the host has staged; returns before it has arrived."""
        self._block.upload()
