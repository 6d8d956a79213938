"""A tiny llama as a GGUF, written by the reference writer, with its values at hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 32, 4, 2, 8, 64, 2
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "i n", "Ġt he", "l l", "he ll", "hell o", "Ġ a")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_letters() -> list[str]:
    """The stand-ins of the 256 bytes in byte-level vocabularies, by their published rule."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = [], 0
    for byte in range(256):
        letters.append(chr(byte) if byte in printable else chr(256 + extra))
        extra += byte not in printable
    return letters


def vocabulary() -> list[str]:
    return [*SPECIALS, *byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]


def tokenizer_metadata() -> dict[str, Any]:
    """The tokenizer keys of the tiny model."""
    tokens = vocabulary()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def metadata() -> dict[str, Any]:
    return {
        "general.name": "Tiny",
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        **tokenizer_metadata(),
    }


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rotate-half rows in the order a GGUF keeps them: the two rows of each pair together."""
    half = rows.shape[0] // heads // 2
    order = [
        head * 2 * half + part * half + pair
        for head in range(heads)
        for pair in range(half)
        for part in range(2)
    ]
    return rows[order]


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors under their safetensors names, in the rotate-half order."""
    random = np.random.default_rng(seed)
    kv = KV_HEADS * HEAD_DIM
    shapes = {"model.embed_tokens": (len(vocabulary()), HIDDEN), "model.norm": (HIDDEN,)}
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        shapes |= {
            f"{block}.input_layernorm": (HIDDEN,),
            f"{block}.self_attn.q_proj": (HIDDEN, HIDDEN),
            f"{block}.self_attn.k_proj": (kv, HIDDEN),
            f"{block}.self_attn.v_proj": (kv, HIDDEN),
            f"{block}.self_attn.o_proj": (HIDDEN, HIDDEN),
            f"{block}.post_attention_layernorm": (HIDDEN,),
            f"{block}.mlp.gate_proj": (INNER, HIDDEN),
            f"{block}.mlp.up_proj": (INNER, HIDDEN),
            f"{block}.mlp.down_proj": (HIDDEN, INNER),
        }
    return {
        f"{name}.weight": random.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    }


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    for mine, theirs in _GGUF_NAMES.items():
        name = name.replace(mine, theirs)
    return name.replace("model.layers.", "blk.")


@dataclass(frozen=True)
class TinyGguf:
    """A written file and what went into it."""

    path: Path
    weights: dict[str, np.ndarray]


def write(
    path: Path,
    *,
    architecture: str = "llama",
    extra: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    surplus: dict[str, np.ndarray] | None = None,
    quantized: bool = True,
    kind: str = "Q4_1",
) -> TinyGguf:
    """Write the tiny model; `extra` sets metadata, `drop` leaves keys out, `surplus` adds. Its
    matrices are `quantized` to that kind."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**metadata(), **(extra or {})}.items():
        if key not in drop:
            _add(writer, key, value)
    values = weights()
    for name, value in values.items():
        stored = value
        if "q_proj" in name or "k_proj" in name:
            stored = interleaved(value, HEADS if "q_proj" in name else KV_HEADS)
        type_ = gguf.GGMLQuantizationType[kind if quantized and value.ndim == 2 else "F32"]
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(stored, type_), raw_dtype=type_)
    for name, value in (surplus or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyGguf(path, values)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)
