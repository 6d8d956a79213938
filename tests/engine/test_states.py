"""The states of slots: what can be kept of them, and copies that are written back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from flarechat.engine.plan import Plan
from flarechat.engine.residents import Residents
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.engine.state.hidden import HiddenState, TailState
from flarechat.engine.state.kv import KVState
from flarechat.engine.state.views import beginning, join
from tests.engine.tiny import CPU

SLOTS, CONTEXT, DIM = 3, 24, 6
F32 = torch.float32
STATES: dict[str, Any] = {
    "keys and values": lambda: KVState(2, SLOTS, CONTEXT, 2, DIM, F32, CPU),
    "hidden rows": lambda: HiddenState(SLOTS, CONTEXT, DIM, F32, CPU),
    "tail": lambda: TailState(SLOTS, DIM, F32, CPU),
}


def fill(state: Any, seed: int) -> None:
    torch.manual_seed(seed)
    for tensor in state.tensors().values():
        tensor.copy_(torch.randn_like(tensor))


@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
@pytest.mark.parametrize("rows", [1, 7, CONTEXT])
def test_a_snapshot_comes_back_into_another_slot(make: Any, rows: int) -> None:
    state = make()
    fill(state, 1)
    saved = state.snapshot(0, rows)
    before = {name: t.clone() for name, t in state.tensors().items()}
    addresses = [t.data_ptr() for t in state.tensors().values()]
    fill(state, 2)
    others = {name: t.clone() for name, t in state.tensors().items()}
    state.restore(2, rows, saved)
    again = state.snapshot(2, rows)

    assert addresses == [t.data_ptr() for t in state.tensors().values()]
    assert set(saved) == set(again)
    for name, value in saved.items():
        assert torch.equal(value, again[name])
    for name, own in state.tensors().items():
        assert torch.equal(others[name][:2], own[:2])
        assert not torch.equal(before[name][0], own[0])


@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
def test_a_snapshot_is_a_copy_of_no_more_than_the_rows(make: Any) -> None:
    state = make()
    fill(state, 1)
    saved = {name: t.clone() for name, t in state.snapshot(1, 5).items()}
    kept = state.snapshot(1, 5)
    for tensor in state.tensors().values():
        tensor.zero_()

    assert all(torch.equal(saved[name], t) for name, t in kept.items())
    assert sum(t.nbytes for t in saved.values()) * SLOTS * (CONTEXT + 16) <= max(
        5 * state.nbytes, state.nbytes * (CONTEXT + 16)
    )


@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
@pytest.mark.parametrize("rows", [1, 7, CONTEXT])
def test_a_copied_slot_is_what_a_snapshot_of_the_other_gives_it(make: Any, rows: int) -> None:
    state, other = make(), make()
    fill(state, 1)
    fill(other, 1)
    state.copy(0, 2, rows)
    other.restore(2, rows, other.snapshot(0, rows))

    for name, value in state.tensors().items():
        assert torch.equal(other.tensors()[name], value)
    assert all(
        torch.equal(v, state.snapshot(2, rows)[n]) for n, v in state.snapshot(0, rows).items()
    )


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("cuts", [[0, 9], [0, 1, 9], [0, 4, 4, 5, 9]])
def test_rows_saved_in_parts_are_joined_as_they_lay(behind: int, cuts: list[int]) -> None:
    state = KVState(2, SLOTS, CONTEXT, 2, DIM, F32, CPU, behind)
    fill(state, 1)
    before = state.pairs.clone()
    # Each part is saved with two tokens more than are wanted of it.
    saved = [state.by_token(0, a, b + 2) for a, b in pairwise(cuts)]
    saved = [{name: view.clone() for name, view in part.items()} for part in saved]
    wanted = [state.by_token(2, a, b) for a, b in pairwise(cuts)]
    join(state.by_token(2, 0, 9), [beginning(*two) for two in zip(wanted, saved, strict=True)])
    rows = 9 - behind

    assert torch.equal(before[:, 0, :, :rows], state.pairs[:, 2, :, :rows])
    assert torch.equal(before[:, 2, :, rows:], state.pairs[:, 2, :, rows:])
    assert torch.equal(before[:, :2], state.pairs[:, :2])


def test_a_tail_is_kept_whole_or_not_at_all() -> None:
    tail, rows = STATES["tail"](), STATES["hidden rows"]()

    assert (9, 0, 0) == (tail.reusable(9, 9), tail.reusable(9, 8), tail.reusable(9, 0))
    assert (9, 8, 0) == (rows.reusable(9, 9), rows.reusable(9, 8), rows.reusable(9, 0))


def test_a_tail_takes_the_row_of_the_last_emitted_token_of_each_lane() -> None:
    pool, tail = SlotPool(SLOTS, CONTEXT, 8, CPU), STATES["tail"]()
    fill(tail, 1)
    before = tail.rows.clone()
    hidden = torch.randn(3, 4, DIM)
    lanes = Lanes(pool, (2, 0, 1))
    tail.store(lanes, hidden, torch.tensor([4, 0, 2]), Plan(3, CONTEXT))

    assert torch.equal(hidden[0, 3], tail.rows[2])
    assert torch.equal(before[0], tail.rows[0])
    assert torch.equal(hidden[2, 1], tail.rows[1])
    assert torch.equal(tail.rows[[2, 0, 1]][:, None], tail.last(lanes))


def test_hidden_rows_are_those_of_the_consumed_tokens() -> None:
    pool, state = SlotPool(SLOTS, CONTEXT, 8, CPU), STATES["hidden rows"]()
    lanes = Lanes(pool, (1,), prefilling=True)
    hidden = torch.randn(1, 4, DIM)
    pool.consumed[1] = 5
    state.store(lanes, hidden, torch.tensor([2]), Plan(3, CONTEXT))
    pool.consumed[1] = 7

    assert torch.equal(hidden[0], state.rows[1, 5:9])
    assert torch.equal(hidden[:, 1:2], state.last(lanes))


def test_a_slot_whose_state_can_only_be_kept_whole_is_not_worth_a_shared_prefix() -> None:
    residents = Residents(2, lambda held, rows: rows if rows == held else 0)
    residents.hold(0, [1, 2, 3, 4, 5, 6, 7, 8])
    residents.hold(1, [1, 2, 3])

    assert (1, 3) == residents.claim([0, 1], [1, 2, 3, 4, 5, 6, 9, 9])
    assert (0, 8) == residents.claim([0, 1], [1, 2, 3, 4, 5, 6, 7, 8, 0])
