"""The GGUF reader against the reference writer, and against every kind of damage."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flarechat.errors import ModelError
from flarechat.models.gguf import ENCODINGS, Gguf
from tests.models import tiny


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return tiny.write(path).path.read_bytes()


def header(*, version: int = 3, tensors: int = 0, pairs: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + rest


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def refusal(tmp_path: Path, data: bytes) -> ModelError:
    path = tmp_path / "some.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        Gguf(path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value


def test_everything_the_reference_writer_wrote_is_read(tmp_path: Path) -> None:
    written = tiny.write(tmp_path / "tiny.gguf", quantized=False)
    read = Gguf(written.path)

    expected = tiny.metadata()
    assert np.float32(expected.pop("llama.attention.layer_norm_rms_epsilon")) == np.float32(
        read.metadata["llama.attention.layer_norm_rms_epsilon"]
    )
    assert expected == {key: read.metadata[key] for key in expected}
    assert {tiny.gguf_name(name) for name in written.weights} == set(read.tensors)
    assert sum(value.size for value in written.weights.values()) == read.parameters
    for name in ("model.norm.weight", "model.layers.1.mlp.down_proj.weight"):
        np.testing.assert_array_equal(written.weights[name], read.read(tiny.gguf_name(name)))


def test_quantized_tensors_have_the_values_the_reference_gives_them(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf").path
    read = Gguf(path)

    for entry in gguf.GGUFReader(path).tensors:
        expected = gguf.quants.dequantize(entry.data, entry.tensor_type)
        np.testing.assert_array_equal(expected, read.read(entry.name))


def test_block_sizes_are_those_of_the_reference() -> None:
    for number, encoding in ENCODINGS.items():
        kind = gguf.GGMLQuantizationType(number)

        assert (encoding.name, encoding.block, encoding.bytes) == (
            kind.name,
            *gguf.GGML_QUANT_SIZES[kind],
        )


@pytest.mark.parametrize("kind", ENCODINGS)
def test_every_known_tensor_type_can_be_decoded(tmp_path: Path, kind: int) -> None:
    encoding = ENCODINGS[kind]
    row = tensor(b"t", (encoding.block, 2), kind, 0)
    data = header(tensors=1, rest=row)
    data += bytes(-len(data) % 32) + bytes(2 * encoding.bytes)
    (tmp_path / "t.gguf").write_bytes(data)

    values = Gguf(tmp_path / "t.gguf").read("t")

    assert (2, encoding.block) == values.shape
    assert np.float32 == values.dtype


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, whole: bytes, share: float) -> None:
    refusal(tmp_path, whole[: int(share * len(whole))])


def test_a_file_cut_at_every_byte_of_its_head_is_refused(tmp_path: Path, whole: bytes) -> None:
    for size in range(400):
        refusal(tmp_path, whole[:size])


def test_a_file_that_lost_its_last_byte_is_cut_off(tmp_path: Path, whole: bytes) -> None:
    error = refusal(tmp_path, whole[: len(whole.rstrip(b"\0")) - 40])

    assert "is cut off" in error.message
    assert "ends at byte" in error.message


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0, 9000), value=st.binary(min_size=1, max_size=8))
def test_damage_anywhere_is_read_or_refused_never_worse(
    tmp_path: Path, whole: bytes, at: int, value: bytes
) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(whole[:at] + value + whole[at + len(value) :])
    try:
        Gguf(path)
    except ModelError as error:
        assert str(path) in error.message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04", "not a GGUF file"),
        (header(version=1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(tensors=2**60), "claims 1152921504606846976 for the number of tensors"),
        (header(pairs=2**60), "claims 1152921504606846976 for the number of metadata keys"),
        (header(pairs=1, rest=struct.pack("<Q", 2**63) + bytes(20)), "length of a metadata key"),
        (header(pairs=1, rest=text(b"key") + struct.pack("<IQ", 77, 0)), "value type 77"),
        (header(pairs=1, rest=text(b"k") + struct.pack("<IIQ", 9, 9, 0)), "items of 'k'"),
        (header(pairs=1, rest=text(b"k") + struct.pack("<IIQ", 9, 8, 2**40)), "length of k"),
        (header(pairs=1, rest=text(b"k") + struct.pack("<IIQ", 9, 4, 2**61)), "length of k"),
        (header(pairs=1, rest=text(b"\xff\xfe") + struct.pack("<IB", 0, 1)), "not UTF-8"),
        (header(pairs=2, rest=2 * (text(b"k") + struct.pack("<IB", 0, 1)) + bytes(9)), "twice"),
        (header(tensors=1, rest=tensor(b"t", (32,), 4, 0)), "unknown tensor type 4"),
        (header(tensors=1, rest=tensor(b"t", (32,) * 5, 0, 0)), "5 dimensions"),
        (header(tensors=1, rest=tensor(b"t", (31,), 3, 0)), "impossible in Q4_1"),
        (header(tensors=1, rest=tensor(b"t", (0,), 0, 0)), "impossible in F32"),
        (header(tensors=1, rest=tensor(b"t", (2**62, 2**62), 0, 0)), "is cut off: t ends"),
        (header(tensors=1, rest=tensor(b"t", (8,), 0, 7) + bytes(99)), "no multiple of 32"),
        (header(tensors=2, rest=2 * tensor(b"t", (1,), 0, 0) + bytes(99)), "tensor t twice"),
        (
            header(pairs=1, rest=text(b"general.alignment") + struct.pack("<II", 4, 3)),
            "general.alignment",
        ),
    ],
)
def test_each_kind_of_nonsense_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    assert words in refusal(tmp_path, data).message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.gguf cannot be read: No such file"):
        Gguf(tmp_path / "nowhere.gguf")
