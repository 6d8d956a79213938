"""Checkpoint tensors to a llama model, strict in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from flarechat.engine.layers.attention import Attention
from flarechat.engine.layers.linear import (
    DenseLinear,
    Linear,
    PackedHalfLinear,
    PendingLinear,
)
from flarechat.engine.layers.mlp import MLP
from flarechat.engine.layers.norm import RMSNorm
from flarechat.engine.layers.rope import Rope
from flarechat.engine.recipes.llama.config import ModelArgs
from flarechat.engine.recipes.llama.model import Model, TransformerBlock
from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.state.kv import KVState
from flarechat.errors import ModelError
from flarechat.protocol import PACKED

COMPUTE = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    PACKED: torch.float32,
}
_IGNORED = ("rotary_emb.inv_freq", "rope_freqs.weight")


def shapes(args: ModelArgs) -> dict[str, tuple[int, ...]]:
    """Every tensor a llama checkpoint must have, with its shape."""
    wide, kv = args.num_attention_heads * args.head_dim, args.num_key_value_heads * args.head_dim
    dim, inner = args.hidden_size, args.intermediate_size
    block = {
        "input_layernorm": (dim,),
        "post_attention_layernorm": (dim,),
        "self_attn.q_proj": (wide, dim),
        "self_attn.k_proj": (kv, dim),
        "self_attn.v_proj": (kv, dim),
        "self_attn.o_proj": (dim, wide),
        "mlp.gate_proj": (inner, dim),
        "mlp.up_proj": (inner, dim),
        "mlp.down_proj": (dim, inner),
    }
    named: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (args.vocab_size, dim),
        "model.norm.weight": (dim,),
    }
    for layer in range(args.num_hidden_layers):
        named |= {f"model.layers.{layer}.{n}.weight": shape for n, shape in block.items()}
    if not args.tie_word_embeddings:
        named["lm_head.weight"] = (args.vocab_size, dim)
    return named


def price(args: ModelArgs, slots: int, context: int, dtype: str) -> dict[str, int]:
    """Bytes of weights and caches, before anything is allocated."""
    compute = COMPUTE[dtype]
    width = 2 if dtype == PACKED else compute.itemsize
    sizes = {name: torch.Size(shape).numel() for name, shape in shapes(args).items()}
    embedding = sizes.pop("model.embed_tokens.weight")
    weights = width * sum(sizes.values()) + compute.itemsize * embedding
    if dtype == PACKED and args.tie_word_embeddings:
        weights += width * embedding  # the head is packed, the embedding is not
    kv = KVState.price(
        args.num_hidden_layers, slots, context, args.num_key_value_heads, args.head_dim, compute
    )
    return {"weights": weights, "caches": kv}


def load(
    config: dict[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    slots: int,
    context: int,
    dtype: str,
    device: torch.device,
) -> Model:
    """Build the model. Missing, surplus or misshaped tensors are a ModelError."""
    args = ModelArgs.from_config(config)
    _check(shapes(args), tensors, args)
    compute = COMPUTE[dtype]

    def get(name: str) -> Tensor:
        return tensors[f"{name}.weight"].to(device=device, dtype=compute)

    embedding = get("model.embed_tokens")

    def made(names: tuple[str, ...]) -> Linear:
        if names == ("model.embed_tokens",):
            weight = embedding
        else:
            weight = torch.cat([get(n) for n in names]) if len(names) > 1 else get(names[0])
        return PackedHalfLinear(weight) if dtype == PACKED else DenseLinear(weight)

    # Packing leaves the interpreter free and goes on behind the first requests; each product waits
    # for its own weight. The head, the largest, goes beside the layers.
    packing = ThreadPoolExecutor(max_workers=torch.get_num_threads(), thread_name_prefix="weights")

    def linear(*names: str) -> Linear:
        return PendingLinear(packing.submit(made, names))

    head = linear("model.embed_tokens" if args.tie_word_embeddings else "lm_head")
    layers = range(args.num_hidden_layers)
    blocks = [_block(args, f"model.layers.{layer}", get, linear) for layer in layers]
    packing.shutdown(wait=False)
    rows = context + 2 * SCRATCH_ROWS
    kv_heads, head_dim = args.num_key_value_heads, args.head_dim
    return Model(
        args,
        embedding,
        blocks,
        RMSNorm(get("model.norm"), args.rms_norm_eps),
        head,
        Rope(head_dim, rows, args.rope_theta, args.rope_scaling, device),
        KVState(len(layers), slots, context, kv_heads, head_dim, compute, device),
    )


def _block(
    args: ModelArgs, base: str, get: Callable[[str], Tensor], linear: Callable[..., Linear]
) -> TransformerBlock:
    attn, mlp = f"{base}.self_attn", f"{base}.mlp"
    return TransformerBlock(
        RMSNorm(get(f"{base}.input_layernorm"), args.rms_norm_eps),
        Attention(
            linear(f"{attn}.q_proj", f"{attn}.k_proj", f"{attn}.v_proj"),
            linear(f"{attn}.o_proj"),
            args.num_attention_heads,
            args.num_key_value_heads,
            args.head_dim,
        ),
        RMSNorm(get(f"{base}.post_attention_layernorm"), args.rms_norm_eps),
        MLP(linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"), linear(f"{mlp}.down_proj")),
    )


def _check(
    expected: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor], args: ModelArgs
) -> None:
    """Refuse a checkpoint that does not have exactly the expected tensors."""
    remedy = "The checkpoint is damaged or of another family; download it again."
    allowed = set(expected) | ({"lm_head.weight"} if args.tie_word_embeddings else set())
    missing = sorted(set(expected) - set(tensors))
    surplus = sorted(n for n in set(tensors) - allowed if not n.endswith(_IGNORED))
    for names, what in ((missing, "lacks the"), (surplus, "has the unexpected")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(f"The checkpoint {what} tensor {names[0]}{more}.", remedy)
    for name, shape in expected.items():
        found = tuple(tensors[name].shape)
        if found != shape:
            raise ModelError(f"The tensor {name} has shape {found}, not {shape}.", remedy)
