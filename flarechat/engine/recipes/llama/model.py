"""The llama target: one pass over a few new rows of every lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.layers.attention import Attention, causal_mask
from flarechat.engine.layers.linear import Linear
from flarechat.engine.layers.mlp import MLP
from flarechat.engine.layers.norm import RMSNorm
from flarechat.engine.layers.rope import Rope
from flarechat.engine.recipes.llama.config import ModelArgs
from flarechat.engine.state.kv import KVState

if TYPE_CHECKING:
    from flarechat.engine.contracts import State
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes


@dataclass(frozen=True, slots=True)
class TransformerBlock:
    """Norm, attention, norm, MLP, each half added to the residual."""

    attention_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: MLP


class Model:
    """Owns the weights of one llama checkpoint and the KV rows of its slots."""

    def __init__(
        self, args: ModelArgs, embedding: Tensor, blocks: Sequence[TransformerBlock],
        norm: RMSNorm, head: Linear, rope: Rope, kv: KVState,
    ) -> None:  # fmt: skip
        self.args, self.embedding, self.blocks = args, embedding, tuple(blocks)
        self.norm, self.head, self.rope, self.kv = norm, head, rope, kv
        self.vocabulary = args.vocab_size

    def verify(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """inputs [B, W] → normed hidden [B, W, D] and logits [B, W, V]."""
        hidden = self._forward(lanes, inputs, lanes.cache_rows(plan.width), plan.extent)
        return hidden, self.head(hidden)

    def prefill(self, lanes: Lanes, inputs: Tensor, extent: int) -> Tensor:
        """inputs [B, T] → normed hidden [B, T, D]; their keys and values are in the cache."""
        return self._forward(lanes, inputs, lanes.positions(inputs.shape[1]), extent)

    def _forward(self, lanes: Lanes, inputs: Tensor, rows: Tensor, extent: int) -> Tensor:
        positions = lanes.positions(inputs.shape[1])
        group = self.args.num_attention_heads // self.args.num_key_value_heads
        mask, angles = causal_mask(positions, extent, group), self.rope.at(positions)
        x = F.embedding(inputs, self.embedding)
        for layer, block in enumerate(self.blocks):
            normed = block.attention_norm(x)
            x = x + block.attention(normed, self.kv, layer, lanes, rows, mask, angles)
            x = x + block.mlp(block.mlp_norm(x))
        return self.norm(x)

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Keep the first `emitted` rows of the last pass."""
        self.kv.keep(lanes, emitted)

    def states(self) -> Sequence[State]:
        """The KV rows."""
        return (self.kv,)
