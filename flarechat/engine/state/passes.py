"""A pass of the target over new rows of every lane, and when its rows become state.

Rows in a cache are reached by number, so rejected ones need no undoing. A recurrence has one live
state: a pass whose rows may be rejected leaves it alone and says later, by `keep`, how many stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine.accept import RUNNING
from flarechat.engine.state.recent import ROUND_ROWS

if TYPE_CHECKING:
    from flarechat.engine.slot import Lanes
    from flarechat.engine.state.recent import RecentRows


@dataclass(frozen=True, slots=True)
class Pass:
    """`live` [B] are lanes whose slots may change. Where `settled`, the first `count` [B] of the W
    rows become state within the pass, otherwise at `keep`. `prefill` rows all do."""

    lanes: Lanes
    width: int
    live: Tensor
    count: Tensor
    settled: bool
    prefill: bool = False

    @classmethod
    def of_chunk(cls, lanes: Lanes, width: int) -> Pass:
        """A chunk of a prompt: all its rows become state."""
        live = torch.ones_like(lanes.index, dtype=torch.bool)
        return cls(lanes, width, live, torch.full_like(lanes.index, width), True, prefill=True)

    @classmethod
    def of_round(cls, lanes: Lanes, width: int) -> Pass:
        """Rows to be judged. A lone row always stays, and becomes state at once."""
        live = lanes.finish() == RUNNING
        return cls(lanes, width, live, live.long() * width, settled=width == 1)

    @classmethod
    def of_kept(cls, lanes: Lanes, width: int, emitted: Tensor) -> Pass:
        """Rows judged before, of which `emitted` [B] now become state."""
        return cls(lanes, width, emitted > 0, emitted, settled=True)

    def masked(self, values: Tensor) -> Tensor:
        """values [B, W, H] with zeros in rows that do not count."""
        rows = torch.arange(self.width, device=self.count.device)
        return values.masked_fill((rows >= self.count[:, None])[..., None], 0)

    def settle(self, recent: RecentRows, layer: int, rows: Tensor) -> None:
        """Let `recent` move on over this pass's rows [B, W, F], now or at `keep`."""
        if self.settled:
            recent.commit(self.lanes, layer, rows, self.count)
        elif self.width <= ROUND_ROWS:
            recent.stage(self.lanes, layer, rows, self.live)
