"""Products of quantised and bf16 tiles: right within what quantisation costs, and the same bits for
every instruction set, width and number of threads, those of the order written down in `tiles`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flarechat.engine.kernels.cpu.library import INSTRUCTIONS, Library, Matrix
from tests.engine.kernels.cpu import tiles
from tests.engine.kernels.cpu.tiles import BF16, KINDS, Q4_0, Q4_1, Q8_0, Floats, Weight

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64)
SHAPES = ((1, 32), (15, 64), (17, 96), (33, 160))


@pytest.fixture(params=INSTRUCTIONS)
def each_set(request: pytest.FixtureRequest, kernels: Library) -> Iterator[Library]:
    """The library with each instruction set of the machine in turn."""
    if not kernels.use(request.param):
        pytest.skip(f"this machine lacks {request.param}")
    yield kernels


def activations(rows: int, columns: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


@functools.cache
def example(kind: int, rows: int, columns: int, width: int) -> tuple[Weight, Floats, Floats]:
    """A weight, activations and their product in the written order."""
    weight, x = tiles.make(kind, rows, columns, seed=rows), activations(width, columns)
    return weight, x, tiles.product(weight, x)


def linear(
    library: Library, weight: Weight, x: Floats, norm: Floats | None = None, eps: float = 1e-5
) -> Floats:
    """The kernel's product; what it must not write is checked to be as it was."""
    matrix = Matrix(weight.data.ctypes.data, weight.kind, weight.rows, weight.columns)
    room = np.full(len(x) * weight.rows + 16, 7, np.float32)
    library.linear(
        ctypes.addressof(matrix), None if norm is None else norm.ctypes.data, eps, len(x),
        x.ctypes.data, room.ctypes.data,
    )  # fmt: skip
    assert (room[-16:] == 7).all()
    y: Floats = room[:-16].reshape(len(x), weight.rows)
    return y


def normalised(x: Floats, norm: Floats, eps: float) -> Floats:
    """Squares summed in 16 sums that are added in halves, as the kernel must."""
    sums = np.zeros((len(x), 16), np.float32)
    for column in range(x.shape[1]):
        one = x[:, column]
        sums[:, column % 16] = tiles.fused(one, one, sums[:, column % 16])
    for half in (8, 4, 2, 1):
        sums = sums[:, :half] + sums[:, half : 2 * half]
    mean = sums[:, 0] / np.float32(x.shape[1]) + np.float32(eps)
    y: Floats = x * (np.float32(1) / np.sqrt(mean))[:, None] * norm
    return y


def same(a: Floats, b: Floats) -> bool:
    """Equal to the bit, where every NaN is alike."""
    return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)).all())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_products_are_the_written_order_to_the_bit(
    each_set: Library, kind: int, rows: int, columns: int
) -> None:
    weight, x, expected = example(kind, rows, columns, max(WIDTHS))

    for threads in (1, 2, 3):
        each_set.set_threads(threads)
        for width in WIDTHS:
            assert same(expected[:width], linear(each_set, weight, x[:width]))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_product_of_hundreds_of_rows_is_the_written_order(each_set: Library, kind: int) -> None:
    """Which go by in blocks that stay in the cache."""
    weight, x, expected = example(kind, 40, 1024, 300)

    assert same(expected, linear(each_set, weight, x))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_products_are_those_of_the_weights_values(each_set: Library, kind: int) -> None:
    """A code is half a step of the next largest from its activation at most, the largest is exact.
    A group's parts round four times, then all that is summed so far twice."""
    weight = tiles.make(kind, 50, 480)
    x = activations(9, 480)
    values, exact = weight.values(), x.astype(np.float64)
    sizes = np.abs(x.reshape(9, -1, 32))
    ordered = np.sort(sizes, axis=2)
    steps = np.where(sizes < ordered[..., -1:], ordered[..., -2:-1] / 127, 0).reshape(9, 480)
    parts = np.abs(values)
    if kind in (Q4_0, Q4_1):  # Codes and minima are summed apart.
        scales = np.repeat(np.abs(weight.scales.astype(np.float64)), 32, axis=1)
        parts = scales * weight.codes + np.abs(values - scales * weight.codes) + scales * 8
    quantising = np.zeros_like(exact) if kind == BF16 else steps * (0.5 + 1e-4)
    rounds = 480 if kind == BF16 else 4 + 2 * 15
    rounding = 2.0**-24 * rounds * (np.abs(exact) + steps) @ parts.T
    bound = quantising @ np.abs(values).T + rounding

    error = np.abs(linear(each_set, weight, x) - exact @ values.T)
    assert (error <= bound).all()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("columns", (32, 96, 576))
def test_rows_are_normalised_first(each_set: Library, kind: int, columns: int) -> None:
    weight = tiles.make(kind, 17, columns)
    norm, x = activations(1, columns, seed=5)[0], activations(12, columns)
    expected = tiles.product(weight, normalised(x, norm, 1e-5))

    each_set.set_threads(2)
    for width in (1, 3, 12):
        assert same(expected[:width], linear(each_set, weight, x[:width], norm))


@pytest.mark.parametrize("columns", (1, 15, 16, 17, 33, 64, 100))
def test_a_row_of_any_length_is_normalised(each_set: Library, columns: int) -> None:
    norm, x = activations(1, columns, seed=5)[0], activations(1, columns)
    y = np.full(columns + 1, 7, np.float32)

    each_set.handle.fc_normalise(
        *(ctypes.c_void_p(each.ctypes.data) for each in (x, norm)), ctypes.c_float(1e-6), columns,
        ctypes.c_void_p(y.ctypes.data),
    )  # fmt: skip

    assert same(normalised(x, norm, 1e-6)[0], y[:-1])
    assert y[-1] == 7


@pytest.mark.parametrize("columns", (1, 2, 3, 31, 45))
def test_bfloat_weights_have_any_number_of_columns(each_set: Library, columns: int) -> None:
    weight, x = tiles.make(BF16, 19, columns), activations(9, columns)

    assert same(tiles.product(weight, x), linear(each_set, weight, x))


@pytest.mark.parametrize("added_is_output", (False, True))
def test_a_product_is_added_between_strides(each_set: Library, added_is_output: bool) -> None:
    """Tiles 1 and 2 of 38 rows: the last has six; all beside them stays."""
    weight, x = tiles.make(Q4_1, 38, 64), activations(5, 64)
    packed = np.zeros(each_set.handle.fc_quantised_bytes(5, 64), np.uint8)
    before = activations(5, 50, seed=3)
    y = before.copy()
    added = y if added_is_output else before
    matrix = Matrix(weight.data.ctypes.data, weight.kind, weight.rows, weight.columns)
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (x, packed, y, added)]
    each_set.handle.fc_quantise(pointers[0], 5, 64, 3, 5, pointers[1])
    each_set.handle.fc_quantise(pointers[0], 5, 64, 0, 3, pointers[1])

    each_set.handle.fc_product(ctypes.byref(matrix), 1, 3, 5, *pointers, ctypes.c_int64(50))

    expected = before.copy()
    expected[:, 16:38] = tiles.product(weight, x)[:, 16:] + before[:, 16:38]
    assert same(expected, y)


@pytest.mark.parametrize("kind", (Q4_0, Q4_1, Q8_0), ids=("q4_0", "q4_1", "q8_0"))
def test_the_largest_of_a_group_is_taken_as_it_is(each_set: Library, kind: int) -> None:
    """In integers, of which the others' largest is 127, all is exact: whichever column is the
    largest, and the first of two that are."""
    random = np.random.default_rng(0)
    codes = tiles.make(kind, 33, 64).codes
    scales, minima = (random.integers(-2, 3, (33, 2)).astype(np.float16) for _ in range(2))
    weight = tiles.pack(kind, codes, scales, minima)
    x = random.integers(-127, 128, (64, 64)).astype(np.float32)
    x[:, [5, 9, 40, 44]] = -127
    x[np.arange(64), np.arange(64)] = random.choice((-1001, 1001, 127), 64)

    exact = x.astype(np.float64) @ weight.values().T
    assert np.array_equal(exact, linear(each_set, weight, x))


HARD = (0.0, -0.0, 1e-45, -1e-38, 1e-30, 3e-30, 1.0, -127.5, 3e38, -3e38, 65504.0, 0.5)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_of_an_activation_breaks_the_order(
    each_set: Library, kind: int, data: st.DataObject
) -> None:
    """Zeros, subnormals and huge values, in whole groups or among others."""
    groups = data.draw(st.integers(1, 3))
    rows = data.draw(st.integers(1, 4))
    drawn = st.sampled_from(HARD) | st.floats(-10, 10, width=32)
    flat = data.draw(st.lists(drawn, min_size=rows * groups * 32, max_size=rows * groups * 32))
    x = np.array(flat, np.float32).reshape(rows, groups * 32)
    weight = tiles.make(kind, 17, groups * 32, seed=data.draw(st.integers(0, 99)))

    with np.errstate(all="ignore"):
        expected = tiles.product(weight, x)
    assert same(expected, linear(each_set, weight, x))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
def test_what_is_not_finite_spoils_its_own_row(each_set: Library, kind: int, bad: float) -> None:
    weight, x = tiles.make(kind, 20, 96), activations(9, 96)
    fine = linear(each_set, weight, x)
    x[4, 40] = bad

    spoiled = linear(each_set, weight, x)

    assert not np.isfinite(spoiled[4]).any()
    others = np.arange(9) != 4
    assert same(fine[others], spoiled[others])


def test_extreme_codes_and_factors_are_exact(each_set: Library) -> None:
    """The largest sums that codes make, subnormal scales, and infinite ones."""
    x = np.full((2, 64), 1.0, np.float32)
    x[1] = -1.0
    scales = np.array([[6e-8, 65504]] * 8 + [[-6e-8, np.inf]] * 8, np.float16)
    for kind, codes in ((Q4_1, (0, 15)), (Q4_0, (0, 15)), (Q8_0, (-128, 127))):
        for code in codes:
            weight = tiles.pack(kind, np.full((16, 64), code, np.int32), scales, scales[::-1])
            with np.errstate(all="ignore"):
                expected = tiles.product(weight, x)
            assert same(expected, linear(each_set, weight, x))


def lookup(library: Library, weight: Weight, ids: NDArray[np.int64]) -> Floats:
    matrix = Matrix(weight.data.ctypes.data, weight.kind, weight.rows, weight.columns)
    y = np.full((len(ids), weight.columns), 7, np.float32)
    library.lookup(ctypes.addressof(matrix), len(ids), ids.ctypes.data, y.ctypes.data)
    return y


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_rows_are_looked_up_as_their_values(each_set: Library, kind: int) -> None:
    weight = tiles.make(kind, 35, 96)
    expected = weight.values().astype(np.float32)

    for ids in ([34], [0, 34, 7, 7], list(range(35)) * 2):
        each_set.set_threads(2)
        assert same(expected[ids], lookup(each_set, weight, np.array(ids, np.int64)))
