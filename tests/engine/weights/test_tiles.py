"""Tiles: the layout of flarechat.h, read back by a plain loop, and exact in every kind."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flarechat.engine.weights import tiles
from flarechat.engine.weights.tiles import Tiles

KINDS = tuple(tiles.KINDS)
QUANTISED = KINDS[:3]


def stored(kind: str, seed: int, rows: int, columns: int) -> np.ndarray:
    """Random bytes as a GGUF may have them, without scales that are no numbers."""
    random, held = np.random.default_rng(seed), tiles.KINDS[kind]
    raw = random.integers(0, 256, (rows, columns // held.group, held.bytes), dtype=np.uint8)
    numbers = random.standard_normal((*raw.shape[:2], held.halves))
    if kind == "bf16":
        raw[:] = torch.from_numpy(numbers).bfloat16().view(torch.uint8).numpy()
    else:
        raw[..., : 2 * held.halves] = numbers.astype("<f2").view(np.uint8)
    return raw.reshape(rows, -1)


def decoded(kind: str, raw: np.ndarray) -> np.ndarray:
    """What the reference reader makes of them."""
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind.upper()])


def by_the_header(of: Tiles, row: int, column: int) -> float:
    """One value, by the words of flarechat.h alone."""
    data, r = of.data.numpy().reshape(-(-of.rows // 16), -1)[row // 16], row % 16
    if of.kind == "bf16":
        bits = data[32 * column + 2 * r : 32 * column + 2 * r + 2].view("<u2")
        return float((bits.astype(np.uint32) << 16).view(np.float32)[0])
    size = {"q4_0": 288, "q4_1": 320, "q8_0": 544}[of.kind]
    group, c = data[size * (column // 32) :][:size], column % 32
    codes = 512 if of.kind == "q8_0" else 256
    numbers = group[codes:].view("<f2").astype(np.float32)
    if of.kind == "q8_0":
        return float(group[64 * (c // 4) + 4 * r + c % 4].view(np.int8) * numbers[r])
    low = c % 16
    code = int(group[64 * (low // 4) + 4 * r + low % 4]) >> (4 if c >= 16 else 0) & 15
    if of.kind == "q4_0":
        return float(np.float32(code - 8) * numbers[r])
    return float(np.float32(code) * numbers[r] + numbers[16 + r])


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_lies_where_the_kernels_header_says(kind: str) -> None:
    raw = stored(kind, 1, 19, 64)
    made = tiles.from_blocks(kind, raw)
    expected = decoded(kind, raw)

    for row in range(19):
        for column in range(64):
            assert expected[row, column] == by_the_header(made, row, column), (row, column)


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(KINDS), seed=st.integers(0, 2**31), rows=st.integers(1, 50),
    groups=st.integers(1, 4),
)  # fmt: skip
def test_tiles_decode_as_the_reference_does_and_rows_are_taken_exactly(
    kind: str, seed: int, rows: int, groups: int
) -> None:
    raw = stored(kind, seed, rows, 32 * groups)
    made = tiles.from_blocks(kind, raw)
    ids = torch.from_numpy(np.random.default_rng(seed).integers(0, rows, 21))

    assert tiles.shape(kind, rows, 32 * groups) == made.data.shape
    assert tiles.size(kind, rows, 32 * groups) == made.data.nbytes
    np.testing.assert_array_equal(decoded(kind, raw), made.decode().numpy())
    assert same(tiles.from_blocks(kind, raw[ids.numpy()]), made.take(ids))


def same(one: Tiles, other: Tiles) -> bool:
    """Whether two weights are the same to the bit, the rows that fill up a tile included."""
    told = [(of.kind, of.rows, of.columns) for of in (one, other)]
    return told[0] == told[1] and torch.equal(one.data, other.data)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_that_fill_up_the_last_tile_are_zeros(kind: str) -> None:
    made = tiles.from_blocks(kind, stored(kind, 3, 17, 32))
    whole = Tiles(kind, 32, 32, made.data).decode()

    assert not bool(whole[17:].any())


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 40), columns=st.integers(1, 70))
def test_bfloat16_is_kept_to_the_bit(seed: int, rows: int, columns: int) -> None:
    bits = np.random.default_rng(seed).integers(-(2**15), 2**15, (rows, columns), dtype=np.int16)
    weight = torch.from_numpy(bits).view(torch.bfloat16)

    kept = tiles.from_bfloat16(weight).decode()
    assert torch.equal(bits_of(weight.float()), bits_of(kept))


def bits_of(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.int32)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), magnitude=st.sampled_from([1e-3, 1.0, 50.0]))
def test_floats_are_rounded_to_within_half_a_step(seed: int, magnitude: float) -> None:
    values = torch.from_numpy(np.random.default_rng(seed).standard_normal((20, 96))) * magnitude
    values[3] = 0
    made = tiles.rounded(values.float())
    step = values.float().unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True) / 127
    # The scale is a float16: its last bit moves a code of 127 by up to 127 / 2048 of a step.
    off = (values - made.decode()).abs().unflatten(1, (-1, 32))

    assert ("q8_0", 20, 96) == (made.kind, made.rows, made.columns)
    assert bool((off <= step * (0.5 + 127 / 2048) + 1e-7).all())
    assert not bool(made.decode()[3].any())


def test_floats_whose_columns_are_no_whole_groups_become_bfloat16() -> None:
    values = torch.randn(5, 40)

    made = tiles.rounded(values)
    assert ("bf16", 5, 40) == (made.kind, made.rows, made.columns)
    assert torch.equal(values.bfloat16().float(), made.decode())
