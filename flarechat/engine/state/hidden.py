"""Hidden rows of the target's tokens, contiguous per slot at a fixed address.

HiddenState owns one tensor [S, rows, D]. All rows of a slot stay, so a draft head can begin again
at any prefix; rows past `consumed` are unreachable, as in KVState. TailState owns one row a slot,
for targets whose rows are too wide to keep and whose own state allows no shorter prefix anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine import kernels
from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.state.kv import zeroed
from flarechat.engine.state.recent import copy_slots
from flarechat.engine.state.views import SlotViews
from flarechat.engine.window import Window

if TYPE_CHECKING:
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes


class HiddenState(SlotViews):
    """One hidden row a token for S slots of `context` tokens each, with KVState's scratch rows."""

    keeps_all = True

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

    def store(self, lanes: Lanes, hidden: Tensor, emitted: Tensor, plan: Plan) -> None:
        """Put all W rows behind the consumed ones; those past what was emitted do no harm."""
        if (steps := kernels.of_round(hidden)) is not None:
            steps.store(self.rows, hidden, Window(lanes, plan.width))
        else:
            self.write(lanes, lanes.cache_rows(plan.width), hidden)

    def last(self, lanes: Lanes) -> Tensor:
        """[B, 1, D]: each lane's row of its last consumed token (its first row, if it has none)."""
        if (steps := kernels.of_round(self.rows)) is not None:
            last: Tensor = steps.last(self.rows, Window(lanes, 1, -1))
            return last
        at = (lanes.consumed() - 1).clamp_min(0)
        return self.rows[lanes.index, at][:, None]

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Nothing to move: `consumed` alone says which rows exist."""

    def reusable(self, held: int, rows: int) -> int:
        """Every prefix of the rows stands on its own."""
        return rows

    def by_token(self, slot: int, start: int, end: int) -> dict[str, Tensor]:
        """A view [rows, D]."""
        return {"hidden": self.rows[slot, start:end]}

    def tensors(self) -> dict[str, Tensor]:
        """The rows."""
        return {"hidden": self.rows}

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows.nbytes


class TailState(SlotViews):
    """The hidden row of the last consumed token for S slots.

    It moves with every pass that its slot plays: nothing shorter than what is held can be kept.
    """

    keeps_all = False

    def __init__(self, slots: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros(slots, dim, dtype=dtype, device=device)
        self.held = torch.zeros_like(self.rows)

    @staticmethod
    def price(slots: int, dim: int, dtype: torch.dtype) -> int:
        """Bytes such a state takes."""
        return 2 * slots * dim * dtype.itemsize

    def store(self, lanes: Lanes, hidden: Tensor, emitted: Tensor, plan: Plan) -> None:
        """Keep row `emitted` - 1 of each lane; a lane that emitted nothing keeps its own."""
        at = (emitted - 1).clamp_min(0)[:, None, None].expand(-1, 1, hidden.shape[-1])
        tail, own = hidden.gather(1, at)[:, 0], self.rows.index_select(0, lanes.index)
        self.rows.index_copy_(0, lanes.index, torch.where(emitted[:, None] > 0, tail, own))

    def last(self, lanes: Lanes) -> Tensor:
        """[B, 1, D]: each lane's row (zeros or an older text's, if nothing is consumed)."""
        return self.rows.index_select(0, lanes.index)[:, None]

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Nothing to do: `store` knows what was emitted."""

    def hold(self, lanes: Lanes) -> None:
        """Hold the lanes' rows."""
        copy_slots(self.rows, self.held, lanes)

    def rewind(self, lanes: Lanes) -> None:
        """Put back the rows held last."""
        copy_slots(self.held, self.rows, lanes)

    def reusable(self, held: int, rows: int) -> int:
        """All of what is held, or nothing."""
        return rows if rows == held else 0

    def beside(self, slot: int) -> dict[str, Tensor]:
        """The row."""
        return {"tail": self.rows[slot]}

    def tensors(self) -> dict[str, Tensor]:
        """The rows, and those held."""
        return {"tail": self.rows, "held tail": self.held}

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows.nbytes + self.held.nbytes
