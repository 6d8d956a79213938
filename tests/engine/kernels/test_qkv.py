"""Projection of queries, keys and values against plain float64, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flarechat.engine.kernels import qkv
from flarechat.engine.kernels.products import Cut
from flarechat.engine.layers.rope import Rope
from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.window import Window
from tests.engine.kernels.slots import CPU, drawn, poison, require_near, window_on

EPS, CONTEXT, POISON = 1e-5, 40, float("nan")
ROWS = CONTEXT + 2 * SCRATCH_ROWS
__all__ = ["poison"]


class Setting:
    """One layer's weight and poisoned caches."""

    def __init__(self, window: Window, heads: int, kv: int, dim: int, wide: int) -> None:
        self.window, self.heads, self.kv, self.dim = window, heads, kv, dim
        self.rope = Rope(dim, ROWS, 1e4, None, CPU)
        batch, slots = len(window.lanes), window.lanes.pool.slots
        self.x, self.norm = drawn(batch, window.width, wide, seed=1), 1 + drawn(wide, seed=2) / 4
        self.weight = drawn((heads + 2 * kv) * dim, wide, seed=3) / wide**0.5
        self.keys, self.values = (torch.full((slots, kv, ROWS, dim), POISON) for _ in range(2))

    def run(self, **options: Any) -> Tensor:
        return qkv.project(
            self.x, self.norm, EPS, self.weight, (self.rope.cos, self.rope.sin), self.window,
            self.keys, self.values, **options,
        )  # fmt: skip

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, W, heads, D], rotated as complex numbers."""
        x = self.x.double()
        normed = x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * self.norm.double()
        y = (normed @ self.weight.double().T).unflatten(-1, (-1, self.dim))
        q, k, v = torch.split(y, [self.heads, self.kv, self.kv], dim=2)
        half = self.dim // 2
        rate = 1e4 ** (-torch.arange(half).double() / half)
        turn = torch.polar(torch.ones(()).double(), self.window.positions[..., None] * rate)

        def turned(t: Tensor) -> Tensor:
            out = torch.complex(t[..., :half], t[..., half:]) * turn[:, :, None]
            return torch.cat([out.real, out.imag], dim=-1)

        return turned(q), turned(k), v

    def check_caches(self, keys: Tensor, values: Tensor) -> None:
        """The window's rows are there, and everything else is as it was."""
        for cache, expected in ((self.keys, keys), (self.values, values)):
            untouched = torch.ones(cache.shape[0], ROWS, dtype=torch.bool)
            for lane, slot in enumerate(self.window.lanes.slots):
                at = self.window.rows[lane]
                require_near(cache[slot, :, at].transpose(0, 1), expected[lane], 1e-5)
                untouched[slot, at] = False
            assert bool(cache.transpose(1, 2)[untouched].isnan().all())


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("cut", [None, Cut(4, 4, 2), Cut(16, 4, 4)])
@pytest.mark.parametrize(
    ("heads", "kv", "dim", "wide"), [(4, 2, 8, 32), (9, 3, 64, 72), (3, 3, 16, 40), (4, 1, 128, 16)]
)
def test_queries_are_turned_and_keys_and_values_written(
    heads: int, kv: int, dim: int, wide: int, cut: Cut | None
) -> None:
    made = Setting(window_on((5, 0, 31), 3, context=CONTEXT), heads, kv, dim, wide)
    q, keys, values = made.expected()

    require_near(made.run(cut=cut), q, 1e-5)
    made.check_caches(keys, values)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("shift", [0, -1, 4])
def test_idle_lanes_and_rows_before_the_sequence_go_to_scratch(width: int, shift: int) -> None:
    window = window_on((0, 7, 9, CONTEXT), width, context=CONTEXT, shift=shift, idle=(2,))
    made = Setting(window, 2, 1, 8, 24)
    _, keys, values = made.expected()
    made.run()

    assert (window.rows[2] >= CONTEXT + SCRATCH_ROWS).all()
    assert (shift < 0) == bool((window.rows[0] >= CONTEXT + SCRATCH_ROWS).any())
    made.check_caches(keys, values)


def test_prefilling_lanes_write_though_they_do_not_run() -> None:
    window = window_on((0, 6), 20, context=CONTEXT, idle=(0, 1), prefilling=True)
    made = Setting(window, 2, 1, 8, 24)
    q, keys, values = made.expected()

    require_near(made.run(), q, 1e-5)
    made.check_caches(keys, values)


@pytest.mark.usefixtures("poison")
def test_keys_and_values_alone_are_those_written_with_queries() -> None:
    window = window_on((5, 8), 4, context=CONTEXT, shift=-1)
    both, alone = Setting(window, 4, 2, 16, 40), Setting(window, 4, 2, 16, 40)
    both.run()

    assert (2, 4, 0, 16) == alone.run(queries=False).shape
    assert torch.equal(both.keys.nan_to_num(7), alone.keys.nan_to_num(7))
    assert torch.equal(both.values.nan_to_num(7), alone.values.nan_to_num(7))


def test_a_row_is_the_same_to_the_bit_at_every_width() -> None:
    wide = Setting(window_on((11,), 8, context=CONTEXT), 3, 1, 16, 48)
    whole = wide.run()
    for width in (1, 2, 5):
        narrow = Setting(window_on((11,), width, context=CONTEXT), 3, 1, 16, 48)
        narrow.x = wide.x[:, :width]

        assert torch.equal(whole[:, :width], narrow.run())
        assert torch.equal(wide.keys[1, :, 11 : 11 + width], narrow.keys[1, :, 11 : 11 + width])
