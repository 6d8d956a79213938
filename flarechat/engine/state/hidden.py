"""Hidden rows of the target's tokens, contiguous per slot at a fixed address.

Owns one tensor [S, rows, D]. All rows of a slot stay, so a draft head can begin again at any
prefix; rows past `consumed` are unreachable, as in KVState.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.state.kv import zeroed

if TYPE_CHECKING:
    from flarechat.engine.slot import Lanes


class HiddenState:
    """One hidden row a token for S slots of `context` tokens each, with KVState's scratch rows."""

    def __init__(
        self, slots: int, context: int, dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.rows = zeroed((slots, context + 2 * SCRATCH_ROWS, dim), dtype, device)

    @staticmethod
    def price(slots: int, context: int, dim: int, dtype: torch.dtype) -> int:
        """Bytes such a state takes."""
        return slots * (context + 2 * SCRATCH_ROWS) * dim * dtype.itemsize

    def write(self, lanes: Lanes, rows: Tensor, hidden: Tensor) -> None:
        """Put hidden [B, W, D] at rows int64 [B, W] of the lanes' slots."""
        _, capacity, dim = self.rows.shape
        at = (lanes.index[:, None] * capacity + rows).reshape(-1)
        self.rows.view(-1, dim).index_copy_(0, at, hidden.reshape(-1, dim))

    def last(self, lanes: Lanes) -> Tensor:
        """[B, 1, D]: each lane's row of its last consumed token (its first row, if it has none)."""
        at = (lanes.consumed() - 1).clamp_min(0)
        return self.rows[lanes.index, at][:, None]

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Nothing to move: `consumed` alone says which rows exist."""

    def reusable(self, rows: int) -> int:
        """Every prefix of the rows stands on its own."""
        return rows

    def tensors(self) -> dict[str, Tensor]:
        """The rows."""
        return {"hidden": self.rows}

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows.nbytes
