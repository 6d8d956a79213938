"""A llama GGUF in the words of a llama config.json and its safetensors files.

Owns the two differences between the forms: names, and the order of rotary rows. A GGUF keeps the
two rows of each rotary pair side by side; safetensors files keep all first halves, then all second
halves. Imports no torch.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from flarechat.errors import ModelError
from flarechat.models.gguf import REMEDY, Gguf

if TYPE_CHECKING:
    import numpy as np

_GLOBAL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(gguf: Gguf) -> dict[str, Any]:
    """The keys of a config.json, from the metadata and the tensor table."""
    heads: int = _need(gguf, "attention.head_count", int)
    hidden: int = _need(gguf, "embedding_length", int)
    head_dim = _get(gguf, "attention.key_length", hidden // heads if heads else 0)
    rotated = _get(gguf, "rope.dimension_count", head_dim)
    if rotated != head_dim:
        _refuse(gguf, f"rotates {rotated} of the {head_dim} values of a head")
    embedding = gguf.tensors.get("token_embd.weight")
    found: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": _need(gguf, "feed_forward_length", int),
        "num_hidden_layers": _need(gguf, "block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": _get(gguf, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": _need(gguf, "attention.layer_norm_rms_epsilon", float),
        "rope_theta": _get(gguf, "rope.freq_base", 10000.0),
        "vocab_size": embedding.shape[0] if embedding else _need(gguf, "vocab_size", int),
        "max_position_embeddings": _need(gguf, "context_length", int),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
    }
    scaling = _rope_scaling(gguf, found)
    return found | ({"rope_scaling": scaling} if scaling else {})


def tensor_names(gguf: Gguf) -> dict[str, str]:
    """Safetensors name to GGUF name of every tensor; one that has no place is refused."""
    return {_renamed(gguf, name): name for name in gguf.tensors if name != _ROPE_FACTORS}


def read(gguf: Gguf, name: str, config: dict[str, Any]) -> np.ndarray:
    """The float32 values of the tensor that the GGUF calls `name`, rotary rows reordered."""
    values, order = gguf.read(name), row_order(gguf, name, config)
    return values if order is None else values[order]


def row_order(gguf: Gguf, name: str, config: dict[str, Any]) -> np.ndarray | None:
    """Which of the tensor's rows come first, second and so on; None where they stay in place."""
    if ".attn_q." in name:
        return _rotate_half(gguf, name, config["num_attention_heads"])
    if ".attn_k." in name:
        return _rotate_half(gguf, name, config["num_key_value_heads"])
    return None


def _rotate_half(gguf: Gguf, name: str, heads: int) -> np.ndarray:
    """Rows [heads, pair, 2] as [heads, 2, pair]: all first halves of a head, then all second."""
    import numpy as np

    rows = gguf.tensors[name].shape[0]
    if rows % (2 * heads):
        _refuse(gguf, f"gives {name} {rows} rows, which {heads} heads do not divide in pairs")
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _renamed(gguf: Gguf, name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block and block[2] in _BLOCK:
        return f"model.layers.{int(block[1])}.{_BLOCK[block[2]]}.{suffix}"
    if stem in _GLOBAL:
        return f"{_GLOBAL[stem]}.{suffix}"
    raise ModelError(
        f"{gguf.path} has the tensor {name}, which a llama model does not have.",
        "It is a variant flarechat cannot run (experts, for one); give another with --model.",
    )


def _rope_scaling(gguf: Gguf, found: dict[str, Any]) -> dict[str, Any] | None:
    """The stretching of positions, told in metadata or as one factor for each rotary pair."""
    kind = _get(gguf, "rope.scaling.type", "none")
    if _ROPE_FACTORS in gguf.tensors:
        return _llama3_scaling(gguf, found)
    if kind in ("none", ""):
        return None
    return {
        "rope_type": kind,
        "factor": float(_need(gguf, "rope.scaling.factor", float)),
        "original_max_position_embeddings": _get(
            gguf, "rope.scaling.original_context_length", found["max_position_embeddings"]
        ),
    }


def _llama3_scaling(gguf: Gguf, found: dict[str, Any]) -> dict[str, Any]:
    """The rule of Llama 3 behind the factors of a file, checked against every one of them."""
    stored = [float(factor) for factor in gguf.read(_ROPE_FACTORS).ravel()]
    scaling = {**_LLAMA3, "factor": max(stored)}
    low = _LLAMA3["original_max_position_embeddings"] / _LLAMA3["low_freq_factor"]
    high = _LLAMA3["original_max_position_embeddings"] / _LLAMA3["high_freq_factor"]
    pairs = found["head_dim"] // 2
    expected = []
    for pair in range(pairs):
        wavelength = 2 * math.pi * found["rope_theta"] ** (pair / pairs)
        smooth = min(1.0, max(0.0, (low / wavelength - 1.0) / (low / high - 1.0)))
        expected.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    if len(stored) != pairs or any(
        not math.isclose(a, b, rel_tol=1e-4) for a, b in zip(stored, expected, strict=True)
    ):
        _refuse(gguf, "stretches positions by factors that are not those of Llama 3")
    return scaling


def _get(gguf: Gguf, key: str, default: Any) -> Any:
    """An optional value, of the kind of its default."""
    value = gguf.metadata.get(f"llama.{key}", default)
    if isinstance(value, bool) or not isinstance(value, type(default)):
        _refuse(gguf, f"has llama.{key} = {value!r}")
    return value


def _need(gguf: Gguf, key: str, kind: type[float]) -> Any:
    value = gguf.metadata.get(f"llama.{key}")
    if value is None:
        _refuse(gguf, f"lacks llama.{key}")
    if isinstance(value, bool) or not isinstance(value, kind):
        _refuse(gguf, f"has llama.{key} = {value!r}")
    if value <= 0:
        _refuse(gguf, f"has llama.{key} = {value!r}, which is not positive")
    return value


def _refuse(gguf: Gguf, what: str) -> NoReturn:
    raise ModelError(f"The model file {gguf.path} {what}.", REMEDY)
