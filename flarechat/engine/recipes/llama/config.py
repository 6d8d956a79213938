"""What a llama checkpoint must say about itself, validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flarechat.errors import ModelError


@dataclass(frozen=True, slots=True)
class ModelArgs:
    """Sizes of a llama model; names follow its config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = False

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ModelArgs:
        """Read config.json's keys; a missing or contradictory value is a ModelError."""
        heads = _whole(config, "num_attention_heads")
        hidden = _whole(config, "hidden_size")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        args = cls(
            hidden_size=hidden,
            intermediate_size=_whole(config, "intermediate_size"),
            num_hidden_layers=_whole(config, "num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=_whole(config, "num_key_value_heads", heads),
            head_dim=_whole(config, "head_dim", hidden // heads),
            vocab_size=_whole(config, "vocab_size"),
            max_position_embeddings=_whole(config, "max_position_embeddings", 2048),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 10000.0),
            rope_scaling=dict(rope) or None,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        )
        if args.num_attention_heads % args.num_key_value_heads or args.head_dim % 2:
            raise ModelError(
                f"The model's attention shape does not add up: {args.num_attention_heads} heads, "
                f"{args.num_key_value_heads} key-value heads, head_dim {args.head_dim}.",
                "The checkpoint is damaged or not a llama; download it again.",
            )
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise ModelError(
                f"The model's activation is {activation!r}; the llama recipe has silu.",
                "Choose another model with --model.",
            )
        for key in ("attention_bias", "mlp_bias"):
            if config.get(key):
                raise ModelError(
                    f"The model sets {key}, which the llama recipe does not have.",
                    "Choose another model with --model.",
                )
        return args


def _whole(config: dict[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or value <= 0:
        raise ModelError(
            f"The model's config has {key} = {value!r}, not a positive whole number.",
            "The checkpoint is damaged or not a llama; download it again.",
        )
    return value
