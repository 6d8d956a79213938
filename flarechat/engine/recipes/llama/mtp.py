"""The MTP head of a llama target: a few blocks that guess the token after the next one.

Owns the head's sizes, its weights and its arithmetic. Row i pairs the target's hidden state of
token i with the embedding of token i + 1, stands at rotary position i and predicts token i + 2.
Embedding and output head are the target's own. Reading the file is not its work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flarechat.engine import kernels
from flarechat.engine.layers.embedding import embed
from flarechat.engine.layers.linear import Linear, TiledLinear, multiply, multiply_normed
from flarechat.engine.layers.norm import RMSNorm
from flarechat.engine.recipes.llama.config import ModelArgs
from flarechat.engine.recipes.llama.model import Blocks, Model
from flarechat.engine.recipes.llama.weights import COMPUTE, Weights, block_shapes, cached, check
from flarechat.engine.state.hidden import HiddenState
from flarechat.engine.state.kv import KVState
from flarechat.engine.weights import tiles
from flarechat.errors import ModelError
from flarechat.protocol import PACKED, STORED

if TYPE_CHECKING:
    from flarechat.engine.recipes.llama.stored import TiledBlocks
    from flarechat.engine.window import Window

_HINT = "The chat goes on without MTP drafts; give another file with --mtp-file."


@dataclass(frozen=True, slots=True)
class MtpArgs:
    """Sizes of a head. `blocks` describes its blocks as a llama's; `vocabulary` None is all."""

    blocks: ModelArgs
    taps: tuple[int, ...]
    vocabulary: tuple[int, ...] | None

    @classmethod
    def from_record(cls, record: Mapping[str, Any], target: ModelArgs) -> MtpArgs:
        """Read a file's record for a head of `target`; what does not fit is a ModelError."""
        hidden = record.get("hidden_size")
        if hidden != target.hidden_size:
            raise _refusal(f"is for a hidden size of {hidden}; the model has {target.hidden_size}")
        for key in ("layers", "intermediate_size"):
            if not _whole(record.get(key)) or record[key] < 1:
                raise _refusal(f"has {key} = {record.get(key)!r}, not a positive whole number")
        blocks = replace(
            target,
            num_hidden_layers=record["layers"],
            intermediate_size=record["intermediate_size"],
        )
        return cls(blocks, _taps(record, target), _vocabulary(record, target))


def _taps(record: Mapping[str, Any], target: ModelArgs) -> tuple[int, ...]:
    taps, most = record.get("taps"), target.num_hidden_layers
    if not isinstance(taps, (list, tuple)) or not taps:
        raise _refusal(f"has taps = {taps!r}, not a list of layers")
    for tap in taps:
        if not _whole(tap) or not 1 <= tap <= most:
            raise _refusal(f"reads layer {tap!r}; the model has layers 1 to {most}")
    return tuple(taps)


def _vocabulary(record: Mapping[str, Any], target: ModelArgs) -> tuple[int, ...] | None:
    ids = record.get("draft_vocabulary")
    if ids is None:
        return None
    if not isinstance(ids, (list, tuple)) or not ids:
        raise _refusal("has a draft vocabulary that is not a list of token ids")
    for token in ids:
        if not _whole(token) or not 0 <= token < target.vocab_size:
            raise _refusal(f"drafts token {token!r}; the model has {target.vocab_size} tokens")
    for before, after in pairwise(ids):
        if after <= before:
            raise _refusal(f"lists draft token {after} after {before}; ids must increase")
    return tuple(ids)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refusal(what: str) -> ModelError:
    return ModelError(f"The MTP head {what}.", _HINT)


def shapes(args: MtpArgs) -> dict[str, tuple[int, ...]]:
    """Every tensor a head's file must have, with its shape."""
    named = _outer_shapes(args)
    for layer in range(args.blocks.num_hidden_layers):
        named |= {f"mtp.layers.{layer}.{n}": s for n, s in block_shapes(args.blocks).items()}
    return named


def _outer_shapes(args: MtpArgs) -> dict[str, tuple[int, ...]]:
    dim = args.blocks.hidden_size
    named: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (dim, 2 * dim),
        "mtp.pre_fc_norm_hidden.weight": (dim,),
        "mtp.pre_fc_norm_embedding.weight": (dim,),
        "mtp.norm.weight": (dim,),
    }
    if len(args.taps) > 1:
        named["mtp.fuse.weight"] = (dim, dim * len(args.taps))
    return named


def price_head(
    args: ModelArgs, record: Mapping[str, Any], slots: int, context: int, dtype: str,
    *, target: Model | None = None,
) -> dict[str, int]:  # fmt: skip
    """Bytes of a head of the target `args`, before anything is allocated.

    "mtp weights" counts its own tensors and its copy of the output rows it drafts from, which the
    `target` itself may keep in tiles; "mtp caches" the keys, values and hidden rows of all slots.
    """
    mtp, compute = MtpArgs.from_record(record, args), COMPUTE[dtype]
    layers, ids = mtp.blocks.num_hidden_layers, len(mtp.vocabulary or ())
    own = sum(_size(shape, dtype) for shape in _outer_shapes(mtp).values())
    own += layers * sum(_size(shape, dtype) for shape in block_shapes(mtp.blocks).values())
    if target is not None and isinstance(target.head, TiledLinear):
        own += tiles.size(target.head.weight.kind, ids, args.hidden_size)
    else:
        own += _size((ids, args.hidden_size), dtype)
    own += ids * torch.int64.itemsize
    kv_heads, head_dim = args.num_key_value_heads, args.head_dim
    kv = KVState.price(layers, slots, context, kv_heads, head_dim, cached(dtype))
    hidden = HiddenState.price(slots, context, args.hidden_size, compute)
    return {"mtp weights": own, "mtp caches": kv + hidden}


def _size(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of one of a head's tensors."""
    if len(shape) == 1:
        return shape[0] * COMPUTE[dtype].itemsize
    if dtype == STORED:
        return tiles.size(tiles.nearest(shape[1]), *shape)
    return math.prod(shape) * (2 if dtype == PACKED else COMPUTE[dtype].itemsize)


class MtpHead:
    """Owns the weights of one head, and borrows its target's embedding and output head."""

    def __init__(
        self, args: MtpArgs, target: Model, blocks: Blocks | TiledBlocks, fc: Linear,
        norms: tuple[RMSNorm, RMSNorm, RMSNorm], fuse: Linear | None, head: Linear,
    ) -> None:  # fmt: skip
        self.args, self.blocks, self.fc, self.fuse, self.head = args, blocks, fc, fuse, head
        self.norm_hidden, self.norm_embedding, self.norm = norms
        self.embedding = target.embedding
        self.features = args.blocks.hidden_size
        ids, self._kept = args.vocabulary, target.kv.keys[0]
        self.vocabulary = None if ids is None else torch.tensor(ids, device=self._kept.device)

    def cache(self, slots: int, context: int) -> tuple[KVState, HiddenState]:
        """Keys and values of its blocks, and the hidden rows it starts from, for S slots."""
        a, kept = self.args.blocks, self._kept
        kv = KVState(
            a.num_hidden_layers, slots, context, a.num_key_value_heads, a.head_dim, kept.dtype,
            kept.device, behind=1,
        )  # fmt: skip
        dtype = self.norm.weight.dtype
        return kv, HiddenState(slots, context, a.hidden_size, dtype, kept.device)

    def condense(self, hidden: Tensor) -> Tensor:
        """Raw hidden [B, W, D * taps] → [B, W, D]."""
        return hidden if self.fuse is None else multiply(hidden, self.fuse)

    def forward(
        self, hidden: Tensor, tokens: Tensor, cache: KVState, window: Window, extent: int,
        chain: dict[str, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """hidden [B, W, D] of tokens i and tokens [B, W] at i + 1 → [B, W, D], before the norm."""
        x = self._pair(hidden, tokens)
        return self.blocks.run(x, cache, range(len(self.blocks)), window, extent)

    def write(
        self, hidden: Tensor, tokens: Tensor, cache: KVState, window: Window, extent: int
    ) -> None:
        """As `forward`, but of the last block only what it keeps: its keys and values."""
        x, last = self._pair(hidden, tokens), len(self.blocks) - 1
        x = self.blocks.run(x, cache, range(last), window, extent)
        self.blocks[last].write(x, cache, last, window)

    def _pair(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """What the first block reads: [B, W, D]."""
        first, second = self.norm_hidden, self.norm_embedding
        if kernels.fused(hidden):
            from flarechat.engine.kernels import lookups

            assert isinstance(self.embedding, Tensor), "tiles are for the CPU"
            pairs = lookups.pair(
                hidden, first.weight, tokens, self.embedding, second.weight, first.eps
            )
            return multiply(pairs, self.fc)
        embedded = second(embed(tokens, self.embedding))
        return self.fc(torch.cat([first(hidden), embedded], dim=-1))

    def logits(self, output: Tensor) -> Tensor:
        """Outputs [B, W, D] → logits [B, W, R] of the draft vocabulary."""
        return multiply_normed(output, self.norm, self.head)


def _opened(tensors: Mapping[str, Tensor], dtype: str, device: torch.device) -> Any:
    """What hands a head's tensors out. They are rounded where the target's are not: a draft need
    not be exact, and what is kept of it is judged by the target."""
    if dtype != STORED:
        return Weights(tensors, dtype, device)
    from flarechat.engine.recipes.llama.stored import TiledWeights

    return TiledWeights(tensors, lambda name: tiles.rounded(tensors[name]))


def _kind(dtype: str) -> type[MtpHead]:
    """What a head of that dtype is."""
    if dtype != STORED:
        return MtpHead
    from flarechat.engine.recipes.llama.stored_mtp import TiledHead

    return TiledHead


def _draft_rows(target: Model, ids: Tensor, weights: Any) -> Linear:
    """The target's output head cut to `ids`; where it is tied, the embedding has its rows."""
    embedding = target.embedding
    if target.args.tie_word_embeddings and isinstance(embedding, Tensor):
        product: Linear = weights.product(lambda: embedding[ids])
        return product
    cut: Linear = weights.later(lambda: target.head.rows(ids))
    return cut


def load_head(
    target: Model, record: Mapping[str, Any], tensors: Mapping[str, Tensor], *, dtype: str,
    device: torch.device,
) -> MtpHead:  # fmt: skip
    """Build the head of `target` from a file's record and tensors, and tap the target for it.

    Whatever does not fit, tensors missing, surplus or misshaped included, is a ModelError.
    """
    args = MtpArgs.from_record(record, target.args)
    layers = args.blocks.num_hidden_layers
    if layers > len(tensors):
        raise _refusal(f"claims {layers} layers and has {len(tensors)} tensors")
    check(shapes(args), tensors, (), "The MTP file", _HINT)
    # Copies, since a file that is written over while it is mapped would end the process.
    held = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, tensor in held.items():
        if tensor.dtype not in COMPUTE.values() or not bool(torch.isfinite(tensor).all()):
            raise _refusal(f"has values in {name} that are no finite numbers")

    weights = _opened(held, dtype, device)
    names = ("mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding", "mtp.norm")
    first, second, last = (RMSNorm(weights.get(name), target.args.rms_norm_eps) for name in names)
    head = _kind(dtype)(
        args,
        target,
        weights.blocks(
            weights.block(args.blocks, f"mtp.layers.{n}", target.rope) for n in range(layers)
        ),
        weights.linear("mtp.fc"),
        (first, second, last),
        weights.linear("mtp.fuse") if len(args.taps) > 1 else None,
        target.head,
    )
    if head.vocabulary is not None:
        head.head = _draft_rows(target, head.vocabulary, weights)
    weights.close()
    target.taps = args.taps
    return head
