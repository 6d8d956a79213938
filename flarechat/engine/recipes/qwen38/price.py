"""What a Qwen3.8 checkpoint takes in memory, to the byte, before anything is allocated.

Owns the rule by which each stored tensor is held: norms and decays as float32, the experts as
their file packs them, the n-gram table on the host, all else as it is computed with. Looks at the
types of tensors and reads none of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flarechat.engine.layers.ngram_table import CACHED_ROWS, pins
from flarechat.engine.recipes.qwen38.config import ModelArgs
from flarechat.engine.recipes.qwen38.mtp_file import head_shapes, price_head
from flarechat.engine.recipes.qwen38.shapes import shapes
from flarechat.engine.recipes.qwen38.weights import COMPUTE, price
from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.weights.formats import FP8, FP8_TILE, NVFP4_GROUP
from flarechat.engine.weights.qwen38 import Qwen38Tensors

_EXPERTS = (".experts.gate_up_proj", ".experts.down_proj")
_TABLE = ".ngram_embedding.weight"
_CONSTANTS = (".layer_multipliers", ".ngram_heads_vocab_sizes", ".ngram_heads_offsets")
_FLOATS = (".A_log", ".dt_bias")


def price_stored(
    args: ModelArgs, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, slots: int,
    context: int, dtype: str, device: torch.device,
) -> dict[str, int]:  # fmt: skip
    """Bytes on the device: "weights"; "states", which do not grow with the context; "caches",
    which do, the angles of all positions included."""
    named, compute = Qwen38Tensors(tensors, config), COMPUTE[dtype]
    weights = sum(
        held(named, name, shape, compute)
        for name, shape in shapes(args).items()
        if not name.endswith(_TABLE)
    )
    weights += _table(args, named, device)
    angles = 2 * (context + 2 * SCRATCH_ROWS) * args.rotary_dim * torch.float32.itemsize
    own = price(args, slots, context, dtype)
    return {"weights": weights, "states": own["states"], "caches": own["caches"] + angles}


def price_stored_head(
    args: ModelArgs, record: Mapping[str, Any], named: Qwen38Tensors, *, slots: int, context: int,
    dtype: str,
) -> dict[str, int]:  # fmt: skip
    """Bytes of a draft head, as price_head names them, its experts packed as they are stored."""
    compute, found = COMPUTE[dtype], price_head(args, record, slots, context, dtype)
    dense = compute.itemsize * sum(math.prod(shape) for shape in head_shapes(args).values())
    own = sum(held(named, name, shape, compute) for name, shape in head_shapes(args).items())
    return found | {"mtp weights": found["mtp weights"] - dense + own}


def parameters(args: ModelArgs) -> int:
    """Values of the target, however they are stored."""
    return sum(math.prod(shape) for shape in shapes(args).values())


def held(named: Qwen38Tensors, name: str, shape: tuple[int, ...], compute: torch.dtype) -> int:
    """Bytes of one logical tensor as the model holds it."""
    count = math.prod(shape)
    if name.endswith(_EXPERTS) and name not in named:
        base, _, part = name.rpartition(".")
        matrix = f"{base}.0.{'gate_proj' if part == 'gate_up_proj' else 'down_proj'}"
        return _packed(named, matrix, part == "gate_up_proj", shape) or count * compute.itemsize
    if name.endswith(_CONSTANTS):
        return count * torch.int64.itemsize
    if name.endswith(_FLOATS) or named.is_offset_norm(name):
        return count * torch.float32.itemsize
    return count * compute.itemsize


def _packed(named: Qwen38Tensors, matrix: str, paired: bool, shape: tuple[int, ...]) -> int:
    """Bytes of packed experts like the one `matrix`, or 0 if they are not packed."""
    experts, out, wide = shape
    matrices, rows = (2 * experts, out // 2) if paired else (experts, out)
    stored = named.look(f"{matrix}.weight").dtype
    if stored == torch.uint8:
        return matrices * (rows * wide // 2 + rows * wide // NVFP4_GROUP + torch.float32.itemsize)
    if stored != FP8:
        return 0
    tiles = -(-rows // FP8_TILE) * -(-wide // FP8_TILE)
    scale = f"{matrix}.weight_scale_inv"
    scale = scale if scale in named else f"{matrix}.weight_scale"
    return matrices * (rows * wide + tiles * named.look(scale).dtype.itemsize)


def _table(args: ModelArgs, named: Qwen38Tensors, device: torch.device) -> int:
    """Bytes on the device for the n-gram table: a factor for each of its parts, and rows used
    last, or the parts' addresses where the GPU reads the host's memory."""
    base = f"layers.{args.ple_layer}.ple.ple_embedding.ngram_embedding"
    rows, width = shapes(args)[f"{base}.weight"]
    whole = f"{base}.weight" in named
    parts = 1 if whole else args.split_ngram_parts
    stored = named.look(f"{base}.weight" if whole else f"{base}.shard_0.weight").dtype
    four_bits = stored == torch.uint8
    row = width // 2 + width // NVFP4_GROUP if four_bits else width * stored.itemsize
    found = parts * torch.float32.itemsize
    if device.type != "cuda":
        return found
    if pins(rows * row, device):
        return found + (3 if four_bits else 2) * parts * torch.int64.itemsize
    return found + CACHED_ROWS * row
