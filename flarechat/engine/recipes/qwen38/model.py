"""The Qwen3.8-Flash-Next target: one pass over a few new rows of every lane.

Owns the layers' order and the states of all slots. The residual has several streams, which stay
apart until the output head: what a draft head reads is all of them, before they are mixed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.layers.gated_delta import GatedDelta
from flarechat.engine.layers.hyper import GatedResidual
from flarechat.engine.layers.linear import Linear
from flarechat.engine.layers.moe import MoE
from flarechat.engine.layers.ngram import Ngram
from flarechat.engine.layers.rope import Rope
from flarechat.engine.layers.sparse_attention import Rows, SparseAttention, SparseCache
from flarechat.engine.recipes.qwen38.config import ModelArgs
from flarechat.engine.state.ngram import NgramState
from flarechat.engine.state.passes import Pass
from flarechat.engine.state.recent import ROUND_ROWS
from flarechat.engine.state.recurrent import RecurrentState
from flarechat.engine.window import Window

if TYPE_CHECKING:
    from flarechat.engine.contracts import State
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes


@dataclass(frozen=True, slots=True)
class Layer:
    """A recurrence or sparse attention, then experts, each between the residual's streams.

    `place` is the number of the first half's cache among those of its kind.
    """

    attention_residual: GatedResidual
    attention: GatedDelta | SparseAttention
    place: int
    experts_residual: GatedResidual
    experts: MoE
    ngram: Ngram | None = None

    def attend(self, h: Tensor, run: Pass, at: Rows, caches: Caches) -> Tensor:
        """The first half: the residual [B, T, S * D] of new rows, and its successor."""
        x, gates = self.attention_residual.read(h)
        if isinstance(self.attention, GatedDelta):
            out = self.attention(x, caches.recurrent, self.place, run)
        else:
            out = self.attention(x, caches.sparse, self.place, at)
        return GatedResidual.combine(h, gates, out)

    def mix(self, h: Tensor) -> Tensor:
        """The second half."""
        x, gates = self.experts_residual.read(h)
        return GatedResidual.combine(h, gates, self.experts(x))


@dataclass(frozen=True, slots=True)
class Caches:
    """The states of all slots."""

    recurrent: RecurrentState
    sparse: SparseCache
    ngram: NgramState

    def states(self) -> tuple[State, ...]:
        """All of them."""
        return self.recurrent, self.ngram, self.sparse.kv, self.sparse.indexer


class Model:
    """Owns the weights of one checkpoint and the states of its slots.

    A round wider than what states hold of a pass is committed by running its kept rows again, as
    all are where the recurrences keep nothing; `repairs` counts those rounds.
    """

    # Its tables and its experts are looked up by the host in the middle of a pass.
    capturable = False

    def __init__(
        self, args: ModelArgs, embedding: Tensor, layers: Sequence[Layer], mixer: GatedResidual,
        head: Linear, rope: Rope, caches: Caches,
    ) -> None:  # fmt: skip
        self.args, self.embedding, self.layers = args, embedding, tuple(layers)
        self.mixer, self.head, self.rope, self.caches = mixer, head, rope, caches
        self.vocabulary, self.repairs, self.repair_ms = args.vocab_size, 0, 0.0
        self._last: tuple[Tensor, Plan] | None = None

    @property
    def features(self) -> int:
        """S * D."""
        return self.args.residual_size

    def verify(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """inputs [B, W] → the residual [B, W, S * D] and logits [B, W, V].

        The states hold what each row leaves behind until `keep`; a lone row moves them at once.
        """
        self._last = inputs, plan
        if plan.judged:
            for state in self.caches.states():
                state.hold(lanes)
        hidden = self._forward(lanes, inputs, plan, Pass.of_round(lanes, plan.width))
        return hidden, self.logits(self.mixer.mix(hidden))

    def prefill(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> Tensor:
        """inputs [B, T] → the residual [B, T, S * D]; all rows have become state."""
        return self._forward(lanes, inputs, plan, Pass.of_chunk(lanes, plan.width))

    def logits(self, mixed: Tensor) -> Tensor:
        """The output head alone: [..., D] → [..., V]."""
        return self.head(mixed)

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Commit the first `emitted` [B] rows of the last `verify`."""
        assert self._last is not None
        self._commit(lanes, *self._last, emitted)

    def amend(self, lanes: Lanes, inputs: Tensor, kept: Tensor, plan: Plan) -> None:
        """Commit fewer rows of the last `verify`, from the state before it."""
        for state in self.caches.states():
            state.rewind(lanes)
        self._commit(lanes, inputs, plan, kept)

    def _commit(self, lanes: Lanes, inputs: Tensor, plan: Plan, emitted: Tensor) -> None:
        if plan.width == 1:
            return
        if plan.width > ROUND_ROWS or self.caches.recurrent.by == "reforward":
            began = time.perf_counter()
            self._forward(lanes, inputs, plan, Pass.of_kept(lanes, plan.width, emitted))
            self.repairs += 1
            self.repair_ms += 1e3 * (time.perf_counter() - began)
            return
        for state in self.caches.states():
            state.keep(lanes, emitted)

    def states(self) -> Sequence[State]:
        """Recurrences, n-gram contexts, keys and values, block keys."""
        return self.caches.states()

    def _forward(self, lanes: Lanes, inputs: Tensor, plan: Plan, run: Pass) -> Tensor:
        at = Rows.of(Window(lanes, plan.width), plan.extent, self.rope)
        cache = self.caches.ngram
        fetched = [
            layer.ngram.ahead(inputs, cache, run) if layer.ngram else None for layer in self.layers
        ]
        h = F.embedding(inputs, self.embedding).repeat(1, 1, self.args.hc_count)
        for layer, features in zip(self.layers, fetched, strict=True):
            if layer.ngram and features:
                h = h + layer.ngram(h, features.wait(), cache, run)
            h = layer.mix(layer.attend(h, run, at, self.caches))
        return h
