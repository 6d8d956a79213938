"""What sparse attention chooses blocks of tokens by: one key for every complete block, and the raw
keys of the last tokens, from which a block's key is made when its last token comes.

Owns, for S slots, block keys [S, layers, blocks, K] and a ring [S, layers, RING + scratch, K] of
raw keys at position mod RING. Both are reached by position: keys of rejected tokens lie where the
next tokens' will, and the ring is long enough to keep those of an open block beside a round's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.state.kv import zeroed
from flarechat.engine.state.views import SlotViews

if TYPE_CHECKING:
    from flarechat.engine.slot import Lanes

RING = 16
MOST_RATIO = RING - SCRATCH_ROWS  # tokens of a block that the ring holds beside a round's
_SPARE = 1


class IndexerState(SlotViews):
    """Keys of `layers` indexers for S slots of `context` tokens, in blocks of `ratio` tokens,
    `behind` as KVState is."""

    def __init__(
        self, layers: int, slots: int, context: int, dim: int, ratio: int, dtype: torch.dtype,
        device: torch.device, behind: int = 0,
    ) -> None:  # fmt: skip
        assert ratio + SCRATCH_ROWS <= RING
        self.behind = behind
        self.ratio, self.scratch = ratio, (context + SCRATCH_ROWS) // ratio
        shape = (slots, layers, self.scratch + _SPARE, dim)
        self.blocks = zeroed(shape, dtype, device)
        self.ring = zeroed((slots, layers, RING + SCRATCH_ROWS, dim), dtype, device)

    @staticmethod
    def price(
        layers: int, slots: int, context: int, dim: int, ratio: int, dtype: torch.dtype
    ) -> int:
        """Bytes such a state takes."""
        rows = (context + SCRATCH_ROWS) // ratio + _SPARE + RING + SCRATCH_ROWS
        return slots * layers * rows * dim * dtype.itemsize

    def recent(self, layer: int, slots: Sequence[int], first: Tensor) -> Tensor:
        """[B, ratio - 1, K]: the raw keys of the tokens before position `first` [B]."""
        at = (first[:, None] + torch.arange(1 - self.ratio, 0, device=first.device)) % RING
        rings = [self.ring[slot, layer].index_select(0, at[i]) for i, slot in enumerate(slots)]
        return torch.stack(rings)

    def write_raw(
        self, layer: int, slots: Sequence[int], positions: Tensor, live: Tensor, keys: Tensor
    ) -> None:
        """Keep the last raw keys of keys [B, T, K] at positions [B, T]; rows that are not `live`
        [B, T] go to scratch."""
        last = slice(-min(keys.shape[1], RING), None)
        positions, live, keys = positions[:, last], live[:, last], keys[:, last]
        spare = RING + torch.arange(positions.shape[1], device=live.device) % SCRATCH_ROWS
        at = torch.where(live, positions % RING, spare)
        for lane, slot in enumerate(slots):
            self.ring[slot, layer].index_copy_(0, at[lane], keys[lane])

    def write_blocks(
        self, layer: int, slots: Sequence[int], numbers: Tensor, whole: Tensor, keys: Tensor
    ) -> None:
        """Put keys [B, n, K] at blocks `numbers` [B, n]; those that are not `whole` [B, n] go to
        scratch."""
        at = torch.where(whole, numbers, self.scratch)
        for lane, slot in enumerate(slots):
            self.blocks[slot, layer].index_copy_(0, at[lane], keys[lane])

    def read(self, layer: int, slot: int, blocks: int) -> Tensor:
        """A view [blocks, K] of a slot's first block keys."""
        return self.blocks[slot, layer, :blocks]

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Nothing to move: blocks that `consumed` does not complete are unreachable, and made
        again when they are complete."""

    def reusable(self, held: int, rows: int) -> int:
        """What is held, or whole blocks of it: an older open block's raw keys may be gone."""
        return rows if rows == held else rows - rows % self.ratio

    def by_token(self, slot: int, start: int, end: int) -> dict[str, Tensor]:
        """The keys of the blocks that these tokens complete."""
        first, last = max(start - self.behind, 0), max(end - self.behind, 0)
        return {"blocks": self.blocks[slot, :, first // self.ratio : last // self.ratio]}

    def beside(self, slot: int) -> dict[str, Tensor]:
        """The raw keys, those of the open block among them."""
        return {"ring": self.ring[slot]}

    def tensors(self) -> dict[str, Tensor]:
        """The blocks' keys and the ring."""
        return {"blocks": self.blocks, "ring": self.ring}

    @property
    def nbytes(self) -> int:
        """Bytes of those tensors."""
        return sum(t.nbytes for t in self.tensors().values())
