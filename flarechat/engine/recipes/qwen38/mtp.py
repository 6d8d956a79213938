"""The MTP head of a Qwen3.8 target: one layer of sparse attention and experts between the target's
residual and its output head.

Owns the head's arithmetic and its rows of every slot. Row i pairs the residual of all streams that
token i left behind the target's last layer with the embedding of token i + 1, stands at position i
and predicts token i + 2; blocks of tokens are cut from row 0 on, so they lie one behind the
target's. A chain is fed with the layer's own output, all streams, before the mixer. Embedding,
output head and angles are the target's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.layers.hyper import GatedResidual
from flarechat.engine.layers.linear import Linear
from flarechat.engine.layers.offset_norm import OffsetRMSNorm
from flarechat.engine.layers.sparse_attention import Rows, SparseAttention, SparseCache
from flarechat.engine.recipes.qwen38.model import Layer, Model
from flarechat.engine.recipes.qwen38.weights import sparse_cache
from flarechat.engine.state.hidden import TailState
from flarechat.engine.state.views import SlotViews

if TYPE_CHECKING:
    from flarechat.engine.slot import Lanes
    from flarechat.engine.window import Window


class HeadRows(SlotViews):
    """The head's keys and values and its indexer's keys, one row fewer than tokens consumed."""

    def __init__(self, layers: SparseCache) -> None:
        self.layers = layers

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Nothing to move: rows are reached by number."""

    def reusable(self, held: int, rows: int) -> int:
        """All of what is held, or nothing: raw keys of an open block that is older are gone."""
        return rows if rows == held else 0

    def by_token(self, slot: int, start: int, end: int) -> dict[str, Tensor]:
        """Keys, values and block keys."""
        kv, indexer = self.layers.kv, self.layers.indexer
        return kv.by_token(slot, start, end) | indexer.by_token(slot, start, end)

    def beside(self, slot: int) -> dict[str, Tensor]:
        """The raw keys."""
        return self.layers.indexer.beside(slot)

    def tensors(self) -> dict[str, Tensor]:
        """Keys, values, block keys and the ring of raw keys."""
        return self.layers.kv.tensors() | self.layers.indexer.tensors()

    @property
    def nbytes(self) -> int:
        """Bytes of those tensors."""
        return sum(t.nbytes for t in self.tensors().values())


class Feedback:
    """What the layer reads: all streams of a residual through one product, each with the next
    token's embedding added.

    The residual is normalised as a whole, with one mean over all of its streams.
    """

    def __init__(
        self, norm_hidden: OffsetRMSNorm, norm_embedding: OffsetRMSNorm, hidden: Linear,
        embedding: Linear, streams: int,
    ) -> None:  # fmt: skip
        self.norm_hidden, self.norm_embedding = norm_hidden, norm_embedding
        self.hidden, self.embedding, self.streams = hidden, embedding, streams

    def __call__(self, residual: Tensor, embedded: Tensor) -> Tensor:
        """residual [B, T, S * D] and embedded [B, T, D] → [B, T, S * D]."""
        streams = torch.unflatten(self.norm_hidden(residual), -1, (self.streams, -1))
        told = self.embedding(self.norm_embedding(embedded))
        return (self.hidden(streams) + told[..., None, :]).flatten(-2)


class MtpHead:
    """Owns the weights of one head. `vocabulary` int64 [R], if given, are the tokens it drafts.

    With `shares_choice` the later drafts of a chain attend to the blocks that the first one chose
    and to all after them; rows of the target's own tokens always choose for themselves.
    """

    def __init__(
        self, target: Model, feedback: Feedback, layer: Layer, mixer: GatedResidual,
        vocabulary: Tensor | None = None, *, shares_choice: bool = False,
    ) -> None:  # fmt: skip
        self.args, self.embedding, self.rope = target.args, target.embedding, target.rope
        self.feedback, self.layer, self.mixer = feedback, layer, mixer
        self.vocabulary, self.shares_choice = vocabulary, shares_choice
        self.head = target.head if vocabulary is None else target.head.rows(vocabulary)
        self.features = self.args.residual_size

    def cache(self, slots: int, context: int) -> tuple[HeadRows, TailState]:
        """Rows of its layer, and the residual of the last token, for S slots."""
        dtype, device = self.embedding.dtype, self.embedding.device
        rows = HeadRows(sparse_cache(self.args, 1, slots, context, dtype, device, behind=1))
        return rows, TailState(slots, self.features, dtype, device)

    def condense(self, hidden: Tensor) -> Tensor:
        """The target exports what the head starts from: [B, W, S * D], before its mixer."""
        return hidden

    def forward(
        self, hidden: Tensor, tokens: Tensor, cache: HeadRows, window: Window, extent: int,
        chain: dict[str, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """hidden [B, W, S * D] of tokens i and tokens [B, W] at i + 1 → [B, W, S * D]."""
        at = Rows.of(window, extent, self.rope)
        h = self.feedback(hidden, F.embedding(tokens, self.embedding))
        x, gates = self.layer.attention_residual.read(h)
        out = self._attend(x, cache.layers, at, chain if self.shares_choice else None)
        return self.layer.mix(GatedResidual.combine(h, gates, out))

    def write(
        self, hidden: Tensor, tokens: Tensor, cache: HeadRows, window: Window, extent: int
    ) -> None:
        """What the layer keeps of these pairs: its keys and values alone, and no experts."""
        h = self.feedback(hidden, F.embedding(tokens, self.embedding))
        x = self.layer.attention_residual.mix(h)
        at = Rows.of(window, extent, self.rope)
        self._attention.write(x, cache.layers, 0, at)

    def _attend(
        self, x: Tensor, cache: SparseCache, at: Rows, chain: dict[str, Tensor] | None
    ) -> Tensor:
        """The layer's attention; a chain that shares its choice makes it in its first step."""
        attention = self._attention
        if chain is None:
            return attention(x, cache, 0, at)
        if "begun" in chain:
            return attention.attend(x, cache.kv, 0, at, chain.get("chosen"))
        chosen = attention.indexer(x, cache.indexer, 0, at)
        chain["begun"] = at.positions
        if chosen is not None:
            ratio = attention.indexer.ratio
            later = torch.arange(chosen.shape[-1], device=chosen.device)
            chain["chosen"] = chosen | (later >= ((at.positions + 1) // ratio)[..., None])
        return attention.attend(x, cache.kv, 0, at, chosen)

    @property
    def _attention(self) -> SparseAttention:
        own = self.layer.attention
        assert isinstance(own, SparseAttention)
        return own

    def logits(self, output: Tensor) -> Tensor:
        """Outputs [B, W, S * D] → logits [B, W, R] of the draft vocabulary."""
        return self.head(self.mixer.mix(output))
