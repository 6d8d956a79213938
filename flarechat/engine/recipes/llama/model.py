"""The llama target: one pass over a few new rows of every lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine import kernels
from flarechat.engine.layers.attention import Attention
from flarechat.engine.layers.embedding import TiledTable, embed
from flarechat.engine.layers.linear import Linear, dense, multiply_normed
from flarechat.engine.layers.mlp import MLP
from flarechat.engine.layers.norm import RMSNorm
from flarechat.engine.layers.rope import Rope
from flarechat.engine.recipes.llama.config import ModelArgs
from flarechat.engine.state.kv import KVState
from flarechat.engine.window import Window

if TYPE_CHECKING:
    from flarechat.engine.contracts import State
    from flarechat.engine.plan import Plan
    from flarechat.engine.recipes.llama.stored import TiledBlocks
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
        if kernels.few(x):
            return self._few(x, cache, layer, window)
        x = x + self.attention(self.attention_norm(x), cache, layer, window, extent)
        return x + self.mlp(self.mlp_norm(x))

    def _few(self, x: Tensor, cache: KVState, layer: int, window: Window) -> Tensor:
        """By kernels, five of them."""
        from flarechat.engine.kernels import products

        seen = self.attention.few(x, self.attention_norm, cache, layer, window)
        x = products.added(seen, dense(self.attention.out), x)
        norm = self.mlp_norm
        inside = products.gated(x, norm.weight, norm.eps, dense(self.mlp.gate_up))
        return products.added(inside, dense(self.mlp.down), x)

    def write(self, x: Tensor, cache: KVState, layer: int, window: Window) -> None:
        """Of x [B, W, D] only what later rows see: its keys and values."""
        if kernels.few(x):
            self.attention.project(x, self.attention_norm, cache, layer, window, queries=False)
        else:
            self.attention.write(self.attention_norm(x), cache, layer, window)


class Blocks(tuple[TransformerBlock, ...]):
    """Blocks in their order."""

    __slots__ = ()

    def run(self, x: Tensor, cache: KVState, layers: range, window: Window, extent: int) -> Tensor:
        """x [B, W, D] through some of them, one after the other."""
        for layer in layers:
            x = self[layer](x, cache, layer, window, extent)
        return x


class Model:
    """Owns the weights of one llama checkpoint and the KV rows of its slots.

    `taps` are the layers whose raw outputs a draft head reads, counted in blocks passed.
    """

    repair_ms, capturable = 0.0, True

    def __init__(
        self, args: ModelArgs, embedding: Tensor | TiledTable,
        blocks: Blocks | TiledBlocks, norm: RMSNorm, head: Linear, rope: Rope, kv: KVState,
    ) -> None:  # fmt: skip
        self.args, self.embedding, self.blocks = args, embedding, blocks
        self.norm, self.head, self.rope, self.kv = norm, head, rope, kv
        self.vocabulary = args.vocab_size
        self.taps: tuple[int, ...] = (args.num_hidden_layers,)

    @property
    def features(self) -> int:
        """D * taps."""
        return self.args.hidden_size * len(self.taps)

    def verify(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """inputs [B, W] → raw hidden [B, W, D * taps] and logits [B, W, V]."""
        hidden, last = self._forward(lanes, inputs, plan)
        return hidden, multiply_normed(last, self.norm, self.head)

    def prefill(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> Tensor:
        """inputs [B, T] → raw hidden [B, T, D * taps]; their keys and values are in the cache."""
        return self._forward(lanes, inputs, plan)[0]

    def _forward(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """Raw outputs of the tapped layers side by side, and of the last one [B, T, D]."""
        window = Window(lanes, plan.width)
        x = embed(inputs, self.embedding)
        tapped: dict[int, Tensor] = {}
        for first, last in pairwise(sorted({0, *self.taps, len(self.blocks)})):
            x = tapped[last] = self.blocks.run(x, self.kv, range(first, last), window, plan.extent)
        return torch.cat([tapped[tap] for tap in self.taps], dim=-1), x

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Keep the first `emitted` rows of the last pass."""
        self.kv.keep(lanes, emitted)

    def amend(self, lanes: Lanes, inputs: Tensor, kept: Tensor, plan: Plan) -> None:
        """Rows past those kept are unreachable."""

    def states(self) -> Sequence[State]:
        """The KV rows."""
        return (self.kv,)
