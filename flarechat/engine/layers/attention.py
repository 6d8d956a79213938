"""Grouped-query attention of a few new rows over a slot's cache.

Owns the arithmetic of one attention block over lanes. The cache says where rows live; the window
says where new ones go and which a row may see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine import kernels
from flarechat.engine.layers.linear import Linear, dense
from flarechat.engine.layers.rope import Rope, rotate

if TYPE_CHECKING:
    from flarechat.engine.layers.norm import RMSNorm
    from flarechat.engine.state.kv import KVState
    from flarechat.engine.window import Window


class Attention:
    """q, k and v are one product (queries first); `heads` query heads share `kv_heads`."""

    def __init__(
        self, qkv: Linear, out: Linear, rope: Rope, heads: int, kv_heads: int, head_dim: int
    ) -> None:
        self.qkv, self.out, self.rope = qkv, out, rope
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim

    def __call__(
        self, x: Tensor, cache: KVState, layer: int, window: Window, extent: int
    ) -> Tensor:
        """x [B, W, D_model] of the window's rows → the same shape; they see `extent` cache rows."""
        q = rotate(self.write(x, cache, layer, window), *window.angles(self.rope))
        if kernels.fused(x):
            return self.out(self._seen(q.transpose(1, 2).contiguous(), cache, layer, window))
        mask = window.mask(extent, self.heads // self.kv_heads)
        seen = [
            attend(q[lane], *cache.read(layer, slot, extent), mask[lane])
            for lane, slot in enumerate(window.lanes.slots)
        ]
        return self.out(torch.stack(seen))

    def write(self, x: Tensor, cache: KVState, layer: int, window: Window) -> Tensor:
        """Put the keys and values of x into their rows; returns its queries [B, heads, W, D]."""
        batch, width, _ = x.shape
        split = [self.heads, self.kv_heads, self.kv_heads]
        qkv = self.qkv(x).view(batch, width, sum(split), self.head_dim).transpose(1, 2)
        q, k, v = torch.split(qkv, split, dim=1)
        keys = rotate(k, *window.angles(self.rope))
        if kernels.fused(x):
            cache.put(layer, window.index, window.rows, keys, v)
            return q
        cache.write(layer, window.lanes.slots, window.rows, keys, v)
        return q

    def few(self, x: Tensor, norm: RMSNorm, cache: KVState, layer: int, window: Window) -> Tensor:
        """By kernels for few rows: x [B, W, D_model], not yet normalised → [B, W, heads * D], not
        yet through the last product."""
        return self._seen(self.project(x, norm, cache, layer, window), cache, layer, window)

    def project(
        self, x: Tensor, norm: RMSNorm, cache: KVState, layer: int, window: Window, *,
        queries: bool = True,
    ) -> Tensor:  # fmt: skip
        """As `write`, by a kernel and of x not yet normalised: rotated queries [B, W, heads, D], or
        none of them."""
        from flarechat.engine.kernels import qkv

        angles = self.rope.cos, self.rope.sin
        return qkv.project(
            x, norm.weight, norm.eps, dense(self.qkv), angles, window, cache.keys[layer],
            cache.values[layer], queries=queries,
        )  # fmt: skip

    def _seen(self, q: Tensor, cache: KVState, layer: int, window: Window) -> Tensor:
        """What queries [B, W, heads, D] see: [B, W, heads * D]."""
        from flarechat.engine.kernels import verify_attention

        return verify_attention.attend(q, cache.keys[layer], cache.values[layer], window)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """One lane: q [heads, T, D] over k, v [kv_heads, extent, D] → [T, heads * D].

    The query heads of a group become extra rows of their kv head, so k and v are read once.
    A lone row travels with a copy of itself: the product of two rows and more sums in one
    order, that of a single one in another, and a row must not depend on the width.
    """
    heads, length, head_dim = q.shape
    group = heads // k.shape[0]
    if length == 1:
        return attend(q.expand(-1, 2, -1), k, v, mask[:1].expand(2 * group, -1))[:1]
    rows = q.reshape(-1, group * length, head_dim)
    out = F.scaled_dot_product_attention(rows[None], k[None], v[None], attn_mask=mask)[0]
    out = out.reshape(heads, length, head_dim).transpose(0, 1)
    return out.reshape(length, heads * head_dim)
