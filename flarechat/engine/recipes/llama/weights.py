"""Checkpoint tensors to a llama model, strict in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
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
from flarechat.engine.weights.checkpoint import shape_of
from flarechat.errors import ModelError
from flarechat.protocol import PACKED

COMPUTE = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    PACKED: torch.float32,
}
_IGNORED = ("rotary_emb.inv_freq", "rope_freqs.weight")


def block_shapes(args: ModelArgs) -> dict[str, tuple[int, ...]]:
    """Every tensor of one block, with its shape."""
    wide, kv = args.num_attention_heads * args.head_dim, args.num_key_value_heads * args.head_dim
    dim, inner = args.hidden_size, args.intermediate_size
    return {
        "input_layernorm.weight": (dim,),
        "post_attention_layernorm.weight": (dim,),
        "self_attn.q_proj.weight": (wide, dim),
        "self_attn.k_proj.weight": (kv, dim),
        "self_attn.v_proj.weight": (kv, dim),
        "self_attn.o_proj.weight": (dim, wide),
        "mlp.gate_proj.weight": (inner, dim),
        "mlp.up_proj.weight": (inner, dim),
        "mlp.down_proj.weight": (dim, inner),
    }


def shapes(args: ModelArgs) -> dict[str, tuple[int, ...]]:
    """Every tensor a llama checkpoint must have, with its shape."""
    dim, block = args.hidden_size, block_shapes(args)
    named: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (args.vocab_size, dim),
        "model.norm.weight": (dim,),
    }
    for layer in range(args.num_hidden_layers):
        named |= {f"model.layers.{layer}.{n}": shape for n, shape in block.items()}
    if not args.tie_word_embeddings:
        named["lm_head.weight"] = (args.vocab_size, dim)
    return named


def parameters(args: ModelArgs) -> int:
    """The model's values."""
    return sum(math.prod(shape) for shape in shapes(args).values())


def price(args: ModelArgs, slots: int, context: int, dtype: str) -> dict[str, int]:
    """Bytes of weights and of caches, the angles of all positions included, before anything is
    allocated."""
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
    angles = 2 * (context + 2 * SCRATCH_ROWS) * args.head_dim * torch.float32.itemsize
    return {"weights": weights, "caches": kv + angles}


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
    allowed = {"lm_head.weight"} if args.tie_word_embeddings else set()
    allowed |= {name for name in tensors if name.endswith(_IGNORED)}
    remedy = "The checkpoint is damaged or of another family; download it again."
    check(shapes(args), tensors, allowed, "The checkpoint", remedy)
    weights = Weights(tensors, dtype, device)
    embedding = weights.get("model.embed_tokens")
    # The head, the largest, goes beside the layers.
    tied = args.tie_word_embeddings
    head = weights.product(lambda: embedding) if tied else weights.linear("lm_head")
    layers = range(args.num_hidden_layers)
    kv_heads, head_dim = args.num_key_value_heads, args.head_dim
    rows = context + 2 * SCRATCH_ROWS
    rope = Rope(head_dim, rows, args.rope_theta, args.rope_scaling, device)
    blocks = [block(args, f"model.layers.{layer}", weights, rope) for layer in layers]
    weights.close()
    return Model(
        args,
        embedding,
        blocks,
        RMSNorm(weights.get("model.norm"), args.rms_norm_eps),
        head,
        rope,
        KVState(len(layers), slots, context, kv_heads, head_dim, COMPUTE[dtype], device),
    )


class Weights:
    """Hands out a file's tensors in the dtype and storage of `dtype`, on a device.

    Packing leaves the interpreter free and goes on behind the first requests; each product waits
    for its own weight.
    """

    def __init__(self, tensors: Mapping[str, Tensor], dtype: str, device: torch.device) -> None:
        self._tensors, self._dtype, self._device = tensors, dtype, device
        self._packing = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="weights")

    def get(self, name: str) -> Tensor:
        """One tensor as it is computed with."""
        return self._tensors[f"{name}.weight"].to(device=self._device, dtype=COMPUTE[self._dtype])

    def linear(self, *names: str) -> Linear:
        """The product with these weights [out, in], one below the other."""
        if len(names) == 1:
            return self.product(lambda: self.get(names[0]))
        return self.product(lambda: torch.cat([self.get(name) for name in names]))

    def product(self, weight: Callable[[], Tensor]) -> Linear:
        """The product with what `weight` returns, [out, in]."""
        return self.later(lambda: self._stored(weight()))

    def later(self, making: Callable[[], Linear]) -> Linear:
        """What `making` returns, made in a thread."""
        return PendingLinear(self._packing.submit(making))

    def close(self) -> None:
        """No more products are asked for; those under way go on."""
        self._packing.shutdown(wait=False)

    def _stored(self, weight: Tensor) -> Linear:
        return PackedHalfLinear(weight) if self._dtype == PACKED else DenseLinear(weight)


def block(args: ModelArgs, base: str, weights: Weights, rope: Rope) -> TransformerBlock:
    """The block whose tensors' names begin with `base`, with the angles of all positions."""
    get, linear = weights.get, weights.linear
    attn, mlp = f"{base}.self_attn", f"{base}.mlp"
    return TransformerBlock(
        RMSNorm(get(f"{base}.input_layernorm"), args.rms_norm_eps),
        Attention(
            linear(f"{attn}.q_proj", f"{attn}.k_proj", f"{attn}.v_proj"),
            linear(f"{attn}.o_proj"),
            rope,
            args.num_attention_heads,
            args.num_key_value_heads,
            args.head_dim,
        ),
        RMSNorm(get(f"{base}.post_attention_layernorm"), args.rms_norm_eps),
        MLP(linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"), linear(f"{mlp}.down_proj")),
    )


def check(
    expected: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor],
    allowed: Collection[str], file: str, remedy: str,
) -> None:  # fmt: skip
    """Refuse, with a ModelError, a file that does not have exactly the expected tensors.

    It may have those `allowed` besides; `file` is what the message calls it.
    """
    missing = sorted(set(expected) - set(tensors))
    surplus = sorted(set(tensors) - set(expected) - set(allowed))
    for names, what in ((missing, "lacks the"), (surplus, "has the unexpected")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(f"{file} {what} tensor {names[0]}{more}.", remedy)
    for name, shape in expected.items():
        found = shape_of(tensors, name)
        if found != shape:
            raise ModelError(f"The tensor {name} has shape {found}, not {shape}.", remedy)
