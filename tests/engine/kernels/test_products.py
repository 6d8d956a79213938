"""Products of few rows against plain float64, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.kernels import products
from flarechat.engine.kernels.products import Cut, cut_for, pieces, tiling
from tests.engine.kernels.slots import drawn, poison, require_near

EPS = 1e-5
CUTS = [None, Cut(8, 4, 1), Cut(16, 4, 2), Cut(32, 8, 8)]
# Rows, inputs, outputs: of every remainder that tiles leave, and one walked in steps.
SHAPES = [(1, 32, 48), (3, 48, 40), (17, 72, 33), (8, 576, 64), (5, 80, 16), (33, 24, 9)]
WALKED = (3, 4200, 20)

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor, Cut | None], Tensor]
KERNELS: dict[str, Kernel] = {
    "plain": lambda x, n, w, r, cut: products.plain(x, w, cut),
    "normed": lambda x, n, w, r, cut: products.normed(x, n, EPS, w, cut),
    "gated": lambda x, n, w, r, cut: products.gated(x, n, EPS, w, cut),
    "added": lambda x, n, w, r, cut: products.added(x, w, r, cut),
}
__all__ = ["poison"]


def inputs(kind: str, rows: int, wide: int, out: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, norm, weight and residual; rows grow, so that another row's norm would be seen."""
    lines = 2 * out if kind == "gated" else out
    x = drawn(1, rows, wide, seed=rows) * (1 + torch.arange(rows))[:, None]
    weight = drawn(lines, wide, seed=2) / wide**0.5
    return x, 1 + drawn(wide, seed=3) / 4, weight, drawn(1, rows, out, seed=4)


def reference(kind: str, x: Tensor, norm: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    x, norm, weight, residual = (t.double() for t in (x, norm, weight, residual))
    if kind in ("normed", "gated"):
        x = x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * norm
    y = x @ weight.T
    if kind == "gated":
        gate, up = y.chunk(2, dim=-1)
        return gate * torch.sigmoid(gate) * up
    return residual + y if kind == "added" else y


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_plain_arithmetic(
    kind: str, shape: tuple[int, int, int], cut: Cut | None
) -> None:
    given = inputs(kind, *shape)

    require_near(KERNELS[kind](*given, cut), reference(kind, *given))


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("kind", KERNELS)
def test_a_weight_too_long_to_hold_is_walked_along(kind: str) -> None:
    given = inputs(kind, *WALKED)

    assert not tiling(WALKED[1], WALKED[2], 4, cut_for(WALKED[2], WALKED[1]), pair=False)["HELD"]
    require_near(KERNELS[kind](*given, None), reference(kind, *given), 1e-5)


@pytest.mark.parametrize("kind", KERNELS)
def test_a_row_is_the_same_to_the_bit_whatever_travels_with_it(kind: str) -> None:
    x, norm, weight, residual = inputs(kind, 24, 72, 24)
    whole = KERNELS[kind](x, norm, weight, residual, None)

    for rows in (1, 3, 8, 17):
        some = KERNELS[kind](x[:, :rows], norm, weight, residual[:, :rows], None)
        assert torch.equal(whole[:, :rows], some)
    others = x.clone()
    others[:, 1:] = 100 * drawn(1, 23, 72, seed=9)
    assert torch.equal(whole[:, :1], KERNELS[kind](others, norm, weight, residual, None)[:, :1])


@pytest.mark.parametrize("kind", ["normed", "gated", "added"])
def test_what_torch_rounds_between_its_steps_is_rounded(kind: str) -> None:
    """In float16, against torch's own steps: most values are equal to the bit. (The interpreter
    cuts bfloat16 off where a GPU rounds.)"""
    x, norm, weight, residual = (t.half() for t in inputs(kind, 4, 64, 48))
    own = KERNELS[kind](x, norm, weight, residual, None)
    if kind == "added":
        theirs = residual + F.linear(x, weight)
    else:
        theirs = F.linear(F.rms_norm(x, norm.shape, norm, EPS), weight)
    if kind == "gated":
        gate, up = theirs.chunk(2, dim=-1)
        theirs = F.silu(gate) * up

    assert 0.97 < float((own == theirs).float().mean())
    require_near(own, theirs, 1e-3)


@pytest.mark.parametrize("wide", [16, 24, 32, 48, 72, 576, 640, 1152, 1536, 2880])
@pytest.mark.parametrize("split", [1, 4, 8])
def test_pieces_hold_all_inputs_and_can_be_split(wide: int, split: int) -> None:
    whole, rest, own = pieces(wide, split)

    assert wide <= whole + rest < 2 * max(wide, 16) + 16 * own
    for piece in (whole, rest):
        assert piece & (piece - 1) == 0
        assert piece == 0 or piece // own >= 16


def test_smollm2s_sizes_are_pieces_without_waste() -> None:
    assert (512, 64, 4) == pieces(576, 4)
    assert (1024, 512, 8) == pieces(1536, 8)
    assert (1024, 128, 8) == pieces(1152, 8)
