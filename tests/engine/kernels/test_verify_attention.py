"""Split attention against plain float64, in Triton's interpreter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flarechat.engine.kernels import verify_attention
from flarechat.engine.kernels.verify_attention import Split, attend, layout
from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.window import Window
from tests.engine.kernels.slots import CPU, drawn, poison, require_near, window_on

CONTEXT = 200
ROWS = CONTEXT + 2 * SCRATCH_ROWS
__all__ = ["poison"]


def caches(window: Window, kv: int, dim: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Keys and values; rows that no row of a running lane may see are poison."""
    slots = window.lanes.pool.slots
    made = drawn(slots, kv, rows, dim, seed=1), drawn(slots, kv, rows, dim, seed=2)
    for lane, slot in enumerate(window.lanes.slots):
        seen = int(window.positions[lane].max()) + 1
        for cache in made:
            cache[slot, :, seen:] = float("nan")
    return made


def reference(q: Tensor, keys: Tensor, values: Tensor, window: Window) -> Tensor:
    """Row by row, head by head."""
    batch, width, heads, dim = q.shape
    group, out = heads // keys.shape[1], torch.zeros(batch, width, heads, dim).double()
    for lane, slot in enumerate(window.lanes.slots):
        for w in range(width):
            seen = int(window.positions[lane, w]) + 1
            for head in range(heads):
                k, v = (t[slot, head // group, :seen].double() for t in (keys, values))
                share = (k @ q[lane, w, head].double() / math.sqrt(dim)).softmax(0)
                out[lane, w, head] = share @ v
    return out.flatten(2)


def check(
    window: Window, heads: int, kv: int, dim: int, split: Split | None = None, rows: int = ROWS
) -> Tensor:
    keys, values = caches(window, kv, dim, rows)
    q = 2 * drawn(len(window.lanes), window.width, heads, dim, seed=3)
    out = attend(q, keys, values, window, split)

    require_near(out, reference(q, keys, values, window))
    assert not verify_attention.counters(CPU, 1).any()
    return out


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize(("heads", "kv"), [(3, 3), (9, 3), (4, 1)])
def test_every_width_and_group(width: int, heads: int, kv: int) -> None:
    check(window_on((5, 70), width, context=CONTEXT), heads, kv, 16)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(
    ("heads", "kv", "dim"),
    [(4, 2, 8), (6, 2, 24), (9, 3, 64), (8, 2, 96), (8, 2, 128), (4, 1, 256), (12, 1, 256)],
)
def test_every_head_size(heads: int, kv: int, dim: int) -> None:
    check(window_on((66, 0, 30), 2, context=CONTEXT), heads, kv, dim)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("dim", [8, 24, 96])
def test_heads_of_any_size_see_a_prompt(dim: int) -> None:
    check(window_on((66,), 20, context=CONTEXT), 4, 2, dim)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("split", [Split(), Split(32, 2, merged=1), Split(16, 1, merged=3)])
@pytest.mark.parametrize("consumed", [0, 1, 14, 15, 16, 31, 62, 63, 64, 65, 126, 127, 128, 191])
def test_lengths_on_both_sides_of_every_boundary(consumed: int, split: Split) -> None:
    check(window_on((consumed, 3), 2, context=CONTEXT), 4, 2, 16, split)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("width", [9, 20, 70])
def test_wide_windows_of_prompts(width: int) -> None:
    window = window_on((60, 0), width, context=CONTEXT, idle=(0, 1), prefilling=True)
    check(window, 6, 2, 16)


@pytest.mark.usefixtures("poison")
def test_more_blocks_than_splits_are_shared_out() -> None:
    rows = 16 * 2 * verify_attention._MOST_SPLITS
    check(window_on((rows - 40,), 1, context=rows - 16), 2, 1, 16, Split(16), rows)


@pytest.mark.usefixtures("poison")
def test_rows_before_the_sequence_see_the_first_key_alone() -> None:
    check(window_on((0, 9), 2, context=CONTEXT, shift=-1), 2, 1, 16)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("consumed", [0, 199, CONTEXT + SCRATCH_ROWS, 10**6])
def test_lanes_at_rest_may_stand_anywhere_and_disturb_nobody(consumed: int) -> None:
    window = window_on((9, consumed), 3, context=CONTEXT, idle=(1,))
    alone = window_on((9,), 3, context=CONTEXT, slots=3)
    keys, values = drawn(3, 1, ROWS, 16, seed=1), drawn(3, 1, ROWS, 16, seed=2)
    q = drawn(2, 3, 2, 16, seed=3)
    out = attend(q, keys, values, window)

    assert bool(out.isfinite().all())
    assert torch.equal(attend(q[:1], keys, values, alone), out[:1])


@pytest.mark.parametrize("consumed", [3, 60, 63, 127])
def test_a_row_is_the_same_to_the_bit_at_every_width_and_beside_any_lane(consumed: int) -> None:
    whole = window_on((consumed, 11), 8, context=CONTEXT)
    keys, values = drawn(3, 2, ROWS, 16, seed=1), drawn(3, 2, ROWS, 16, seed=2)
    q = drawn(2, 8, 6, 16, seed=3)
    out = attend(q, keys, values, whole)
    for width in (1, 2, 4, 7):
        narrow = window_on((consumed,), width, context=CONTEXT, slots=3)

        assert torch.equal(out[:1, :width], attend(q[:1, :width], keys, values, narrow))


@pytest.mark.parametrize(("group", "dim"), [(1, 64), (3, 64), (4, 128), (12, 256)])
def test_rounds_are_cut_alike_at_every_width(group: int, dim: int) -> None:
    cuts = {layout(group, dim, 8208, width, 2, Split()) for width in range(1, 9)}

    assert 1 == len(cuts)


def test_a_prompts_rows_and_a_rounds_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, values = drawn(2, 1, ROWS, 16, seed=1), drawn(2, 1, ROWS, 16, seed=2)
    q = drawn(1, 8, 3, 16, seed=3)
    out = attend(q, keys, values, window_on((90,), 8, context=CONTEXT))
    monkeypatch.setattr(verify_attention, "ROUND", 4)

    require_near(attend(q, keys, values, window_on((90,), 8, context=CONTEXT)), out)


def test_more_tiles_than_counters_are_refused() -> None:
    with pytest.raises(ValueError, match="counts 65536"):
        verify_attention.counters(CPU, 65537)
