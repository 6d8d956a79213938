"""A window on the rows of a round: W consecutive tokens of every lane.

Owns where a row stands and which cache row it is written to. Torch asks for tensors, made once and
only if somebody asks; kernels take the counters they are made of, and work the same law out.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine.slot import SCRATCH_ROWS

if TYPE_CHECKING:
    from flarechat.engine.layers.rope import Rope
    from flarechat.engine.slot import Lanes


class Window:
    """Rows w = 0 … W-1 of B lanes, the first of them `shift` past the lane's consumed tokens.

    Row w stands at position consumed + shift + w. It is written to the cache row of that number;
    one of a lane that is neither RUNNING nor prefilling, or that stands before the sequence, goes
    to scratch row `spare` + w.
    """

    def __init__(self, lanes: Lanes, width: int, shift: int = 0) -> None:
        self.lanes, self.width, self.shift = lanes, width, shift
        self._masks: dict[tuple[int, int], Tensor] = {}
        self._angles: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def index(self) -> Tensor:
        """int64 [B]: the lanes' slots."""
        return self.lanes.index

    @property
    def consumed(self) -> Tensor:
        """int64 [S], by slot."""
        return self.lanes.pool.consumed

    @property
    def finish(self) -> Tensor:
        """int64 [S], by slot: RUNNING, or why it is not."""
        return self.lanes.pool.finish

    @property
    def spare(self) -> int:
        """The first scratch row of lanes that may write none of their own."""
        return self.lanes.pool.context + SCRATCH_ROWS

    @cached_property
    def positions(self) -> Tensor:
        """int64 [B, W]: where rows stand; those before the sequence at 0."""
        positions = self.lanes.positions(self.width, self.shift)
        return positions.clamp_min(0) if self.shift < 0 else positions

    @cached_property
    def rows(self) -> Tensor:
        """int64 [B, W]: the cache rows to be written."""
        return self.lanes.cache_rows(self.width, self.shift)

    def mask(self, extent: int, group: int) -> Tensor:
        """bool [B, group * W, extent]: a row sees cache rows up to its own position.

        The W rows stand once for each of the `group` query heads that share a kv head.
        """
        made = self._masks.get((extent, group))
        if made is None:
            seen = torch.arange(extent, device=self.index.device) <= self.positions[..., None]
            made = self._masks[extent, group] = seen.repeat(1, group, 1)
        return made

    def angles(self, rope: Rope) -> tuple[Tensor, Tensor]:
        """cos and sin of the rows' positions, each [B, 1, W, head_dim]."""
        made = self._angles.get(id(rope))
        if made is None:
            made = self._angles[id(rope)] = rope.at(self.positions)
        return made
