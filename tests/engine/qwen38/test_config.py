"""What a config.json must say: the real one, and every value that is missing or does not fit."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from flarechat.engine.recipes.qwen38 import ModelArgs, load
from flarechat.engine.recipes.qwen38.parts import delta_shape
from flarechat.engine.recipes.qwen38.shapes import shapes
from flarechat.errors import ModelError
from tests.engine.qwen38 import tiny

# The text part of the published model's config.json.
REAL: dict[str, Any] = {
    "model_type": "qwen4_exp_text", "hidden_size": 2560, "num_hidden_layers": 48,
    "vocab_size": 248320, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
    "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256, "attention_bias": False,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "output_gate_type": "sigmoid",
    "linear_conv_kernel_dim": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
    "linear_num_value_heads": 48, "linear_value_head_dim": 128, "num_experts": 512,
    "num_experts_per_tok": 10, "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640, "hc_count": 4, "hc_lowrank": 320,
    "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3,
    "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000,
    "make_ngram_vocab_size_divisible_by": 128, "split_ngram_parts": 128, "indexer_n_heads": 4,
    "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10], "mrope_interleaved": True,
    },
    "max_position_embeddings": 262144, "bos_token_id": 248044, "eos_token_id": 248044,
    "pad_token_id": None, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
    "tie_word_embeddings": False,
}  # fmt: skip


def test_the_real_config_is_read_whole_or_flat() -> None:
    whole = {"model_type": "qwen4_exp", "tie_word_embeddings": False, "text_config": REAL}
    args = ModelArgs.from_config(whole)

    assert args == ModelArgs.from_config(REAL)
    assert (64, 1, 1234, 248044) == (args.rotary_dim, args.ple_layer, args.seed, args.eos_token_id)
    assert (3, 7, 11) == args.sparse_layers[:3]
    assert 36 == len(args.linear_layers)
    assert args.norm_topk_prob
    assert (48, 128, 128) == delta_shape(args).state


def test_its_tensors_are_as_many_and_as_large_as_the_published_ones() -> None:
    named = shapes(ModelArgs.from_config(REAL))
    sizes: Counter[str] = Counter()
    kinds = (
        "hyper_connection",
        "experts.",
        "linear_attn",
        "indexer",
        "self_attn",
        "ngram_embedding.weight",
    )
    for name, shape in named.items():
        kind = next((kind for kind in kinds if kind in name), name)
        sizes[kind] += math.prod(shape)

    # 128 shards of the n-gram table are one here; 31 tensors are the head's, 333 for images.
    assert 1658 - 31 - 333 == len(named) - 1 + 128
    assert 120_795_955_200 == sizes["experts."]
    assert 51_200_245_760 == sizes["ngram_embedding.weight"]
    rounded = {
        "linear_attn": 2.087,
        "hyper_connection": 0.641,
        "self_attn": 0.598,
        "indexer": 0.0197,
    }
    for kind, billions in rounded.items():
        assert billions == pytest.approx(sizes[kind] / 1e9, abs=6e-4)
    assert 248320 * 2560 == sizes["embed_tokens.weight"] == sizes["lm_head.weight"]


REQUIRED = (
    *(key for key, value in tiny.CONFIG.items() if isinstance(value, int) and key not in
      ("bos_token_id", "tie_word_embeddings", "indexer_kv_heads")),
    "rms_norm_eps", "output_gate_type", "ple_layer_ids", "layer_types", "rope_parameters",
)  # fmt: skip


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_value_is_named(key: str) -> None:
    config = tiny.config()
    del config[key]
    named = "partial_rotary_factor" if key == "rope_parameters" else key
    with pytest.raises(ModelError, match=named) as error:
        ModelArgs.from_config(config)

    assert error.value.hint


ROPE = tiny.CONFIG["rope_parameters"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_attention_heads": 3}, "3 heads over 2 key-value heads"),
        ({"linear_num_value_heads": 5}, "5 value heads over 2 key heads"),
        ({"output_gate_type": "gelu"}, "output_gate_type = gelu"),
        ({"hc_count": 1}, "hc_count = 1"),
        ({"num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"indexer_budget": 18}, "indexer_budget = 18 in blocks of 4"),
        ({"indexer_compress_ratio": 16}, "indexer_compress_ratio = 16, more than 8"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads = 2"),
        ({"indexer_head_dim": 4}, "rotary dimensions 8"),
        ({"ple_embed_dim": 66}, "ple_embed_dim = 66 over 4 heads"),
        ({"ple_layer_ids": [4]}, "n-gram layer 4"),
        ({"ple_layer_ids": [0]}, r"ple_layer_ids = \[0\]"),
        ({"ple_layer_ids": [5]}, r"ple_layer_ids = \[5\]"),
        ({"ple_layer_ids": [1, 2]}, r"ple_layer_ids = \[1, 2\]"),
        ({"ple_layer_ids": []}, r"ple_layer_ids = \[\]"),
        ({"ngram_size": 4, "heads_per_ngram": 1, "ple_embed_dim": 66}, "ngram_size = 4"),
        ({"layer_types": ["linear_attention"] * 3}, "3 layer_types for 4 layers"),
        ({"layer_types": ["linear_attention"] * 3 + ["sliding"]}, "'sliding'"),
        ({"eos_token_id": 256}, "eos_token_id = 256"),
        ({"eos_token_id": []}, "eos_token_id"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings = True"),
        ({"hidden_size": "64"}, "hidden_size = '64'"),
        ({"hidden_size": True}, "hidden_size = True"),
        ({"hidden_size": -64}, "hidden_size = -64"),
        ({"rms_norm_eps": 0}, "rms_norm_eps = 0"),
        ({"rope_parameters": {**ROPE, "rope_theta": math.inf}}, "rope_theta = inf"),
        ({"rope_parameters": {**ROPE, "rope_type": "yarn"}}, "'yarn'"),
        ({"rope_parameters": {**ROPE, "partial_rotary_factor": 1.5}}, "rotary dimensions 48"),
        ({"rope_parameters": []}, "partial_rotary_factor"),
    ],
)
def test_a_value_that_does_not_fit_is_told(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError, match=told) as error:
        ModelArgs.from_config(tiny.config(**changes))

    assert error.value.hint


@pytest.mark.parametrize("name", ["indexed_attention", "qwen_sparse_attention", "full_attention"])
def test_sparse_layers_go_by_several_names(name: str) -> None:
    kinds = ["linear_attention"] * 3 + [name]

    assert (3,) == ModelArgs.from_config(tiny.config(layer_types=kinds)).sparse_layers


def test_the_first_of_several_terminal_tokens_bounds_n_grams() -> None:
    assert 7 == ModelArgs.from_config(tiny.config(eos_token_id=[7, 1])).eos_token_id


def loaded(tensors: dict[str, torch.Tensor], **changes: Any) -> None:
    load(
        tiny.config(**changes), tensors, slots=1, context=16, dtype="float32", device=tiny.CPU
    )  # fmt: skip


PREFIX = "model.language_model."


@pytest.mark.parametrize(
    "name", [n for n in tiny.checkpoint(tiny.reference()) if "layers.0" not in n]
)
def test_every_tensor_is_needed_in_its_shape(name: str) -> None:
    stored = tiny.checkpoint(tiny.reference())
    whole = stored.pop(name)
    with pytest.raises(ModelError):
        loaded(stored)
    stored[name] = torch.cat([whole, whole])
    with pytest.raises(ModelError):
        loaded(stored)


def test_a_tensor_too_many_is_refused_and_a_head_s_is_left() -> None:
    stored = tiny.checkpoint(tiny.reference())
    loaded(stored | {"mtp.fc_hidden.weight": torch.zeros(64, 64)})
    with pytest.raises(ModelError, match=r"unexpected tensor layers\.0\.bias"):
        loaded(stored | {f"{PREFIX}layers.0.bias": torch.zeros(1)})


@pytest.mark.parametrize(
    "name", ["layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"]
)
def test_another_hash_than_the_checkpoint_s_is_refused(name: str) -> None:
    stored = tiny.checkpoint(tiny.reference())
    full = f"{PREFIX}layers.1.ple.ple_embedding.{name}"
    stored[full] = stored[full] + 2
    with pytest.raises(ModelError, match=name):
        loaded(stored)
    with pytest.raises(ModelError, match="layer_multipliers"):
        loaded(tiny.checkpoint(tiny.reference()), seed=99)
