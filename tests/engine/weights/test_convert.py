"""GGUF to checkpoint: the values, the cache, and every way it can go wrong."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open

from flarechat.engine.weights import Checkpoint, convert, load_checkpoint, tiles
from flarechat.engine.weights.checkpoint import TiledFile
from flarechat.errors import ModelError, StorageError
from flarechat.models import digests
from flarechat.models.catalog import CATALOG, SMOLLM2
from flarechat.protocol import Sampling
from tests.models import tiny


def load(path: Path, cache: Path, seen: list[tuple[str, int, int]] | None = None) -> Checkpoint:
    def note(stage: str, done: int, total: int) -> None:
        if seen is not None:
            seen.append((stage, done, total))

    return load_checkpoint(path, cache, note, supported=("llama",))


def converted(cache: Path) -> Path:
    (found,) = (cache / "converted").iterdir()
    return found


def test_tensors_come_under_their_safetensors_names_in_the_rotate_half_order(
    tmp_path: Path,
) -> None:
    written = tiny.write(tmp_path / "tiny.gguf", quantized=False)
    checkpoint = load(written.path, tmp_path / "cache")

    assert set(written.weights) == set(checkpoint.tensors)
    for name, value in written.weights.items():
        np.testing.assert_array_equal(value, checkpoint.tensors[name].numpy(), err_msg=name)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16", "F16", "Q5_1", "F32"])
def test_stored_tensors_are_decoded_as_the_reference_decodes_them(
    tmp_path: Path, kind: str
) -> None:
    written = tiny.write(tmp_path / "tiny.gguf", kind=kind)
    checkpoint = load(written.path, tmp_path / "cache")

    stored = gguf.GGMLQuantizationType[kind]
    for name, value in written.weights.items():
        if value.ndim == 2:
            raw = gguf.quants.quantize(value, stored)
            expected = gguf.quants.dequantize(raw, stored)
            np.testing.assert_array_equal(expected, checkpoint.tensors[name].numpy(), name)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16", "F16", "Q5_1", "F32"])
def test_what_the_kernels_read_is_kept_in_tiles_and_all_else_in_float32(
    tmp_path: Path, kind: str
) -> None:
    written = tiny.write(tmp_path / "tiny.gguf", kind=kind)
    tensors = load(written.path, tmp_path / "cache").tensors

    assert isinstance(tensors, TiledFile)
    tiled = kind.lower() in tiles.KINDS
    for name, value in written.weights.items():
        packing = (kind.lower(), *value.shape) if tiled and value.ndim == 2 else None
        assert (packing, value.shape) == (tensors.packing(name), tensors.shape(name)), name
        if packing:
            kept = tensors.tiles(name)
            raw = gguf.quants.quantize(value, gguf.GGMLQuantizationType[kind])
            assert torch.equal(tiles.from_blocks(kind.lower(), raw).data, kept.data), name
            assert 0 == kept.data.data_ptr() % 32


def test_weights_are_read_where_the_file_lies_and_not_copied(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    tensors = load(tiny.write(tmp_path / "tiny.gguf").path, cache).tensors
    assert isinstance(tensors, TiledFile)
    data = tensors.tiles("model.layers.1.mlp.up_proj.weight").data
    name = str(converted(cache))
    spans = [line.split()[0].split("-") for line in maps() if name in line]

    assert any(int(low, 16) <= data.data_ptr() < int(high, 16) for low, high in spans)


def maps() -> list[str]:
    """The files that are mapped, with their addresses; none where the system does not tell."""
    told = Path("/proc/self/maps")
    if not told.exists():
        pytest.skip("this system does not tell which files are mapped")
    return told.read_text().splitlines()


def test_what_earlier_versions_wrote_of_a_file_is_dropped(tmp_path: Path) -> None:
    path, cache = tiny.write(tmp_path / "tiny.gguf").path, tmp_path / "cache"
    (cache / "converted").mkdir(parents=True)
    (old,) = digests.outdated_paths(cache, digests.digest(path, cache))
    other = old.with_name("0" * 64 + "-v1.safetensors")
    for file in (old, other):
        file.write_bytes(b"of another time")
    load(path, cache)

    assert not old.exists()
    assert other.exists()


def test_a_checkpoint_says_everything_the_file_says(tmp_path: Path) -> None:
    checkpoint = load(tiny.write(tmp_path / "tiny.gguf").path, tmp_path / "cache")

    assert "Tiny" == checkpoint.name
    assert "llama" == checkpoint.architecture
    assert {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": float(np.float32(1e-5)),
        "rope_theta": 10000.0,
        "vocab_size": len(tiny.vocabulary()),
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "attention_bias": False,
    } == checkpoint.config
    assert tiny.TEMPLATE == checkpoint.chat_template
    assert (2,) == checkpoint.eos_token_ids
    assert ("<|im_start|>", "<|im_end|>") == (checkpoint.bos_token, checkpoint.eos_token)
    assert Sampling() == checkpoint.recommended
    assert digests.digest(tmp_path / "tiny.gguf", tmp_path / "x") == checkpoint.fingerprint
    assert "BPE" == json.loads(checkpoint.tokenizer_json)["model"]["type"]


def test_an_untied_head_and_more_terminal_tokens_are_taken_over(tmp_path: Path) -> None:
    head = np.ones((len(tiny.vocabulary()), tiny.HIDDEN), np.float32)
    extra = {"tokenizer.ggml.eot_token_id": 0}
    path = tiny.write(tmp_path / "t.gguf", surplus={"output.weight": head}, extra=extra).path
    checkpoint = load(path, tmp_path / "cache")

    assert not checkpoint.config["tie_word_embeddings"]
    assert (2, 0) == checkpoint.eos_token_ids
    np.testing.assert_array_equal(head, checkpoint.tensors["lm_head.weight"].numpy())


def test_the_second_load_neither_hashes_nor_converts(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf").path
    first: list[tuple[str, int, int]] = []
    second: list[tuple[str, int, int]] = []
    one, two = load(path, tmp_path / "cache", first), load(path, tmp_path / "cache", second)

    count = len(one.tensors)
    assert ("checking", path.stat().st_size, path.stat().st_size) == first[0]
    assert [("converting", done, count) for done in range(count + 1)] == first[1:]
    assert [] == second
    assert one.config == two.config
    assert one.tokenizer_json == two.tokenizer_json


def test_a_known_file_gets_the_sampling_and_title_of_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    path = tiny.write(tmp_path / "tiny.gguf").path
    pinned = dataclasses.replace(SMOLLM2, gguf_sha256=digests.digest(path, tmp_path / "cache"))
    monkeypatch.setitem(CATALOG, "smollm2", pinned)
    by_digest = load(path, tmp_path / "cache")
    other = tiny.write(tmp_path / "other.gguf", extra={"general.name": SMOLLM2.general_names[0]})
    by_name = load(other.path, tmp_path / "cache")

    assert (SMOLLM2.title, SMOLLM2.recommended) == (by_digest.name, by_digest.recommended)
    assert SMOLLM2.recommended == by_name.recommended


@pytest.mark.parametrize("damage", ["short", "empty", "noise", "other", "older", "fewer", "kinds"])
def test_a_damaged_converted_file_is_made_again(tmp_path: Path, damage: str) -> None:
    path, cache = tiny.write(tmp_path / "tiny.gguf").path, tmp_path / "cache"
    load(path, cache)
    file = converted(cache)
    whole = file.read_bytes()
    if damage == "other":
        other = tiny.write(tmp_path / "other.gguf", extra={"general.name": "Other"}).path
        load(other, tmp_path / "elsewhere")
        broken = converted(tmp_path / "elsewhere").read_bytes()
    else:
        broken = {
            "short": whole[:-1],
            "empty": b"",
            "noise": bytes(range(256)) * 9,
            "older": whole.replace(b"chat_template", b"chat_templatX"),
            "fewer": whole.replace(b'tensor_count\\": 20', b'tensor_count\\": 21'),
            "kinds": whole.replace(b'\\"q4_1\\", ', b'\\"q8_0\\", '),
        }[damage]
    assert broken != whole
    file.write_bytes(broken)
    seen: list[tuple[str, int, int]] = []
    checkpoint = load(path, cache, seen)

    assert "converting" in {stage for stage, _, _ in seen}
    assert whole == file.read_bytes()
    assert "Tiny" == checkpoint.name


def test_a_full_disk_ends_the_conversion_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tiny.write(tmp_path / "tiny.gguf").path, tmp_path / "cache"
    real = convert.written_whole

    @contextmanager
    def full(target: Path) -> Iterator[Any]:
        with real(target) as file:
            yield _Full(file)

    monkeypatch.setattr(convert, "written_whole", full)
    with pytest.raises(StorageError, match="The disk is full"):
        load(path, cache)

    assert [] == list((cache / "converted").iterdir())


class _Full:
    """A file on a disk that fills up after a few writes."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.left = file, 5

    def write(self, data: Any) -> None:
        self.left -= 1
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.file.write(data)


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path) -> None:
    path, cache = tiny.write(tmp_path / "tiny.gguf").path, tmp_path / "cache"

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "converting" and done > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_checkpoint(path, cache, interrupt, supported=("llama",))

    assert [] == list((cache / "converted").iterdir())


def test_the_header_is_one_any_safetensors_reader_takes(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    load(tiny.write(tmp_path / "tiny.gguf").path, cache)
    with safe_open(converted(cache), framework="np") as file:
        assert "pt" == file.metadata()["format"]
        assert 20 == len(list(file.keys()))


def test_an_unknown_architecture_is_named_with_the_known(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf", architecture="gptneox").path
    with pytest.raises(ModelError, match="'gptneox', which flarechat cannot run") as caught:
        load(path, tmp_path / "cache")

    assert "llama" in caught.value.hint


def test_an_architecture_that_is_not_read_from_gguf_is_said_to_be_so(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf", architecture="gemma").path
    with pytest.raises(ModelError, match="not readable from GGUF"):
        load_checkpoint(path, tmp_path / "cache", lambda *_: None, supported=("gemma", "llama"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drop": ("llama.block_count",)}, "lacks llama.block_count"),
        ({"extra": {"llama.block_count": "two"}}, "has llama.block_count = 'two'"),
        ({"extra": {"llama.attention.head_count": 0}}, "head_count = 0, which is not positive"),
        ({"extra": {"llama.attention.head_count": 3}}, "rotates 8 of the 10 values"),
        ({"extra": {"llama.rope.dimension_count": 4}}, "rotates 4 of the 8 values"),
        ({"extra": {"llama.attention.head_count_kv": 5}}, "5 heads do not divide"),
        ({"surplus": {"blk.0.ffn_gate_inp.weight": np.ones(2, np.float32)}}, "ffn_gate_inp"),
        ({"drop": ("tokenizer.ggml.eos_token_id",)}, "names no end-of-sequence token"),
        ({"extra": {"tokenizer.ggml.eos_token_id": 9999}}, "token 9999, outside its vocabulary"),
        ({"extra": {"tokenizer.ggml.model": "llama"}}, "tokenizer of the unknown kind 'llama'"),
        ({"extra": {"tokenizer.ggml.pre": "martian"}}, "unknown rule 'martian'"),
        ({"surplus": {"rope_freqs.weight": np.arange(1, 5, dtype=np.float32)}}, "Llama 3"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = tiny.write(tmp_path / "tiny.gguf", **changes).path
    with pytest.raises(ModelError, match=words):
        load(path, tmp_path / "cache")

    assert not list(tmp_path.glob("cache/converted/*"))


def test_the_position_factors_of_llama_3_become_its_rule(tmp_path: Path) -> None:
    theta, factor, old = 500000.0, 8.0, 8192
    factors = []
    for pair in range(4):  # the published rule, branch by branch
        wavelength = 2 * math.pi * theta ** (2 * pair / 8)
        if wavelength < old / 4.0:
            factors.append(1.0)
        elif wavelength > old / 1.0:
            factors.append(factor)
        else:
            smooth = (old / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    path = tiny.write(
        tmp_path / "tiny.gguf",
        extra={"llama.rope.freq_base": theta},
        surplus={"rope_freqs.weight": np.array(factors, np.float32)},
    ).path
    checkpoint = load(path, tmp_path / "cache")

    assert {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    } == checkpoint.config["rope_scaling"]
    assert "rope_freqs.weight" not in checkpoint.tensors


def test_a_linear_stretching_of_positions_is_taken_over(tmp_path: Path) -> None:
    extra = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    checkpoint = load(tiny.write(tmp_path / "t.gguf", extra=extra).path, tmp_path / "cache")

    scaling = checkpoint.config["rope_scaling"]
    assert ("linear", 2.0) == (scaling["rope_type"], scaling["factor"])


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.gguf does not exist"):
        load(tmp_path / "nowhere.gguf", tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_tensors_and_sizes_are_those_transformers_reads_from_the_file(tmp_path: Path) -> None:
    """An independent reader of the same file: names, row order and sizes must agree."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = tiny.write(tmp_path / "tiny.gguf").path
    checkpoint = load(path, tmp_path / "cache")
    model = LlamaForCausalLM(LlamaConfig(**checkpoint.config))
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)

    sizes = {key: theirs["config"][key] for key in ("hidden_size", "num_key_value_heads")}
    assert sizes == {key: checkpoint.config[key] for key in sizes}
    assert set(checkpoint.tensors) == set(theirs["tensors"])
    for name, tensor in theirs["tensors"].items():
        np.testing.assert_array_equal(tensor.numpy(), checkpoint.tensors[name].numpy(), name)
