"""What the n-gram features of a slot look back on: its last tokens, and the inputs of their
convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine.state.recent import RecentRows
from flarechat.engine.state.views import SlotViews

if TYPE_CHECKING:
    from flarechat.engine.slot import Lanes


class NgramState(SlotViews):
    """The last `tokens` token ids and the last `columns` convolution inputs [F] of S slots."""

    def __init__(
        self, slots: int, tokens: int, columns: int, features: int, eos: int,
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        self.ids = RecentRows(slots, 1, tokens, 1, torch.int64, device, fill=eos)
        self.columns = RecentRows(slots, 1, columns, features, dtype, device)

    @staticmethod
    def price(slots: int, tokens: int, columns: int, features: int, dtype: torch.dtype) -> int:
        """Bytes such a state takes."""
        ids = RecentRows.price(slots, 1, tokens, 1, torch.int64)
        return ids + RecentRows.price(slots, 1, columns, features, dtype)

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Move on over the first `emitted` [B] rows of the last pass."""
        self.ids.keep(lanes, emitted)
        self.columns.keep(lanes, emitted)

    def hold(self, lanes: Lanes) -> None:
        """Hold what the lanes' slots look back on."""
        self.ids.hold(lanes)
        self.columns.hold(lanes)

    def rewind(self, lanes: Lanes) -> None:
        """Look back on what was held last."""
        self.ids.rewind(lanes)
        self.columns.rewind(lanes)

    def reusable(self, held: int, rows: int) -> int:
        """All of what is held, or nothing: earlier rows are gone."""
        return rows if rows == held else 0

    def beside(self, slot: int) -> dict[str, Tensor]:
        """What the slot looks back on."""
        return {"ids": self.ids.rows[slot], "columns": self.columns.rows[slot]}

    def tensors(self) -> dict[str, Tensor]:
        """The rows looked back on, those of the last pass, and those held."""
        return {
            "ids": self.ids.rows,
            "columns": self.columns.rows,
            "fresh ids": self.ids.fresh,
            "fresh columns": self.columns.fresh,
            "held ids": self.ids.held,
            "held columns": self.columns.held,
        }

    @property
    def nbytes(self) -> int:
        """Bytes of those tensors."""
        return sum(t.nbytes for t in self.tensors().values())
