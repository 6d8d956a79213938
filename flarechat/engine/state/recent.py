"""The last rows of each slot's sequence, as a convolution or an n-gram looks back on them.

Owns tensors [S, layers, L, F] at fixed addresses, and the rows of the last pass until it is known
how many of them stay. Before the first token lie rows of `fill`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine.state.kv import zeroed

if TYPE_CHECKING:
    from flarechat.engine.slot import Lanes

ROUND_ROWS = 8


def put(stored: Tensor, lanes: Lanes, values: Tensor, live: Tensor) -> None:
    """Write values [B, ...] to the lanes' slots of stored [S, ...]; where `live` [B] is false the
    slot keeps what it has."""
    shaped = live.view(-1, *[1] * (values.dim() - 1))
    old = stored.index_select(0, lanes.index)
    stored.index_copy_(0, lanes.index, torch.where(shaped, values.to(stored.dtype), old))


def begun(stored: Tensor, lanes: Lanes, fill: int = 0) -> Tensor:
    """The lanes' slots of stored [S, ...], with `fill` for those that have consumed nothing.

    A slot needs no clearing between requests: its state before the first token is this.
    """
    values = stored.index_select(0, lanes.index)
    nothing = (lanes.consumed() == 0).view(-1, *[1] * (values.dim() - 1))
    return values.masked_fill(nothing, fill)


def copy_slots(source: Tensor, target: Tensor, lanes: Lanes) -> None:
    """Copy the lanes' slots of source [S, ...] to those of target."""
    target.index_copy_(0, lanes.index, source.index_select(0, lanes.index))


class RecentRows:
    """The last `length` rows, F features each, of S slots in `layers` layers."""

    def __init__(
        self, slots: int, layers: int, length: int, features: int, dtype: torch.dtype,
        device: torch.device, fill: int = 0,
    ) -> None:  # fmt: skip
        self.length, self.fill = length, fill
        self.rows = zeroed((slots, layers, length, features), dtype, device)
        self.fresh = zeroed((slots, layers, ROUND_ROWS, features), dtype, device)
        self.held = zeroed((slots, layers, length, features), dtype, device)

    @staticmethod
    def price(slots: int, layers: int, length: int, features: int, dtype: torch.dtype) -> int:
        """Bytes such rows take."""
        return slots * layers * (2 * length + ROUND_ROWS) * features * dtype.itemsize

    def before(self, lanes: Lanes, layer: int) -> Tensor:
        """[B, L, F]: the rows before the lanes' next ones."""
        return begun(self.rows[:, layer], lanes, self.fill)

    def stage(self, lanes: Lanes, layer: int, rows: Tensor, live: Tensor) -> None:
        """Hold the rows [B, W, F] of a pass until `keep`."""
        put(self.fresh[:, layer, : rows.shape[1]], lanes, rows, live)

    def commit(self, lanes: Lanes, layer: int, rows: Tensor, count: Tensor) -> None:
        """Move on over the first `count` [B] of rows [B, T, F]; 0 leaves a lane's slot alone."""
        held = torch.cat([self.before(lanes, layer), rows.to(self.rows.dtype)], dim=1)
        at = count[:, None] + torch.arange(self.length, device=count.device)
        moved = held.gather(1, at[..., None].expand(-1, -1, held.shape[-1]))
        put(self.rows[:, layer], lanes, moved, count > 0)

    def hold(self, lanes: Lanes) -> None:
        """Hold the rows as they are."""
        copy_slots(self.rows, self.held, lanes)

    def rewind(self, lanes: Lanes) -> None:
        """Put back the rows held last."""
        copy_slots(self.held, self.rows, lanes)

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Move on over the first `emitted` [B] of the rows staged."""
        for layer in range(self.rows.shape[1]):
            self.commit(lanes, layer, self.fresh[:, layer].index_select(0, lanes.index), emitted)
