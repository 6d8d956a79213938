"""Checkpoint tensors to a llama model, strict in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flarechat.engine.kernels.cpu.library import MOST_HEAD_DIM
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
from flarechat.engine.recipes.llama.model import Blocks, Model, TransformerBlock
from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.state.kv import KVState
from flarechat.engine.weights import tiles
from flarechat.engine.weights.checkpoint import packing_of, shape_of, tiles_of
from flarechat.errors import ModelError
from flarechat.protocol import PACKED, STORED

COMPUTE = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    PACKED: torch.float32,
    STORED: torch.float32,
}
"""What activations are between products."""

_IGNORED = ("rotary_emb.inv_freq", "rope_freqs.weight")


def cached(dtype: str) -> torch.dtype:
    """What keys and values are kept in."""
    return torch.float16 if dtype == STORED else COMPUTE[dtype]


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


def unstorable(args: ModelArgs, tensors: Mapping[str, Tensor]) -> str | None:
    """Why the CPU's kernels cannot take the model as its file has it, without rounding a number;
    None where they can."""
    if args.head_dim > MOST_HEAD_DIM:
        return f"Its heads have {args.head_dim} dimensions, the CPU's kernels take {MOST_HEAD_DIM}"
    for name, shape in shapes(args).items():
        if len(shape) == 2 and packing_of(tensors, name) is None:
            return f"It stores {name} in numbers that the CPU's kernels lack"
    return None


def price_stored(
    args: ModelArgs, config: dict[str, Any], tensors: Mapping[str, Tensor], *, slots: int,
    context: int, dtype: str, device: torch.device,
) -> dict[str, int]:  # fmt: skip
    """Bytes of weights and of caches, the angles of all positions included, before anything is
    allocated; what is mapped from the file counts as what is not."""
    if dtype != STORED:
        return price(args, slots, context, dtype)
    weights = 0
    for name, shape in shapes(args).items():
        packing = packing_of(tensors, name)
        weights += tiles.size(*packing) if packing else 4 * math.prod(shape)
    return {"weights": weights, "caches": _cache_price(args, slots, context, dtype)}


def price(args: ModelArgs, slots: int, context: int, dtype: str) -> dict[str, int]:
    """The same for a dtype in which the file does not matter."""
    compute = COMPUTE[dtype]
    width = 2 if dtype == PACKED else compute.itemsize
    sizes = {name: math.prod(shape) for name, shape in shapes(args).items()}
    embedding = sizes.pop("model.embed_tokens.weight")
    weights = width * sum(sizes.values()) + compute.itemsize * embedding
    if dtype == PACKED and args.tie_word_embeddings:
        weights += width * embedding  # the head is packed, the embedding is not
    return {"weights": weights, "caches": _cache_price(args, slots, context, dtype)}


def _cache_price(args: ModelArgs, slots: int, context: int, dtype: str) -> int:
    layers, kv_heads = args.num_hidden_layers, args.num_key_value_heads
    kv = KVState.price(layers, slots, context, kv_heads, args.head_dim, cached(dtype))
    return kv + 2 * (context + 2 * SCRATCH_ROWS) * args.head_dim * torch.float32.itemsize


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
    weights = _opened(tensors, dtype, device)
    embedding = weights.table("model.embed_tokens")
    # The head, the largest, goes beside the layers.
    tied = args.tie_word_embeddings
    head = weights.tied(embedding) if tied else weights.linear("lm_head")
    layers = range(args.num_hidden_layers)
    kv_heads, head_dim = args.num_key_value_heads, args.head_dim
    rows = context + 2 * SCRATCH_ROWS
    rope = Rope(head_dim, rows, args.rope_theta, args.rope_scaling, device)
    blocks = weights.blocks(weights.block(args, f"model.layers.{n}", rope) for n in layers)
    weights.close()
    return Model(
        args,
        embedding,
        blocks,
        RMSNorm(weights.get("model.norm"), args.rms_norm_eps),
        head,
        rope,
        KVState(len(layers), slots, context, kv_heads, head_dim, cached(dtype), device),
    )


def _opened(tensors: Mapping[str, Tensor], dtype: str, device: torch.device) -> Any:
    """What hands the tensors out in that dtype: Weights, or TiledWeights with the same verbs."""
    if dtype != STORED:
        return Weights(tensors, dtype, device)
    from flarechat.engine.recipes.llama.stored import TiledWeights

    return TiledWeights(tensors, partial(tiles_of, tensors))


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

    def table(self, name: str) -> Tensor:
        """Rows for tokens."""
        return self.get(name)

    def tied(self, table: Tensor) -> Linear:
        """The product with a table's rows."""
        return self.product(lambda: table)

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

    def block(self, args: ModelArgs, base: str, rope: Rope) -> TransformerBlock:
        """The block whose tensors' names begin with `base`, with the angles of all positions."""
        get, linear = self.get, self.linear
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

    def blocks(self, blocks: Iterable[TransformerBlock]) -> Blocks:
        """Blocks in their order."""
        return Blocks(blocks)

    def close(self) -> None:
        """No more products are asked for; those under way go on."""
        self._packing.shutdown(wait=False)

    def _stored(self, weight: Tensor) -> Linear:
        return PackedHalfLinear(weight) if self._dtype == PACKED else DenseLinear(weight)


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
