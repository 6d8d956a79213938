"""Copies of what one slot holds, for every kind of state that says where it lies.

A state names views of its tensors, for each slot: rows `by_token`, of which every token has its
own, and what lies `beside`, which stands only for all consumed tokens together. Snapshots and
copies between slots follow from these views alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from flarechat.engine.slot import Lanes


class SlotViews:
    """What a state inherits: it says `by_token` and `beside`, and is copied by them. Where all lies
    in rows that are reached by number, a round is taken back by its numbers alone."""

    def hold(self, lanes: Lanes) -> None:
        """Nothing that a round writes over has to be held."""

    def rewind(self, lanes: Lanes) -> None:
        """Nothing to put back."""

    def by_token(self, slot: int, start: int, end: int) -> dict[str, Tensor]:
        """Views of the rows that tokens `start` … `end` - 1 of `slot` left, [..., rows, features];
        those of fewer tokens are a beginning of them, and those of the tokens that follow go on
        right behind them. None by default."""
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


def join(views: Mapping[str, Tensor], parts: Sequence[Mapping[str, Tensor]]) -> None:
    """Fill views [..., rows, features] with saved rows of their names, those of one part behind
    those of the part before. All parts of a view are asked for by one call."""
    for name, view in views.items():
        saved = [part[name] for part in parts]
        places = view.split_with_sizes([rows.shape[-2] for rows in saved], -2)
        torch._foreach_copy_(places, saved, non_blocking=True)


def beginning(views: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As many of the saved rows as the views of their names have."""
    return {name: saved[name].narrow(-2, 0, view.shape[-2]) for name, view in views.items()}
