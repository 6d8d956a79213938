"""MLP blocks, and the parts of blocks that are seen best by themselves."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor

from flarechat.engine.kernels.cpu.library import INSTRUCTIONS, Library
from flarechat.engine.layers.linear import DenseLinear
from flarechat.engine.layers.mlp import MLP
from flarechat.engine.layers.norm import RMSNorm
from flarechat.engine.weights import tiles
from tests.engine.kernels.cpu.blocks import CONTEXT, EPS, AttentionCase, MlpCase, matrix, take
from tests.engine.kernels.slots import drawn, require_near, window_on

every_set = pytest.mark.parametrize("instructions", INSTRUCTIONS)


@every_set
@pytest.mark.parametrize(
    "kind, hidden, inner",
    [("bf16", 64, 160), ("bf16", 50, 37), ("q4_0", 64, 160), ("q4_1", 96, 352), ("q8_0", 64, 32)],
)
def test_a_block_is_near_float64(
    kernels: Library, instructions: str, kind: str, hidden: int, inner: int
) -> None:
    take(kernels, instructions)
    case, x = MlpCase(hidden, inner, kind), drawn(11, hidden, seed=3)

    require_near(case.block(kernels, x) - x, case.reference(x) - x)


def test_a_block_agrees_with_the_layer_of_other_dtypes(kernels: Library) -> None:
    case, x = MlpCase(), drawn(5, 64, seed=4)
    gate, up, down = (w.decode().double() for w in case.weights)
    layer = MLP(DenseLinear(torch.cat([gate, up])), DenseLinear(down))
    normed = RMSNorm(case.norm.double(), EPS)(x.double())

    require_near(case.block(kernels, x), x + layer(normed))


@pytest.mark.parametrize("kind", ["bf16", "q4_1"])
def test_sets_threads_and_widths_say_the_same(kernels: Library, kind: str) -> None:
    case, x = MlpCase(96, 352, kind), drawn(41, 96, seed=5)
    assert kernels.use("portable")
    expected = case.block(kernels, x)
    for instructions in INSTRUCTIONS:
        for threads in (1, 2, 3):
            kernels.set_threads(threads)
            for width in (1, 2, 3, 5, 8, 9, 41) if kernels.use(instructions) else ():
                parts = [case.block(kernels, part.contiguous()) for part in x.split(width)]
                assert torch.equal(torch.cat(parts), expected)


@every_set
def test_large_gates_neither_overflow_nor_vanish(kernels: Library, instructions: str) -> None:
    take(kernels, instructions)
    case, x = MlpCase(scale=200.0), drawn(9, 64, seed=6)
    y = case.block(kernels, x)

    require_near(y, case.reference(x))
    assert bool(y.isfinite().all())


def test_the_output_may_lie_where_the_rows_lie(kernels: Library) -> None:
    case, x = MlpCase(kind="q8_0"), drawn(10, 64, seed=7)
    y = case.block(kernels, x)
    case.block(kernels, x, into=x)

    assert torch.equal(x, y)


@every_set
@pytest.mark.parametrize("head_dim", [64, 22])
def test_values_are_rounded_to_float16_as_torch_rounds(
    kernels: Library, instructions: str, head_dim: int
) -> None:
    take(kernels, instructions)
    case = AttentionCase(3, 3, head_dim)
    scales = torch.logspace(-30, 20, 3 * head_dim, base=2)[torch.randperm(3 * head_dim)]
    case.weights[2] = tiles.from_bfloat16((case.weights[2].decode() * scales[:, None]).bfloat16())
    x, floats = drawn(1, 7, 64, seed=8), torch.empty(7, 3 * head_dim)
    weight = matrix(case.weights[2])
    kernels.linear(
        ctypes.addressof(weight), case.norm.data_ptr(), EPS, 7, x.data_ptr(), floats.data_ptr()
    )
    case.write(kernels, window_on([20], 7, context=CONTEXT, slots=2), x)

    expected = floats.half().view(7, 3, head_dim).transpose(0, 1)
    assert bool((expected.abs() < 2**-14).any()) and bool(expected.isinf().any())
    assert bits(case.values[1, :, 20:27]).equal(bits(expected))


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int16)
