"""What a Qwen3.8-Flash-Next checkpoint must say about itself, validated.

Nothing is filled in that the family's numbers depend on: the defaults that other software has for
these keys are those of another model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flarechat.engine.layers.offset_norm import ACTIVATIONS
from flarechat.engine.state.indexer import MOST_RATIO
from flarechat.errors import ModelError

LINEAR = "linear_attention"
SPARSE = "full_attention"
_SPARSE_NAMES = (SPARSE, "indexed_attention", "qwen_sparse_attention")
_REMEDY = "The checkpoint is damaged or not a Qwen3.8-Flash-Next; download it again."


@dataclass(frozen=True, slots=True)
class ModelArgs:
    """Sizes of a model; names follow its config.json, but layers count from 0 (`ple_layer`)."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    output_gate_type: str
    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    hc_count: int
    hc_lowrank: int
    ple_layer: int
    ple_embed_dim: int
    ple_conv_kernel_size: int
    ngram_size: int
    heads_per_ngram: int
    ngram_vocab_size_base: int
    make_ngram_vocab_size_divisible_by: int
    split_ngram_parts: int
    seed: int
    eos_token_id: int
    indexer_n_heads: int
    indexer_head_dim: int
    indexer_budget: int
    indexer_compress_ratio: int
    mtp_num_hidden_layers: int

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ModelArgs:
        """Read config.json's keys, its text_config's if it has one.

        A missing, contradictory or unsupported value is a ModelError that names it.
        """
        text = config.get("text_config")
        text = text if isinstance(text, dict) else config
        plain = {key: _whole(text, key) for key in _WHOLE}
        rope = text.get("rope_parameters")
        rope = rope if isinstance(rope, dict) else {}
        rotary = _number(rope, "partial_rotary_factor") * plain["head_dim"]
        args = cls(
            **plain,
            rms_norm_eps=_number(text, "rms_norm_eps"),
            rope_theta=_number(rope, "rope_theta"),
            rotary_dim=int(rotary),
            layer_types=_layer_types(text, plain["num_hidden_layers"]),
            output_gate_type=str(text.get("output_gate_type")),
            norm_topk_prob=text.get("norm_topk_prob", True) is not False,
            ple_layer=_ple_layer(text, plain["num_hidden_layers"]),
            seed=_whole(text, "seed", 1234),
            eos_token_id=_eos(text),
            mtp_num_hidden_layers=_whole(text, "mtp_num_hidden_layers", 0, least=0),
        )
        for what, holds in _RULES:
            if not holds(args):
                raise ModelError(f"The model's config does not add up: {what(args)}.", _REMEDY)
        for key, value in _FIXED.items():
            found = text.get(key, value)
            if found != value:
                raise ModelError(
                    f"The model's config has {key} = {found!r}; {value!r} is supported.",
                    "Choose another model with --model.",
                )
        if rope.get("rope_type", "default") != "default":
            raise ModelError(
                f"The rotary scaling {rope['rope_type']!r} is not supported.",
                "Choose another model with --model.",
            )
        return args

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Numbers of the layers with a recurrence, from 0."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == LINEAR)

    @property
    def sparse_layers(self) -> tuple[int, ...]:
        """Numbers of the layers with sparse attention, from 0."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == SPARSE)

    @property
    def residual_size(self) -> int:
        """Features of the residual: all streams."""
        return self.hc_count * self.hidden_size

    @property
    def key_size(self) -> int:
        """Features of a recurrence's keys, all heads."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_size(self) -> int:
        """Features of a recurrence's values, all heads."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of a recurrence's convolution: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    @property
    def ngram_heads(self) -> int:
        """Rows of the n-gram table that one token takes."""
        return (self.ngram_size - 1) * self.heads_per_ngram


_WHOLE = (
    "hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings",
    "num_attention_heads", "num_key_value_heads", "head_dim", "linear_num_key_heads",
    "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    "shared_expert_intermediate_size", "hc_count", "hc_lowrank", "ple_embed_dim",
    "ple_conv_kernel_size", "ngram_size", "heads_per_ngram", "ngram_vocab_size_base",
    "make_ngram_vocab_size_divisible_by", "split_ngram_parts", "indexer_n_heads",
    "indexer_head_dim", "indexer_budget", "indexer_compress_ratio",
)  # fmt: skip
_FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "indexer_kv_heads": 1,
    "ngram_size": 3,
    "mtp_use_dedicated_embeddings": False,
}
_RULES: tuple[tuple[Callable[[ModelArgs], str], Callable[[ModelArgs], bool]], ...] = (
    (
        lambda a: f"{a.num_attention_heads} heads over {a.num_key_value_heads} key-value heads",
        lambda a: a.num_attention_heads % a.num_key_value_heads == 0,
    ),
    (
        lambda a: f"{a.linear_num_value_heads} value heads over {a.linear_num_key_heads} key heads",
        lambda a: a.linear_num_value_heads % a.linear_num_key_heads == 0,
    ),
    (
        lambda a: f"output_gate_type = {a.output_gate_type}, not one of {', '.join(ACTIVATIONS)}",
        lambda a: a.output_gate_type in ACTIVATIONS,
    ),
    (lambda a: f"hc_count = {a.hc_count}, not more than one", lambda a: a.hc_count > 1),
    (
        lambda a: f"{a.num_experts_per_tok} of {a.num_experts} experts a token",
        lambda a: a.num_experts_per_tok <= a.num_experts,
    ),
    (
        lambda a: (
            f"rotary dimensions {a.rotary_dim} of head_dim {a.head_dim} and indexer_head_dim "
            f"{a.indexer_head_dim}"
        ),
        lambda a: 0 < a.rotary_dim <= min(a.head_dim, a.indexer_head_dim) and a.rotary_dim % 2 == 0,
    ),
    (
        lambda a: f"indexer_budget = {a.indexer_budget} in blocks of {a.indexer_compress_ratio}",
        lambda a: a.indexer_budget % a.indexer_compress_ratio == 0,
    ),
    (
        lambda a: f"indexer_compress_ratio = {a.indexer_compress_ratio}, more than {MOST_RATIO}",
        lambda a: a.indexer_compress_ratio <= MOST_RATIO,
    ),
    (
        lambda a: f"ple_embed_dim = {a.ple_embed_dim} over {a.ngram_heads} heads",
        lambda a: a.ple_embed_dim % a.ngram_heads == 0,
    ),
    (
        lambda a: f"n-gram layer {a.ple_layer + 1}, which is no {LINEAR} layer",
        lambda a: a.layer_types[a.ple_layer] == LINEAR,
    ),
    (
        lambda a: f"eos_token_id = {a.eos_token_id} of {a.vocab_size} tokens",
        lambda a: 0 <= a.eos_token_id < a.vocab_size,
    ),
)


def _whole(config: dict[str, Any], key: str, default: int | None = None, *, least: int = 1) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelError(
            f"The model's config has {key} = {value!r}, not a positive whole number.", _REMEDY
        )
    return value


def _number(config: dict[str, Any], key: str) -> float:
    value = config.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelError(
            f"The model's config has {key} = {value!r}, not a positive number.", _REMEDY
        )
    return float(value)


def _layer_types(config: dict[str, Any], layers: int) -> tuple[str, ...]:
    kinds = config.get("layer_types")
    if not isinstance(kinds, (list, tuple)) or len(kinds) != layers:
        count = len(kinds) if isinstance(kinds, (list, tuple)) else "no"
        raise ModelError(
            f"The model's config has {count} layer_types for {layers} layers.", _REMEDY
        )
    for kind in kinds:
        if kind != LINEAR and kind not in _SPARSE_NAMES:
            raise ModelError(
                f"The layer type {kind!r} is not supported.", "Choose another model with --model."
            )
    return tuple(LINEAR if kind == LINEAR else SPARSE for kind in kinds)


def _ple_layer(config: dict[str, Any], layers: int) -> int:
    """The layer with n-gram features, from 0; the config counts from 1."""
    ids = config.get("ple_layer_ids")
    if not isinstance(ids, (list, tuple)) or len(ids) != 1 or not isinstance(ids[0], int):
        raise ModelError(f"The model's config has ple_layer_ids = {ids!r}, not one layer.", _REMEDY)
    if not 1 <= ids[0] <= layers:
        raise ModelError(
            f"The model's config has ple_layer_ids = {ids!r} of {layers} layers.", _REMEDY
        )
    return ids[0] - 1


def _eos(config: dict[str, Any]) -> int:
    """The first of the terminal tokens, which bounds n-grams."""
    value = config.get("eos_token_id")
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return _whole({"eos_token_id": first}, "eos_token_id", least=0)
