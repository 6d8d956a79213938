"""Products with weights of very many outputs against plain float64, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flarechat.engine.kernels import interpreted
from flarechat.engine.kernels.tall import ROWS, block_for, normed_rows, suits, tall
from flarechat.engine.layers.linear import DenseLinear, multiply_normed
from flarechat.engine.layers.norm import RMSNorm
from tests.engine.kernels.slots import drawn, poison

__all__ = ["poison"]


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("rows", [1, 8, 17])
@pytest.mark.parametrize(("wide", "lines"), [(48, 200), (64, 96), (72, 130), (80, 33)])
def test_the_product_is_the_plain_one(rows: int, wide: int, lines: int) -> None:
    x, weight = drawn(1, rows, wide, seed=1), drawn(lines, wide, seed=2)

    found = tall(x, weight)

    torch.testing.assert_close(found.double(), x.double() @ weight.double().T, rtol=0, atol=2e-5)


@pytest.mark.usefixtures("poison")
def test_a_row_does_not_depend_on_the_rows_it_travels_with() -> None:
    x, weight = drawn(1, 20, 48, seed=1), drawn(200, 48, seed=2)
    assert block_for(len(weight), 1) == block_for(len(weight), 20)

    together = tall(x, weight)

    # At its own place, as the interpreter's products round by place; a GPU's do not.
    for row in (0, 7, 15, 16, 19):
        others = drawn(1, row + 1, 48, seed=3)
        others[:, row] = x[:, row]
        assert torch.equal(tall(others, weight)[0, row], together[0, row])


def test_small_tiles_are_taken_where_rows_read_the_weight_again() -> None:
    assert [block_for(49152, rows) for rows in (1, ROWS, ROWS + 1)] == [64, 64, 32]
    assert block_for(8192, 1) == 32


@pytest.mark.usefixtures("poison")
def test_rows_are_normalised_one_by_one() -> None:
    x, norm = drawn(2, 3, 72, seed=1), drawn(72, seed=2)

    torch.testing.assert_close(normed_rows(x, norm, 1e-5), F.rms_norm(x, (72,), norm, 1e-5))


@pytest.mark.usefixtures("poison")
def test_a_head_of_many_outputs_goes_here_and_comes_to_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, norm = drawn(1, 3, 48, seed=1), RMSNorm(drawn(48, seed=2), 1e-5)
    product = DenseLinear(drawn(130, 48, seed=3))
    expected = multiply_normed(x, norm, product)
    monkeypatch.setattr("flarechat.engine.kernels.tall.suits", lambda weight: True)

    with interpreted():
        found = multiply_normed(x, norm, product)

    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_short_lines_of_sixteen_bits_suit_it() -> None:
    half = torch.empty(4096, 576, dtype=torch.bfloat16)
    assert suits(half)
    assert not suits(half.float())
    assert not suits(half[:4000])
    assert not suits(torch.empty(4096, 2048, dtype=torch.bfloat16))
