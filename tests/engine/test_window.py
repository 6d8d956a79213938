"""Windows on lanes: one law of positions and rows, as tensors for torch."""

from __future__ import annotations

import torch

from flarechat.engine.layers.rope import Rope
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.engine.window import Window

CPU, CONTEXT = torch.device("cpu"), 12
SPARE = CONTEXT + SCRATCH_ROWS


def lanes(*, prefilling: bool = False) -> Lanes:
    """Slot 2 has consumed 5 and runs, slot 0 none and runs, slot 1 has consumed 7 and is idle."""
    pool = SlotPool(3, CONTEXT, 4, CPU)
    pool.consumed.copy_(torch.tensor([0, 7, 5]))
    for slot in (0, 2):
        pool.start(slot)
    return Lanes(pool, (2, 0, 1), prefilling=prefilling)


def test_rows_stand_behind_the_consumed_tokens() -> None:
    window = Window(lanes(), 3)

    assert [[5, 6, 7], [0, 1, 2], [7, 8, 9]] == window.positions.tolist()
    assert [[5, 6, 7], [0, 1, 2], [SPARE, SPARE + 1, SPARE + 2]] == window.rows.tolist()
    assert SPARE == window.spare


def test_a_shifted_window_has_scratch_for_what_stands_before_the_sequence() -> None:
    window = Window(lanes(), 2, -1)

    assert [[4, 5], [0, 0], [6, 7]] == window.positions.tolist()
    assert [[4, 5], [SPARE, 0], [SPARE, SPARE + 1]] == window.rows.tolist()


def test_prefilling_lanes_write_their_own_rows() -> None:
    assert [[5, 6], [0, 1], [7, 8]] == Window(lanes(prefilling=True), 2).rows.tolist()


def test_a_row_sees_rows_up_to_its_own_for_every_head_of_its_group() -> None:
    mask = Window(lanes(), 2).mask(8, 3)

    assert (3, 6, 8) == mask.shape
    assert [6, 7] * 3 == mask[0].sum(-1).tolist()
    assert [1, 2] * 3 == mask[1].sum(-1).tolist()
    assert bool(mask[0, 0, :6].all())


def test_tensors_are_made_once_and_only_for_those_who_ask() -> None:
    window, rope = Window(lanes(), 2), Rope(4, CONTEXT + 2 * SCRATCH_ROWS, 1e4, None, CPU)

    assert "positions" not in vars(window)
    assert window.mask(8, 3) is window.mask(8, 3) is not window.mask(8, 2)
    assert window.angles(rope) is window.angles(rope)
    assert window.rows is window.rows
    assert torch.equal(rope.at(window.positions)[0], window.angles(rope)[0])
