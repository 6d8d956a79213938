"""The recurrences of gated delta layers: one matrix a value head, and the convolution before it.

Owns S float32 [S, layers, heads, K, V], the last convolution inputs, and what a pass of W rows
leaves behind until it is known how many of them stay. Three ways to make the state after the kept
rows the live one, of which each agrees with the others:

    records     of every row its key, its correction and its decay; the kept ones are replayed
    columns     the whole state after every row; the last kept one is copied
    reforward   nothing; the model runs the kept rows again

No state leads back to an older one, so that of before a round that may be amended is held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine.state.kv import zeroed
from flarechat.engine.state.recent import ROUND_ROWS, RecentRows, begun, copy_slots, put
from flarechat.engine.state.views import SlotViews

if TYPE_CHECKING:
    from flarechat.engine.slot import Lanes
    from flarechat.engine.state.passes import Pass

COMMITS = ("records", "columns", "reforward")


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Heads of keys and of values, and their dimensions."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def state(self) -> tuple[int, int, int]:
        """Shape of one layer's state of one slot."""
        return self.value_heads, self.key_dim, self.value_dim

    @property
    def channels(self) -> int:
        """Features of queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class Records:
    """What W rows leave behind: `key` [B, W, Hk, K], `correction` [B, W, Hv, V] and `decay`
    [B, W, Hv] (its logarithm), float32; `states` has the state after each row."""

    key: Tensor
    correction: Tensor
    decay: Tensor
    states: list[Tensor] = field(default_factory=list)


def spread(x: Tensor, heads: int) -> Tensor:
    """[B, T, Hk, K] → [B, T, heads, K]: each key head for its run of value heads."""
    return x.repeat_interleave(heads // x.shape[2], dim=2)


def replay(state: Tensor, records: Records, count: Tensor) -> Tensor:
    """The state [B, Hv, K, V] after the first `count` [B] of the records' rows, step by step as
    `recurrent` takes them."""
    kept = torch.arange(records.decay.shape[1], device=count.device) < count[:, None]
    decay = records.decay.masked_fill(~kept[..., None], 0)
    correction = records.correction.masked_fill(~kept[..., None, None], 0)
    key = records.key.masked_fill(~kept[..., None, None], 0)
    key = spread(key, correction.shape[2])[..., None]
    for t in range(decay.shape[1]):
        state = state * decay[:, t, :, None, None].exp()
        state = state + key[:, t] * correction[:, t, :, None, :]
    return state


class RecurrentState(SlotViews):
    """Recurrences of `layers` layers for S slots."""

    def __init__(
        self, layers: int, slots: int, shape: DeltaShape, taps: int, dtype: torch.dtype,
        device: torch.device, commit: str = "records",
    ) -> None:  # fmt: skip
        assert commit in COMMITS
        self.by, self.width = commit, 1
        self.state = zeroed((slots, layers, *shape.state), torch.float32, device)
        self.held = zeroed((slots, layers, *shape.state), torch.float32, device)
        self.conv = RecentRows(slots, layers, taps, shape.channels, dtype, device)
        self.left: dict[str, Tensor] = {
            name: zeroed((slots, layers, ROUND_ROWS, *size), torch.float32, device)
            for name, size in _left(shape, commit).items()
        }

    @staticmethod
    def price(
        layers: int, slots: int, shape: DeltaShape, taps: int, dtype: torch.dtype,
        commit: str = "records",
    ) -> int:  # fmt: skip
        """Bytes such a state takes."""
        left = sum(torch.Size(size).numel() for size in _left(shape, commit).values())
        floats = 2 * torch.Size(shape.state).numel() + ROUND_ROWS * left
        conv = RecentRows.price(slots, layers, taps, shape.channels, dtype)
        return slots * layers * floats * torch.float32.itemsize + conv

    def before(self, lanes: Lanes, layer: int) -> Tensor:
        """[B, heads, K, V]: the state before the lanes' next row."""
        return begun(self.state[:, layer], lanes)

    def commit(self, lanes: Lanes, layer: int, state: Tensor, count: Tensor) -> None:
        """`state` is the live one of the lanes whose `count` [B] of rows consumed is not 0."""
        put(self.state[:, layer], lanes, state, count > 0)

    def take(self, run: Pass, layer: int, records: Records) -> None:
        """The rows of a pass that is settled become state; of another's, what they left is held."""
        if run.settled:
            self.commit(run.lanes, layer, records.states[-1], run.count)
            return
        self.width = run.width
        if run.width > ROUND_ROWS:
            return
        for name, buffer in self.left.items():
            value = getattr(records, name)
            rows = torch.stack(value, 1) if isinstance(value, list) else value
            put(buffer[:, layer, : run.width], run.lanes, rows, run.live)

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Make the state after the first `emitted` [B] rows of the last pass the live one."""
        self.conv.keep(lanes, emitted)
        for layer in range(self.state.shape[1]):
            left = {
                name: buffer[:, layer, : self.width].index_select(0, lanes.index)
                for name, buffer in self.left.items()
            }
            if self.by == "records":
                records = Records(left["key"], left["correction"], left["decay"])
                state = replay(self.before(lanes, layer), records, emitted)
            else:
                lane = torch.arange(len(lanes), device=emitted.device)
                state = left["states"][lane, (emitted - 1).clamp_min(0)]
            self.commit(lanes, layer, state, emitted)

    def hold(self, lanes: Lanes) -> None:
        """Hold the lanes' states as they are."""
        copy_slots(self.state, self.held, lanes)
        self.conv.hold(lanes)

    def rewind(self, lanes: Lanes) -> None:
        """The states held last are the live ones; what the last pass left stays."""
        copy_slots(self.held, self.state, lanes)
        self.conv.rewind(lanes)

    def reusable(self, held: int, rows: int) -> int:
        """All of what is held, or nothing: earlier states are gone."""
        return rows if rows == held else 0

    def beside(self, slot: int) -> dict[str, Tensor]:
        """The state, and the convolutions' inputs."""
        return {"state": self.state[slot], "conv": self.conv.rows[slot]}

    def tensors(self) -> dict[str, Tensor]:
        """The states, the convolutions' inputs, what the last pass left, and what is held."""
        own = {"state": self.state, "conv": self.conv.rows, "fresh conv": self.conv.fresh}
        return own | self.left | {"held": self.held, "held conv": self.conv.held}

    @property
    def nbytes(self) -> int:
        """Bytes of those tensors."""
        return sum(t.nbytes for t in self.tensors().values())


def _left(shape: DeltaShape, commit: str) -> dict[str, tuple[int, ...]]:
    """What one row leaves behind in one layer, by name."""
    if commit == "columns":
        return {"states": shape.state}
    if commit == "reforward":
        return {}
    return {
        "key": (shape.key_heads, shape.key_dim),
        "correction": (shape.value_heads, shape.value_dim),
        "decay": (shape.value_heads,),
    }
