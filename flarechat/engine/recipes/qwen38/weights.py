"""A checkpoint to a Qwen3.8 model with its caches, strict in both directions, and their price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flarechat.engine.layers.rope import Rope
from flarechat.engine.layers.sparse_attention import SparseCache
from flarechat.engine.recipes.qwen38.config import LINEAR, ModelArgs
from flarechat.engine.recipes.qwen38.model import Caches, Layer, Model
from flarechat.engine.recipes.qwen38.parts import Parts, delta_shape
from flarechat.engine.recipes.qwen38.shapes import shapes
from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.state.indexer import IndexerState
from flarechat.engine.state.kv import KVState
from flarechat.engine.state.ngram import NgramState
from flarechat.engine.state.recurrent import RecurrentState
from flarechat.engine.weights.qwen38 import Qwen38Tensors
from flarechat.protocol import PACKED

COMPUTE = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    PACKED: torch.float32,
}


def load(
    config: dict[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    slots: int,
    context: int,
    dtype: str,
    device: torch.device,
    commit: str = "records",
) -> Model:
    """Build the target. Missing, surplus or misshaped tensors are a ModelError; those of a draft
    head are left for it. `commit` is one of state.recurrent.COMMITS."""
    args = ModelArgs.from_config(config)
    named = Qwen38Tensors(tensors, config)
    parts = Parts(args, named, shapes(args), COMPUTE[dtype], device)
    layers = [_layer(parts, number, kind) for number, kind in enumerate(args.layer_types)]
    model = Model(
        args,
        parts.weight("embed_tokens"),
        layers,
        parts.residual("hyper_connection_mixer", inject=False),
        parts.linear("lm_head"),
        rope(args, context, device),
        _caches(args, slots, context, COMPUTE[dtype], device, commit),
    )
    named.require_all_used(mtp=False)
    return model


def _layer(parts: Parts, number: int, kind: str) -> Layer:
    base, args, linear = f"layers.{number}", parts.args, kind == LINEAR
    return Layer(
        parts.residual(f"{base}.attn_hyper_connection"),
        parts.delta(f"{base}.linear_attn") if linear else parts.sparse(f"{base}.self_attn"),
        (args.linear_layers if linear else args.sparse_layers).index(number),
        parts.residual(f"{base}.mlp_hyper_connection"),
        parts.moe(f"{base}.mlp"),
        parts.ngram(f"{base}.ple") if number == args.ple_layer else None,
    )


def rope(args: ModelArgs, context: int, device: torch.device) -> Rope:
    """The angles of all positions a slot may hold, scratch included."""
    return Rope(args.rotary_dim, context + 2 * SCRATCH_ROWS, args.rope_theta, None, device)


def sparse_cache(
    args: ModelArgs, layers: int, slots: int, context: int, dtype: torch.dtype,
    device: torch.device, behind: int = 0,
) -> SparseCache:  # fmt: skip
    """Keys, values and block keys of `layers` layers of sparse attention."""
    heads, dim, ratio = args.num_key_value_heads, args.indexer_head_dim, args.indexer_compress_ratio
    return SparseCache(
        KVState(layers, slots, context, heads, args.head_dim, dtype, device, behind),
        IndexerState(layers, slots, context, dim, ratio, dtype, device, behind),
    )


def price_sparse(args: ModelArgs, layers: int, slots: int, context: int, dtype: torch.dtype) -> int:
    """Bytes `sparse_cache` takes."""
    heads, dim, ratio = args.num_key_value_heads, args.indexer_head_dim, args.indexer_compress_ratio
    kv = KVState.price(layers, slots, context, heads, args.head_dim, dtype)
    return kv + IndexerState.price(layers, slots, context, dim, ratio, dtype)


def _ngram_sizes(args: ModelArgs) -> tuple[int, int, int]:
    """Tokens and convolution inputs looked back on, and features of one of the latter."""
    columns = (args.ple_conv_kernel_size - 1) * args.ngram_size
    return args.ngram_size - 1, columns, args.residual_size


def _caches(
    args: ModelArgs, slots: int, context: int, dtype: torch.dtype, device: torch.device, commit: str
) -> Caches:
    taps, linear = args.linear_conv_kernel_dim - 1, len(args.linear_layers)
    return Caches(
        RecurrentState(linear, slots, delta_shape(args), taps, dtype, device, commit),
        sparse_cache(args, len(args.sparse_layers), slots, context, dtype, device),
        NgramState(slots, *_ngram_sizes(args), args.eos_token_id, dtype, device),
    )


def price(args: ModelArgs, slots: int, context: int, dtype: str) -> dict[str, int]:
    """Bytes of weights, of states that do not grow with the context and of caches that do, before
    anything is allocated, of a checkpoint that is not packed."""
    compute = COMPUTE[dtype]
    taps, linear = args.linear_conv_kernel_dim - 1, len(args.linear_layers)
    states = RecurrentState.price(linear, slots, delta_shape(args), taps, compute)
    states += NgramState.price(slots, *_ngram_sizes(args), compute)
    caches = price_sparse(args, len(args.sparse_layers), slots, context, compute)
    weights = compute.itemsize * sum(torch.Size(shape).numel() for shape in shapes(args).values())
    return {"weights": weights, "states": states, "caches": caches}
