"""Number formats: known bytes, independent decoders, and what encoding must give back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flarechat.engine.weights.formats import (
    FP8,
    FP8_BLOCKS,
    MXFP8,
    NVFP4,
    Batch,
    Packed,
    decode_csf,
    decode_fp8_blocks,
    decode_mxfp8,
    decode_nvfp4,
    encode_csf,
    encode_fp8,
    encode_fp8_blocks,
    encode_mxfp8,
    encode_nvfp4,
)
from flarechat.errors import ModelError
from tests.engine.qwen38.packing import E2M1, numbers, read_nvfp4

seeds = st.integers(0, 1 << 32)


def draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def raw(generator: np.random.Generator, *shape: int, low: int = 0, high: int = 256) -> Tensor:
    return torch.from_numpy(generator.integers(low, high, shape, dtype=np.uint8))


def values(generator: np.random.Generator, *shape: int, spread: float = 1.0) -> Tensor:
    """Normal values, rows of very different sizes, one row of zeros."""
    drawn = torch.from_numpy(generator.normal(size=shape)).float() * spread
    drawn *= torch.from_numpy(np.exp(generator.normal(size=(*shape[:-1], 1)))).float()
    drawn[..., 0, :] = 0
    return drawn


def row(*given: int) -> Tensor:
    return torch.tensor([[*given, *[0] * (8 - len(given))]], dtype=torch.uint8)


def test_the_low_half_of_a_byte_comes_first() -> None:
    one = torch.ones(1, 1).to(FP8)
    decoded = decode_nvfp4(row(0x21, 0xF9), one, torch.tensor(1.0))

    assert [0.5, 1.0, -0.5, -6.0, 0.0] == decoded[0, :5].tolist()


def test_every_code_has_its_value() -> None:
    codes = torch.arange(0, 16, 2, dtype=torch.uint8)
    decoded = decode_nvfp4((codes | (codes + 1) << 4)[None], torch.ones(1, 1).to(FP8),
                           torch.tensor(1.0))  # fmt: skip

    assert E2M1 == decoded[0].tolist()


def test_a_value_between_two_codes_goes_to_the_even_one() -> None:
    given = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -1.75, -5.0, 6.0]
    packed = encode_nvfp4(torch.tensor([given + [0.0] * 5]), torch.tensor(1.0))

    nearest = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 0.0, -2.0, -4.0, 6.0]
    assert nearest == packed.decode()[0, :11].tolist()


def test_both_scales_multiply() -> None:
    scale = torch.tensor([[2.0]]).to(FP8)

    assert [0.25, 0.5] == decode_nvfp4(row(0x21), scale, torch.tensor(0.25))[0, :2].tolist()


def test_a_scale_serves_sixteen_inputs_of_its_row() -> None:
    codes = torch.full((2, 16), 0x22, dtype=torch.uint8)
    scale = torch.tensor([[1.0, 2.0], [4.0, 8.0]]).to(FP8)
    decoded = decode_nvfp4(codes, scale, torch.tensor(1.0))

    assert [[1] * 16 + [2] * 16, [4] * 16 + [8] * 16] == decoded.tolist()


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_nvfp4_decodes_as_the_rule_says(seed: int) -> None:
    generator = draws(seed)
    codes, scale = raw(generator, 3, 24), raw(generator, 3, 3, high=0x7F).view(FP8)
    last = float(generator.uniform(1e-4, 2))

    torch.testing.assert_close(
        torch.from_numpy(read_nvfp4(codes, scale, last)),
        decode_nvfp4(codes, scale, torch.tensor(last)), rtol=1e-6, atol=0,
    )  # fmt: skip


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_nvfp4_gives_back_what_it_can_hold(seed: int) -> None:
    generator = draws(seed)
    codes = generator.integers(0, 16, (2, 4, 3, 16))
    codes[codes == 8] = 0  # there is one zero
    codes[..., 5] = 7 | codes[..., 5] & 8  # every group reaches its most
    flat = torch.from_numpy(codes.reshape(2, 4, 48).astype(np.uint8))
    scale = raw(generator, 2, 4, 3, low=8, high=0x7F).view(FP8)
    stored = Packed(NVFP4, flat[..., 0::2] | flat[..., 1::2] << 4, scale, torch.tensor([0.3, 2.0]))
    again = encode_nvfp4(stored.decode(), stored.scale_2)

    assert torch.equal(stored.weight, again.weight)
    assert torch.equal(stored.scale.view(torch.uint8), again.scale.view(torch.uint8))


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_nvfp4_is_as_near_as_its_steps_allow(seed: int) -> None:
    given = values(draws(seed), 2, 5, 64)
    packed = encode_nvfp4(given)
    step = packed.scale.float() * packed.scale_2[:, None, None]  # type: ignore[index]
    # Half of the widest gap, or what a group's rounded scale cuts off, or a scale near zero.
    most = step.repeat_interleave(16, -1) + 6 * 2**-9 * packed.scale_2[:, None, None]  # type: ignore[index]

    assert ((given - packed.decode()).abs() <= most).all()
    assert (2, 5, 64) == packed.shape and (2, 5, 4) == tuple(packed.scale.shape)


@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (130, 200), (3, 129, 64)])
def test_a_tile_of_128_by_128_has_one_scale(shape: tuple[int, ...]) -> None:
    *batch, out, wide = shape
    generator = draws(3)
    weight = raw(generator, *shape, high=0x7F).view(FP8)
    tiles = (*batch, -(-out // 128), -(-wide // 128))
    scale = torch.from_numpy(generator.uniform(0.5, 2, tiles)).float()
    rows, columns = np.arange(out) // 128, np.arange(wide) // 128
    theirs = numbers(weight) * scale.numpy()[..., rows[:, None], columns[None, :]]

    torch.testing.assert_close(torch.from_numpy(theirs), decode_fp8_blocks(weight, scale))


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_fp8_gives_back_what_it_can_hold(seed: int) -> None:
    generator = draws(seed)
    weight = raw(generator, 2, 140, 200, high=0x7F) | raw(generator, 2, 140, 200, high=2) << 7
    weight[weight == 0x80] = 0  # there is one zero
    weight[:, ::20, ::40] = 0x7E  # every tile reaches its most
    scale = torch.from_numpy(generator.uniform(1e-3, 2, (2, 2, 2))).bfloat16()
    stored = Packed(FP8_BLOCKS, weight.view(FP8), scale)
    again = encode_fp8_blocks(stored.decode())

    assert torch.equal(stored.scale, again.scale)
    assert torch.equal(weight, again.weight.view(torch.uint8))


def test_the_largest_values_saturate() -> None:
    # 470 over the power of two that mxfp8 takes is past 464, where E4M3 has no number.
    given = torch.tensor([[470.0, -470.0, 1.0, 0.0]])
    for packed in (encode_fp8_blocks(given), encode_fp8(given), encode_mxfp8(given.repeat(1, 8))):
        assert torch.isfinite(packed.decode()).all()
        torch.testing.assert_close(given[0, :3], packed.decode()[0, :3], rtol=0.07, atol=0)


def test_one_scale_serves_a_whole_tensor() -> None:
    packed = Packed("fp8", row(0x38, 0xB8).view(FP8), torch.tensor([3.0]).bfloat16())

    assert [3.0, -3.0, 0.0] == packed.decode()[0, :3].tolist()


@pytest.mark.parametrize(
    ("byte", "power"), [(0, 2.0**-127), (1, 2.0**-126), (126, 0.5), (127, 1.0), (254, 2.0**127)]
)
def test_an_exponent_byte_is_a_power_of_two(byte: int, power: float) -> None:
    one = torch.full((1, 32), 0x38, dtype=torch.uint8).view(FP8)
    scale = torch.tensor([[byte]], dtype=torch.uint8)

    assert [power] * 32 == decode_mxfp8(one, scale)[0].tolist()
    assert [power] * 32 == decode_mxfp8(one, scale.view(torch.float8_e8m0fnu))[0].tolist()


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_mxfp8_gives_back_what_it_can_hold(seed: int) -> None:
    generator = draws(seed)
    weight = raw(generator, 3, 64, high=0x7F)
    weight[:, ::32] = 0x78  # 256, the exponent that a group's scale is made for
    scale = raw(generator, 3, 2, low=100, high=140)
    again = encode_mxfp8(Packed(MXFP8, weight.view(FP8), scale).decode())

    assert torch.equal(scale, again.scale)
    assert torch.equal(weight, again.weight.view(torch.uint8))


def read_csf(fixed: Tensor, exceptions: Tensor) -> np.ndarray:
    """CSF by its description, one byte at a time."""
    slabs, width = fixed.shape
    columns = 2 * (width // 16 - 1)
    plane = np.zeros((16 * slabs, columns), dtype=np.uint8)
    for slab, whole in enumerate(fixed.tolist()):
        for place in range(16 * columns):
            byte = whole[16 + place // 2]
            code = byte >> 4 if place % 2 else byte & 15
            plane[16 * slab + place // columns, place % columns] = whole[place // columns] + code
    for word in exceptions.tolist():
        plane.reshape(-1)[word & 0xFFFFFF] = word >> 24
    return plane


@given(seeds, st.sampled_from([(16, 2), (32, 6), (48, 40)]), st.integers(1, 255))
@settings(max_examples=40, deadline=None)
def test_csf_gives_back_every_byte(seed: int, shape: tuple[int, int], spread: int) -> None:
    generator = draws(seed)
    low = int(generator.integers(0, 257 - spread))
    plane = raw(generator, *shape, low=low, high=low + spread)
    fixed, exceptions = encode_csf(plane.view(FP8))

    assert (shape[0] // 16, 16 * (1 + shape[1] // 2)) == tuple(fixed.shape)
    assert (torch.uint8, torch.uint32) == (fixed.dtype, exceptions.dtype)
    assert torch.equal(plane, torch.from_numpy(read_csf(fixed, exceptions)))
    assert torch.equal(plane, decode_csf(fixed, exceptions).view(torch.uint8))
    assert spread > 16 or 0 == len(exceptions)


def test_csf_of_the_real_shapes_has_the_published_ones() -> None:
    assert (40, 16 * 81) == tuple(encode_csf(torch.zeros(640, 160).to(FP8))[0].shape)
    assert (160, 16 * 21) == tuple(encode_csf(torch.zeros(2560, 40).to(FP8))[0].shape)


def words(*given: int) -> Tensor:
    return torch.from_numpy(np.array(given, dtype=np.uint32))


@pytest.mark.parametrize(
    ("fixed", "exceptions", "message"),
    [
        (torch.zeros(2, 33, dtype=torch.uint8), words(), r"shape \(2, 33\)"),
        (torch.zeros(2, 16, dtype=torch.uint8), words(), r"shape \(2, 16\)"),
        (torch.zeros(32, dtype=torch.uint8), words(), r"shape \(32,\)"),
        (torch.zeros(2, 32), words(), "cannot be decoded"),
        (torch.full((1, 32), 250, dtype=torch.uint8), words(), "do not exist"),
        (torch.zeros(1, 32, dtype=torch.uint8), words(32), "do not exist"),
        (torch.zeros(1, 32, dtype=torch.uint8), words(3, 2), "out of order"),
        (torch.zeros(1, 32, dtype=torch.uint8), words(3, 3), "out of order"),
    ],
)
def test_csf_that_cannot_be_is_refused(fixed: Tensor, exceptions: Tensor, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        decode_csf(fixed, exceptions)


@pytest.mark.parametrize("encode", [encode_nvfp4, encode_fp8_blocks, encode_mxfp8])
def test_a_batch_is_its_matrices(encode: object) -> None:
    given = values(draws(1), 4, 48, 64)
    batch, alone = encode(given), [encode(one) for one in given]  # type: ignore[operator]
    room = Batch(alone[0], (4,), torch.device("cpu"))
    for index, one in enumerate(alone):
        room.put((index,), one)
    again = room.whole

    assert torch.equal(batch.decode(), again.decode())
    assert torch.equal(batch.take(torch.tensor([3, 1])).decode(), again.decode()[[3, 1]])
    assert sum(part.nbytes for part in alone) == batch.nbytes == again.nbytes
