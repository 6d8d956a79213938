"""Attention blocks: near float64, and the same bits whatever a row travels with, for every
instruction set. The cache is compared, not only what comes out."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from flarechat.engine.kernels.cpu.library import INSTRUCTIONS, Library
from flarechat.engine.layers.attention import Attention
from flarechat.engine.layers.linear import DenseLinear
from flarechat.engine.layers.norm import RMSNorm
from flarechat.engine.state.kv import KVState
from flarechat.engine.window import Window
from tests.engine.kernels.cpu.blocks import CONTEXT, EPS, AttentionCase, pieces, take
from tests.engine.kernels.slots import CPU, drawn, require_near, window_on

# heads, kv_heads, head_dim: the default model's, no whole vectors, no group, a wide one, the widest
SHAPES = ((9, 3, 64), (6, 2, 10), (3, 3, 24), (9, 1, 8), (2, 1, 256), (4, 2, 98))
every_set = pytest.mark.parametrize("instructions", INSTRUCTIONS)


def played(
    case: AttentionCase, kernels: Library, window: Window, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, keys and values that a block makes of x and of a copy of the case's cache."""
    own = case.copy()
    y = own.block(kernels, window, x)
    return y, own.keys, own.values


def require_same(own: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """To the bit."""
    for a, b in zip(own, theirs, strict=True):
        bits = torch.int32 if a.dtype == torch.float32 else torch.int16
        assert torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


def in_pieces(
    case: AttentionCase, kernels: Library, begin: int, x: Tensor, widths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """As `played`, of rows x [1, T, hidden] from `begin` on, in windows of these widths in turn."""
    own, made = case.copy(), []
    for at, width in pieces(x.shape[1], widths):
        window = window_on([begin + at], width, context=CONTEXT, slots=case.slots)
        made.append(own.block(kernels, window, x[:, at : at + width]))
    return torch.cat(made, dim=1), own.keys, own.values


@every_set
@pytest.mark.parametrize("heads, kv_heads, head_dim", SHAPES)
def test_a_block_is_near_float64(
    kernels: Library, instructions: str, heads: int, kv_heads: int, head_dim: int
) -> None:
    take(kernels, instructions)
    case = AttentionCase(heads, kv_heads, head_dim, slots=3)
    window, x = window_on([130, 61], 5, context=CONTEXT), drawn(2, 5, 64, seed=3)
    before = case.copy()
    y, case.keys, case.values = played(case, kernels, window, x)

    require_near(y - x, case.reference(window, x) - x)
    require_written(case, before, window, x)


def require_written(case: AttentionCase, before: AttentionCase, window: Window, x: Tensor) -> None:
    """The window's rows hold the keys and values of x, all others what they held before."""
    projected = case.projected(window, x)[1:]
    for cache, old, floats in zip(
        (case.keys, case.values), (before.keys, before.values), projected, strict=True
    ):
        expected = old.clone()
        for lane, slot in enumerate(window.lanes.slots):
            at = window.rows[lane]
            written = cache[slot, :, at]
            torch.testing.assert_close(
                written.double(), floats[lane].transpose(0, 1), atol=1e-6, rtol=2**-11 + 1e-5
            )
            expected[slot, :, at] = written
        require_same([cache], [expected])


@every_set
@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
def test_a_block_of_quantised_weights_is_near_float64(
    kernels: Library, instructions: str, kind: str
) -> None:
    take(kernels, instructions)
    case = AttentionCase(kind=kind, slots=3)
    window, x = window_on([130, 61], 5, context=CONTEXT), drawn(2, 5, 64, seed=3)
    y, case.keys, case.values = played(case, kernels, window, x)
    expected = case.reference(window, x) - x

    # An activation half way between two codes may take either, in a few rows.
    require_near(y - x, expected, 2e-3)
    apart = (y - x - expected).abs().amax(-1) > 2e-6 * expected.abs().max()
    assert int(apart.sum()) <= 3


def test_a_block_agrees_with_the_layers_of_other_dtypes(kernels: Library) -> None:
    case = AttentionCase(slots=2)
    case.keys.zero_(), case.values.zero_()
    x = drawn(1, 80, 64, seed=5)
    layer = Attention(
        DenseLinear(torch.cat([w.decode().double() for w in case.weights[:3]])),
        DenseLinear(case.weights[3].decode().double()), case.rope, 9, 3, 64,
    )  # fmt: skip
    cache = KVState(1, 2, CONTEXT, 3, 64, torch.float64, CPU)
    norm = RMSNorm(case.norm.double(), EPS)
    case.rope.cos, case.rope.sin = case.rope.cos.double(), case.rope.sin.double()
    expected = []
    for at, width in pieces(80, [70, 10]):
        rows = x[:, at : at + width].double()
        window = window_on([at], width, context=CONTEXT, slots=2)
        expected.append(rows + layer(norm(rows), cache, 0, window, at + width))
    case.rope.cos, case.rope.sin = case.rope.cos.float(), case.rope.sin.float()
    y, keys, values = in_pieces(case, kernels, 0, x, [70, 10])

    require_near(y, torch.cat(expected, dim=1), 5e-4)  # the cache's float16
    for own, theirs in ((keys, cache.keys[0]), (values, cache.values[0])):
        require_near(own[1, :, :80], theirs[1, :, :80], 5e-4)


@every_set
@pytest.mark.parametrize("kind", ["bf16", "q4_1"])
def test_a_row_says_the_same_at_every_width(kernels: Library, instructions: str, kind: str) -> None:
    take(kernels, instructions)
    case, x = AttentionCase(kind=kind), drawn(1, 24, 64, seed=6)
    alone = in_pieces(case, kernels, 118, x, [1])

    for width in range(2, 9):
        require_same(in_pieces(case, kernels, 118, x, [width]), alone)


@every_set
@pytest.mark.parametrize("heads, kv_heads", [(3, 1), (2, 2), (8, 1)])
def test_a_prompt_says_the_same_in_pieces(
    kernels: Library, instructions: str, heads: int, kv_heads: int
) -> None:
    take(kernels, instructions)
    length = 70 if instructions == "portable" else 210
    case, x = AttentionCase(heads, kv_heads, 32), drawn(1, length, 64, seed=7)
    whole = played(case, kernels, window_on([3], length, context=CONTEXT, slots=2), x)

    require_same(in_pieces(case, kernels, 3, x, [1, 64, 17, 50]), whole)


def test_sets_and_threads_say_the_same(kernels: Library) -> None:
    x, window = drawn(2, 6, 64, seed=8), window_on([125, 250], 6, context=CONTEXT, slots=2)
    for heads, kv_heads, head_dim in SHAPES:
        case = AttentionCase(heads, kv_heads, head_dim)
        assert kernels.use("portable")
        expected = played(case, kernels, window, x)
        for instructions in INSTRUCTIONS[1:]:
            for threads in (1, 2, 3):
                kernels.set_threads(threads)
                if kernels.use(instructions):
                    require_same(played(case, kernels, window, x), expected)
        kernels.set_threads(1)


@pytest.mark.parametrize("threads", [2, 3])
def test_a_prompt_says_the_same_on_any_number_of_threads(kernels: Library, threads: int) -> None:
    case, x = AttentionCase(kind="q8_0"), drawn(1, 200, 64, seed=7)
    window = window_on([40], 200, context=CONTEXT, slots=2)
    alone = played(case, kernels, window, x)
    kernels.set_threads(threads)

    for _ in range(5):
        require_same(played(case, kernels, window, x), alone)


@pytest.mark.parametrize("width", [1, 4, 30])
def test_lanes_say_together_what_each_says_alone(kernels: Library, width: int) -> None:
    case, consumed = AttentionCase(slots=5), [5, 140, 63, 200]
    x = drawn(4, width, 64, seed=9)
    y, keys, values = played(case, kernels, window_on(consumed, width, context=CONTEXT), x)

    own = case.copy()
    for lane in range(4):
        # A pool of as many slots as put this lane in its own.
        window = window_on([consumed[lane]], width, context=CONTEXT, slots=5 - lane)
        require_same([own.block(kernels, window, x[lane : lane + 1])[0]], [y[lane]])
    require_same([own.keys, own.values], [keys, values])


@pytest.mark.parametrize(
    "shift, idle, prefilling",
    [(-1, (), False), (-3, (), True), (0, (1,), False), (2, (), False), (0, (1,), True)],
)
def test_windows_place_rows_as_torch_does(
    kernels: Library, shift: int, idle: Collection[int], prefilling: bool
) -> None:
    case = AttentionCase(slots=4)
    window = window_on(
        [0, 66, 130], 4, context=CONTEXT, shift=shift, idle=idle, prefilling=prefilling
    )
    x, before = drawn(3, 4, 64, seed=10), case.copy()
    y, case.keys, case.values = played(case, kernels, window, x)

    require_written(case, before, window, x)
    require_near(y, case.reference(window, x))
    written = before.copy()
    written.write(kernels, window, x)
    require_same([written.keys, written.values], [case.keys, case.values])


@every_set
def test_what_is_not_seen_does_not_matter(kernels: Library, instructions: str) -> None:
    take(kernels, instructions)
    case, x = AttentionCase(), drawn(1, 6, 64, seed=11)
    window = window_on([61], 6, context=CONTEXT, slots=2)
    y, _, _ = played(case, kernels, window, x)
    spoilt = case.copy()
    for cache in (spoilt.keys, spoilt.values):
        cache[1, :, 67:] = math.nan
        cache[0] = math.inf
    x = x.clone()
    x[:, 4:] = math.nan

    require_same([spoilt.block(kernels, window, x)[:, :4]], [y[:, :4]])


@every_set
def test_a_long_context_is_near_float64(kernels: Library, instructions: str) -> None:
    take(kernels, instructions)
    case = AttentionCase(4, 1, 8, rows=9000)
    x = drawn(1, 2, 64, seed=12)
    window = window_on([8191], 2, context=8980, slots=2)
    y, case.keys, case.values = played(case, kernels, window, x)

    require_near(y - x, case.reference(window, x) - x, 1e-5)


@every_set
def test_large_scores_stay_finite(kernels: Library, instructions: str) -> None:
    take(kernels, instructions)
    case, x = AttentionCase(3, 1, 16, scale=60.0), drawn(1, 5, 64, seed=13)
    window = window_on([70], 5, context=CONTEXT, slots=2)
    y, case.keys, case.values = played(case, kernels, window, x)

    scores = case.projected(window, x)[0].abs().max() * case.keys[1].double().abs().max()
    assert scores > 1e3
    require_near(y, case.reference(window, x), 1e-3)


def test_the_output_may_lie_where_the_rows_lie(kernels: Library) -> None:
    case, x = AttentionCase(kind="q4_1"), drawn(1, 3, 64, seed=14)
    window = window_on([9], 3, context=CONTEXT, slots=2)
    y, _, _ = played(case, kernels, window, x)
    case.block(kernels, window, x, into=x)

    require_same([x], [y])


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kv_heads=st.integers(1, 3), group=st.integers(1, 9), half=st.integers(4, 20),
    begin=st.integers(0, 140), total=st.integers(1, 60),
    widths=st.lists(st.integers(1, 33), min_size=1, max_size=4),
)  # fmt: skip
def test_any_cut_of_rows_says_the_same(
    kernels: Library, kv_heads: int, group: int, half: int, begin: int, total: int,
    widths: list[int],
) -> None:  # fmt: skip
    case = AttentionCase(kv_heads * group, kv_heads, 2 * half, hidden=32)
    x = drawn(1, total, 32, seed=total)
    whole = played(case, kernels, window_on([begin], total, context=CONTEXT, slots=2), x)

    require_same(in_pieces(case, kernels, begin, x, widths), whole)
