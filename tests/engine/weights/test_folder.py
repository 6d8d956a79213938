"""Model folders: what is read from which file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from flarechat.engine.text.tokenizer import json_from_gguf
from flarechat.engine.weights import Checkpoint, load_checkpoint
from flarechat.errors import ModelError
from flarechat.protocol import Sampling
from tests.models import tiny

CONFIG = {"model_type": "llama", "hidden_size": 4, "eos_token_id": 2, "_name_or_path": "Folder"}


def put(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    put(path, "config.json", CONFIG)
    put(path, "tokenizer.json", json_from_gguf(tiny.tokenizer_metadata(), path))
    put(path, "tokenizer_config.json", {
        "bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>",
        "chat_template": "from the settings",
    })  # fmt: skip
    save_file({"a": np.arange(6, dtype=np.float16)}, path / "model.safetensors")
    return path


def load(folder: Path) -> Checkpoint:
    cache = folder.parent / "cache"
    return load_checkpoint(folder, cache, lambda *_: None, supported=("llama",))


def test_a_folder_is_a_checkpoint(folder: Path) -> None:
    put(
        folder, "generation_config.json", {"temperature": 0.6, "top_p": 0.9, "eos_token_id": [2, 0]}
    )
    checkpoint = load(folder)

    assert ("Folder", "llama", CONFIG) == (
        checkpoint.name, checkpoint.architecture, checkpoint.config,
    )  # fmt: skip
    assert "from the settings" == checkpoint.chat_template
    assert ("<|im_start|>", "<|im_end|>") == (checkpoint.bos_token, checkpoint.eos_token)
    assert (2, 0) == checkpoint.eos_token_ids
    assert Sampling(temperature=0.6, top_p=0.9) == checkpoint.recommended
    assert ["a"] == list(checkpoint.tensors)
    np.testing.assert_array_equal(np.arange(6, dtype=np.float16), checkpoint.tensors["a"].numpy())


def test_the_template_has_its_own_file_or_is_the_default_of_several(folder: Path) -> None:
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    put(folder, "tokenizer_config.json", {"chat_template": several})
    assert "yes" == load(folder).chat_template

    put(folder, "chat_template.jinja", "own file")
    assert "own file" == load(folder).chat_template


def test_shards_are_found_through_the_index(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for name in ("a", "b"):
        save_file({name: np.full(3, ord(name))}, folder / f"{name}.safetensors")
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    put(folder, "model.safetensors.index.json", index)
    checkpoint = load(folder)

    assert {"a": [97] * 3, "b": [98] * 3} == {k: v.tolist() for k, v in checkpoint.tensors.items()}


def test_the_fingerprint_follows_the_weights_the_settings_and_the_tokenizer(folder: Path) -> None:
    seen = {load(folder).fingerprint}
    put(folder, "config.json", CONFIG | {"rope_theta": 5.0})
    seen.add(load(folder).fingerprint)
    save_file({"a": np.ones(6, np.float16)}, folder / "model.safetensors")
    seen.add(load(folder).fingerprint)
    put(folder, "README.md", "irrelevant")
    seen.add(load(folder).fingerprint)

    assert 3 == len(seen)


def remove(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def sentencepiece_only(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (remove("config.json"), r"config\.json cannot be read"),
        (remove("tokenizer.json"), r"tokenizer\.json cannot be read"),
        (remove("model.safetensors"), "has no safetensors weights"),
        (pickle_only, "only as pickle files, which flarechat never opens"),
        (sentencepiece_only, r"only as tokenizer\.model"),
        (lambda f: put(f, "config.json", "{"), "is not JSON"),
        (lambda f: put(f, "config.json", "[]"), "does not hold a JSON object"),
        (lambda f: put(f, "config.json", {"model_type": "mamba"}), "'mamba'"),
        (lambda f: put(f, "tokenizer.json", "[]"), "cannot be understood"),
        (lambda f: put(f, "generation_config.json", {"top_p": 7}), r"generation_config\.json"),
        (lambda f: put(f, "model.safetensors", "noise" * 9), "cannot be read"),
        (
            lambda f: put(f, "model.safetensors.index.json", {"weight_map": {"a": "../x"}}),
            r"names '\.\./x', which is not in its folder",
        ),
        (lambda f: put(f, "model.safetensors.index.json", {}), "has no weight_map"),
        (
            lambda f: (
                put(f, "tokenizer_config.json", {}),
                put(f, "config.json", {**CONFIG, "eos_token_id": None}),
            ),
            "no usable end-of-sequence token",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_named(folder: Path, change: Any, words: str) -> None:
    change(folder)
    with pytest.raises(ModelError, match=words) as caught:
        load(folder)

    assert caught.value.hint


def test_a_weights_file_that_was_swapped_since_is_a_sentence_that_names_it(folder: Path) -> None:
    tensors = load(folder).tensors
    save_file({"b": np.arange(6, dtype=np.float16)}, folder / "model.safetensors")

    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        tensors["a"]
