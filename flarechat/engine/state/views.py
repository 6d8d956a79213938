"""Copies of what one slot holds, for every kind of state that says where it lies.

A state names views of its tensors, for each slot: rows `by_token`, of which every token has its
own, and what lies `beside`, which stands only for all consumed tokens together. Snapshots and
copies between slots follow from these views alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class SlotViews:
    """What a state inherits: it says `by_token` and `beside`, and is copied by them."""

    def by_token(self, slot: int, start: int, end: int) -> dict[str, Tensor]:
        """Views of the rows that tokens `start` … `end` - 1 of `slot` left; those of fewer tokens
        are a beginning of them. None by default."""
        return {}

    def beside(self, slot: int) -> dict[str, Tensor]:
        """Views of what `slot` holds beside rows. Nothing by default."""
        return {}

    def snapshot(self, slot: int, rows: int) -> dict[str, Tensor]:
        """Copies of what `slot` holds of its `rows` consumed tokens, by name."""
        views = self.by_token(slot, 0, rows) | self.beside(slot)
        return {name: view.clone() for name, view in views.items()}

    def restore(self, slot: int, rows: int, saved: Mapping[str, Tensor]) -> None:
        """Write a snapshot of `rows` tokens back, into any slot."""
        write(self.by_token(slot, 0, rows) | self.beside(slot), saved)

    def copy(self, source: int, target: int, rows: int) -> None:
        """Give slot `target` what `source` holds of its first `rows` tokens."""
        views = self.by_token(source, 0, rows) | self.beside(source)
        write(self.by_token(target, 0, rows) | self.beside(target), views)


def write(views: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Fill views from saved tensors of their names, or from the beginning of those that hold the
    rows of more tokens."""
    for name, view in views.items():
        view.copy_(saved[name][tuple(slice(size) for size in view.shape)], non_blocking=True)
