"""Attention over chosen blocks of tokens: an indexer scores blocks of the past, the best few and
the tokens of the open block are attended to.

Owns the choice and the arithmetic. A block is `ratio` tokens from a multiple of `ratio` on; its key
stands at its first token. A query sees blocks whose last token is not after its own, at most
budget / ratio of them, the lower block of two with one score; and always the tokens after its last
whole block. While no more blocks than that exist this is plain causal attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flarechat.engine.layers.attention import attend
from flarechat.engine.layers.linear import Linear
from flarechat.engine.layers.offset_norm import OffsetRMSNorm
from flarechat.engine.layers.rope import Rope, rotate
from flarechat.engine.state.indexer import IndexerState
from flarechat.engine.state.kv import KVState
from flarechat.engine.window import Window


@dataclass(frozen=True, slots=True)
class SparseCache:
    """Keys and values, and what blocks are chosen by, of the same layers and slots."""

    kv: KVState
    indexer: IndexerState


@dataclass(frozen=True, slots=True)
class Rows:
    """New rows of B slots: the cache `rows` [B, T] they are written to, their `positions` [B, T],
    the cache rows that can be seen, and the angles of all positions.

    Consecutive rows stand at consecutive positions. A row whose cache row is not its position is
    written to scratch, and counts for no block.
    """

    slots: Sequence[int]
    rows: Tensor
    positions: Tensor
    extent: int
    rope: Rope

    @classmethod
    def of(cls, window: Window, extent: int, rope: Rope) -> Rows:
        """The rows of a window, which see the first `extent` cache rows."""
        return cls(window.lanes.slots, window.rows, window.positions, extent, rope)

    @property
    def live(self) -> Tensor:
        """bool [B, T]: rows that are not scratch."""
        return self.rows == self.positions

    @property
    def first(self) -> Tensor:
        """int64 [B]: position of the first row, -1 for one that stands before the sequence."""
        return self.positions[:, -1] - (self.positions.shape[1] - 1)


def rotate_part(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first dimensions of x [B, H, T, D], as many as there are angles."""
    part = cos.shape[-1]
    return torch.cat([rotate(x[..., :part], cos, sin), x[..., part:]], dim=-1)


def choose(scores: Tensor, seen: Tensor, most: int) -> Tensor:
    """bool [..., blocks]: the `most` blocks with the best scores of those `seen`; of equal ones the
    lower numbers."""
    scores = scores.masked_fill(~seen, float("-inf"))
    least = scores.topk(most, dim=-1).values[..., -1:]
    above, level = scores > least, scores == least
    room = most - above.sum(-1, keepdim=True)
    return (above | (level & (level.cumsum(-1) <= room))) & seen


class Indexer:
    """Scores blocks for `heads` queries of K dimensions; `qk` gives the queries, then the key."""

    def __init__(
        self, qk: Linear, norm_q: OffsetRMSNorm, norm_k: OffsetRMSNorm, heads: int, budget: int,
        ratio: int,
    ) -> None:  # fmt: skip
        self.qk, self.norm_q, self.norm_k, self.heads = qk, norm_q, norm_k, heads
        self.ratio, self.most = ratio, budget // ratio

    def __call__(self, x: Tensor, cache: IndexerState, layer: int, at: Rows) -> Tensor | None:
        """Take in x [B, T, D] and choose: bool [B, T, blocks], or None where all are chosen."""
        queries = self.take(x, cache, layer, at)
        blocks = at.extent // self.ratio
        if blocks <= self.most:
            return None
        queries = self.norm_q(queries).transpose(1, 2)
        queries = rotate_part(queries, *at.rope.at(at.positions)).float()
        known = torch.stack([cache.read(layer, slot, blocks) for slot in at.slots])
        scores = torch.relu(queries @ known[:, None].float().mT).sum(1)
        scores = scores / math.sqrt(queries.shape[-1])
        whole = (at.positions + 1) // self.ratio
        seen = torch.arange(blocks, device=x.device) < whole[..., None]
        return choose(scores, seen, self.most)

    def take(self, x: Tensor, cache: IndexerState, layer: int, at: Rows) -> Tensor:
        """Take in x [B, T, D] and return its queries [B, T, heads, K], raw."""
        mixed = torch.unflatten(self.qk(x), -1, (self.heads + 1, -1))
        self._keep(mixed[..., self.heads, :], cache, layer, at)
        return mixed[..., : self.heads, :]

    def _keep(self, keys: Tensor, cache: IndexerState, layer: int, at: Rows) -> None:
        """Keep raw keys [B, T, K], and make the keys of the blocks they complete."""
        first, length, ratio = at.first, keys.shape[1], self.ratio
        held = torch.cat([cache.recent(layer, at.slots, first), keys], dim=1)
        count = (length + ratio - 1) // ratio
        steps = torch.arange(count, device=keys.device)
        numbers = first.div(ratio, rounding_mode="floor")[:, None] + steps
        inside = (numbers * ratio - first[:, None] + ratio - 1)[..., None]
        inside = inside + torch.arange(ratio, device=keys.device)
        whole = (inside[..., -1] < held.shape[1]) & (numbers >= 0) & at.live[:, -1:]
        inside = inside.clamp_max(held.shape[1] - 1).flatten(1)
        groups = held.gather(1, inside[..., None].expand(-1, -1, held.shape[-1]))
        pooled = torch.unflatten(groups, 1, (count, ratio)).float().mean(2).to(keys.dtype)
        angles = at.rope.at((numbers * ratio).clamp_min(0))
        made = rotate_part(self.norm_k(pooled)[:, None], *angles)[:, 0]
        cache.write_raw(layer, at.slots, at.positions, at.live, keys)
        cache.write_blocks(layer, at.slots, numbers, whole, made)


class SparseAttention:
    """`q` gives each head its query and then its gate; `heads` queries share the keys of `k`."""

    def __init__(
        self, q: Linear, k: Linear, v: Linear, out: Linear, norm_q: OffsetRMSNorm,
        norm_k: OffsetRMSNorm, indexer: Indexer, head_dim: int,
    ) -> None:  # fmt: skip
        self.q, self.k, self.v, self.out = q, k, v, out
        self.norm_q, self.norm_k = norm_q, norm_k
        self.indexer, self.head_dim = indexer, head_dim

    def __call__(
        self, x: Tensor, cache: SparseCache, layer: int, at: Rows, chosen: Tensor | None = None
    ) -> Tensor:
        """x [B, T, D] → [B, T, D]; `layer` counts the cache's layers.

        `chosen` bool [B, T, blocks] stands in for the indexer's own choice.
        """
        own = self.indexer(x, cache.indexer, layer, at)
        return self.attend(x, cache.kv, layer, at, own if chosen is None else chosen)

    def attend(self, x: Tensor, kv: KVState, layer: int, at: Rows, chosen: Tensor | None) -> Tensor:
        """The attention alone, to the blocks `chosen`, or to all of them."""
        angles = at.rope.at(at.positions)
        queries, gates = torch.unflatten(self.q(x), -1, (-1, 2 * self.head_dim)).chunk(2, dim=-1)
        queries = rotate_part(self.norm_q(queries).transpose(1, 2), *angles)
        kv_heads = self._keep(x, kv, layer, at, angles)
        mask = self._mask(at, chosen).repeat(1, queries.shape[1] // kv_heads, 1)
        seen = [
            attend(queries[lane], *kv.read(layer, slot, at.extent), mask[lane])
            for lane, slot in enumerate(at.slots)
        ]
        return self.out(torch.stack(seen) * torch.sigmoid(gates.flatten(-2)))

    def write(self, x: Tensor, cache: SparseCache, layer: int, at: Rows) -> None:
        """Keep of x [B, T, D] what later rows see; nobody asks for its own output."""
        self.indexer.take(x, cache.indexer, layer, at)
        self._keep(x, cache.kv, layer, at, at.rope.at(at.positions))

    def _keep(
        self, x: Tensor, kv: KVState, layer: int, at: Rows, angles: tuple[Tensor, Tensor]
    ) -> int:
        """Write keys and values, and say how many heads they have."""
        keys = self.norm_k(torch.unflatten(self.k(x), -1, (-1, self.head_dim))).transpose(1, 2)
        values = torch.unflatten(self.v(x), -1, (-1, self.head_dim)).transpose(1, 2)
        kv.write(layer, at.slots, at.rows, rotate_part(keys, *angles), values)
        return keys.shape[1]

    def _mask(self, at: Rows, chosen: Tensor | None) -> Tensor:
        """bool [B, T, extent]: what each row sees."""
        row = torch.arange(at.extent, device=at.positions.device)
        seen = row <= at.positions[..., None]
        if chosen is None:
            return seen
        ratio = self.indexer.ratio
        tokens = chosen.repeat_interleave(ratio, dim=-1)
        tokens = torch.nn.functional.pad(tokens, (0, at.extent - tokens.shape[-1]))
        tail = row >= ((at.positions + 1) // ratio * ratio)[..., None]
        return seen & (tokens | tail)
