"""Look-ups against plain indexing, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from flarechat.engine.kernels import lookups
from flarechat.engine.slot import SCRATCH_ROWS
from tests.engine.kernels.slots import drawn, poison, require_near, window_on

CONTEXT = 20
ROWS = CONTEXT + 2 * SCRATCH_ROWS
__all__ = ["poison"]


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("dim", [7, 64, 1025])
def test_tokens_take_their_rows(dim: int) -> None:
    table, tokens = drawn(11, dim, seed=1), torch.tensor([[3, 10, 0], [3, 7, 1]])

    assert torch.equal(table[tokens], lookups.embed(tokens, table))
    assert torch.equal(table[tokens[:, 1:]], lookups.embed(tokens[:, 1:], table))


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("dim", [7, 64, 576])
def test_pairs_are_normalised_each_half_by_itself(dim: int) -> None:
    table, hidden = drawn(11, dim, seed=1), 9 * drawn(2, 3, dim, seed=2)
    norms, tokens = 1 + drawn(2, dim, seed=3) / 4, torch.tensor([[3, 10, 0], [3, 7, 1]])
    own = lookups.pair(hidden, norms[0], tokens, table, norms[1], 1e-5)
    halves = [
        x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm
        for x, norm in ((hidden, norms[0]), (table[tokens], norms[1]))
    ]

    require_near(own, torch.cat(halves, dim=-1))


@pytest.mark.parametrize(("prefilling", "shift"), [(False, 0), (True, 0), (False, -1)])
def test_hidden_rows_go_to_their_windows_rows_and_nowhere_else(
    prefilling: bool, shift: int
) -> None:
    window = window_on((0, 5, 12), 4, context=CONTEXT, shift=shift, idle=(2,),
                       prefilling=prefilling)  # fmt: skip
    rows, hidden = torch.full((4, ROWS, 9), float("nan")), drawn(3, 4, 9, seed=1)
    expected = rows.clone()
    for lane, slot in enumerate(window.lanes.slots):
        expected[slot, window.rows[lane]] = hidden[lane]
    lookups.store(rows, hidden, window)

    assert torch.equal(expected.nan_to_num(7), rows.nan_to_num(7))


@pytest.mark.usefixtures("poison")
def test_the_last_row_is_that_of_the_last_consumed_token_or_the_first() -> None:
    window = window_on((0, 5, 12), 1, context=CONTEXT, shift=-1, idle=(2,))
    rows = drawn(4, ROWS, 9, seed=1)

    assert torch.equal(rows[[3, 2, 1], [0, 4, 11]][:, None], lookups.last(rows, window))
