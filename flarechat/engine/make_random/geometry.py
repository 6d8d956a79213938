"""What a random Qwen3.8 checkpoint says of itself: config.json for the tiny and the real sizes.

Owns the sizes, the layer pattern and the quantisation metadata of every format. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flarechat.engine.make_random import text
from flarechat.errors import UsageError

FORMATS = ("bf16", "fp8", "nvfp4", "nvfp4-mtp-fp8", "fp4-local")
GEOMETRIES = ("tiny", "real")
MTP = ("inside", "sidecar", "none")
MOST_LAYERS = 48

TARGET = "model.language_model."

_COMMON: dict[str, Any] = {
    "attention_bias": False,
    "dtype": "bfloat16",
    "full_attention_interval": 4,
    "hc_count": 4,
    "hidden_act": "silu",
    "indexer_compress_ratio": 4,
    "indexer_kv_heads": 1,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "model_type": "qwen4_exp_text",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "ngram_size": 3,
    "num_key_value_heads": 2,
    "output_gate_type": "sigmoid",
    "pad_token_id": None,
    "ple_conv_kernel_size": 4,
    "ple_layer_ids": [2],
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hc_lowrank": 16,
        "head_dim": 32,
        "heads_per_ngram": 2,
        "hidden_size": 64,
        "indexer_budget": 16,
        "indexer_head_dim": 16,
        "indexer_n_heads": 2,
        "linear_key_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 16,
        "make_ngram_vocab_size_divisible_by": 16,
        "max_position_embeddings": 2048,
        "moe_intermediate_size": 32,
        "ngram_vocab_size_base": 200,
        "num_attention_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "ple_embed_dim": 64,
        "shared_expert_intermediate_size": 32,
        "split_ngram_parts": 16,
        "vocab_size": 320,
    },
    "real": {
        "hc_lowrank": 320,
        "head_dim": 256,
        "heads_per_ngram": 8,
        "hidden_size": 2560,
        "indexer_budget": 2048,
        "indexer_head_dim": 128,
        "indexer_n_heads": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "make_ngram_vocab_size_divisible_by": 128,
        "max_position_embeddings": 262144,
        "moe_intermediate_size": 640,
        "ngram_vocab_size_base": 20_000_000,
        "num_attention_heads": 24,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "ple_embed_dim": 2560,
        "shared_expert_intermediate_size": 640,
        "split_ngram_parts": 128,
        "vocab_size": 248320,
    },
}
_MROPE = {"tiny": [2, 1, 1], "real": [11, 11, 10]}
_NARROW = {
    "mlp.shared_expert": ("gate_proj", "up_proj", "down_proj"),
    "linear_attn": ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"),
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj", "indexer.index_qk_proj"),
}
_FIRST_CONTROL = {"tiny": 256, "real": 248044}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One random checkpoint; what cannot be is refused with the name of its flag."""

    family: str
    layers: int
    geometry: str
    format: str
    mtp: str
    seed: int

    def __post_init__(self) -> None:
        for flag, value, known in (
            ("family", self.family, ("qwen38",)),
            ("--geometry", self.geometry, GEOMETRIES),
            ("--format", self.format, FORMATS),
            ("--mtp", self.mtp, MTP),
        ):
            if value not in known:
                raise UsageError(f"{flag} {value} is unknown.", f"Use one of {', '.join(known)}.")
        if not 4 <= self.layers <= MOST_LAYERS:
            raise UsageError(
                f"--layers {self.layers} is out of range.",
                f"Give a value from 4 to {MOST_LAYERS}: the fourth is the first with attention.",
            )
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed {self.seed} is out of range.", "Give 0 to 2^63 - 1.")

    @property
    def vocabulary(self) -> text.Vocabulary:
        """The tokens it has."""
        return text.Vocabulary(_FIRST_CONTROL[self.geometry])


def sizes(wanted: Wanted) -> dict[str, Any]:
    """The text_config of the checkpoint."""
    ends = wanted.vocabulary.control["<|endoftext|>"]
    rope = {
        "mrope_interleaved": True,
        "mrope_section": _MROPE[wanted.geometry],
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e7,
        "rope_type": "default",
    }
    kinds = ["full_attention" if n % 4 == 3 else "linear_attention" for n in range(wanted.layers)]
    found = _COMMON | _SIZES[wanted.geometry]
    found |= {
        "bos_token_id": ends,
        "eos_token_id": ends,
        "layer_types": kinds,
        "mtp": {
            "hybrid": True,
            "layer_types": ["full_attention"],
            "mtp_use_hidden_state_from_layer": None,
            "num_hidden_layers": 1,
            "rope_theta": 1e7,
        },
        "num_hidden_layers": wanted.layers,
        "rope_parameters": rope,
    }
    if wanted.format != "bf16" and wanted.format != "fp4-local":
        found["ple_embedding_dtype"] = "float8_e4m3fn"
    return dict(sorted(found.items()))


def narrow(wanted: Wanted, layer: int) -> list[str]:
    """The modules of a layer that the format stores in MXFP8."""
    if wanted.format != "fp4-local":
        return []
    other = "self_attn" if layer % 4 != 3 else "linear_attn"
    return [
        f"{TARGET}layers.{layer}.{part}.{module}"
        for part, modules in _NARROW.items()
        for module in modules
        if part != other
    ]


def config(wanted: Wanted) -> dict[str, Any]:
    """The whole config.json."""
    control = wanted.vocabulary.control
    found: dict[str, Any] = {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "image_token_id": control["<|image_pad|>"],
        "model_type": "qwen4_exp",
        "text_config": sizes(wanted),
        "tie_word_embeddings": False,
        "video_token_id": control["<|video_pad|>"],
        "vision_end_token_id": control["<|vision_end|>"],
        "vision_start_token_id": control["<|vision_start|>"],
    }
    quantised = _quantisation(wanted)
    return found | ({"quantization_config": quantised} if quantised else {})


def _quantisation(wanted: Wanted) -> dict[str, Any]:
    """How the format's makers describe it. What a tensor is can be told without."""
    if wanted.format == "bf16":
        return {}
    if wanted.format == "fp8":
        return {
            "activation_scheme": "dynamic",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        }
    if wanted.format == "nvfp4":
        return {
            "group_size": 16,
            "ignore": ["mtp.*"],
            "quant_algo": "NVFP4",
            "quant_method": "modelopt",
        }
    return {
        "quant_algo": "MIXED_PRECISION",
        "quant_method": "modelopt",
        "quantized_layers": _mixed(wanted),
    }


def _mixed(wanted: Wanted) -> dict[str, Any]:
    """Module names to formats. The MTP layer goes by the number behind the last layer's, as
    published checkpoints have it.
    """
    csf = {"weight_scale_encoding": "csf"} if wanted.format == "fp4-local" else {}
    experts = {"group_size": 16, "quant_algo": "NVFP4", **csf}
    layers = range(wanted.layers)
    found: dict[str, Any] = {f"{TARGET}layers.{n}.mlp.experts": experts for n in layers}
    for n in layers:
        mxfp8 = {"group_size": 32, "quant_algo": "MXFP8"}
        found |= dict.fromkeys(narrow(wanted, n), mxfp8)
    if wanted.mtp == "none":
        return found
    alias = f"mtp.layers.{wanted.layers}.mlp.experts"
    if wanted.format == "fp4-local":
        return found | {alias: {"group_size": 16, "quant_algo": "W4A16_NVFP4"}}
    return found | {alias: {"quant_algo": "FP8_PB_WO", "weight_block_size": [128, 128]}}
