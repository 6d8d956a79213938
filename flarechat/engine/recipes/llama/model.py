"""The llama target: one pass over a few new rows of every lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.layers.attention import Attention
from flarechat.engine.layers.linear import Linear
from flarechat.engine.layers.mlp import MLP
from flarechat.engine.layers.norm import RMSNorm
from flarechat.engine.layers.rope import Rope
from flarechat.engine.recipes.llama.config import ModelArgs
from flarechat.engine.state.kv import KVState
from flarechat.engine.window import Window

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

    def __call__(
        self, x: Tensor, cache: KVState, layer: int, window: Window, extent: int
    ) -> Tensor:
        """x [B, W, D] → [B, W, D]; the rest as `Attention` takes it."""
        x = x + self.attention(self.attention_norm(x), cache, layer, window, extent)
        return x + self.mlp(self.mlp_norm(x))


class Model:
    """Owns the weights of one llama checkpoint and the KV rows of its slots.

    `taps` are the layers whose raw outputs a draft head reads, counted in blocks passed.
    """

    repair_ms = 0.0

    def __init__(
        self, args: ModelArgs, embedding: Tensor, blocks: Sequence[TransformerBlock],
        norm: RMSNorm, head: Linear, rope: Rope, kv: KVState,
    ) -> None:  # fmt: skip
        self.args, self.embedding, self.blocks = args, embedding, tuple(blocks)
        self.norm, self.head, self.rope, self.kv = norm, head, rope, kv
        self.vocabulary = args.vocab_size
        self.taps: tuple[int, ...] = (args.num_hidden_layers,)

    def verify(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """inputs [B, W] → raw hidden [B, W, D * taps] and logits [B, W, V]."""
        hidden, last = self._forward(lanes, inputs, plan)
        return hidden, self.head(self.norm(last))

    def prefill(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> Tensor:
        """inputs [B, T] → raw hidden [B, T, D * taps]; their keys and values are in the cache."""
        return self._forward(lanes, inputs, plan)[0]

    def _forward(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """Raw outputs of the tapped layers side by side, and of the last one [B, T, D]."""
        window = Window(lanes, plan.width)
        x = F.embedding(inputs, self.embedding)
        tapped: dict[int, Tensor] = {}
        for layer, block in enumerate(self.blocks):
            x = block(x, self.kv, layer, window, plan.extent)
            if layer + 1 in self.taps:
                tapped[layer + 1] = x
        return torch.cat([tapped[tap] for tap in self.taps], dim=-1), x

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Keep the first `emitted` rows of the last pass."""
        self.kv.keep(lanes, emitted)

    def states(self) -> Sequence[State]:
        """The KV rows."""
        return (self.kv,)
