"""The kernels of a model's pass as cases to check and to time: their inputs, drawn at random, and
what they must come to, in float64.

Owns the sizes: SmolLM2-135M's and its draft head's, other models' attention, or tiny ones where
kernels are interpreted. A case has as many layers, weights or caches of its own each, as it takes
to read every one from memory and not from the cache of the round before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.kernels import lookups, products, qkv, verify_attention
from flarechat.engine.kernels.products import Cut
from flarechat.engine.kernels.verify_attention import Split
from flarechat.engine.layers.rope import Rope, rotate
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.engine.window import Window

EPS, COLD_BYTES, MOST_LAYERS = 1e-5, 160 << 20, 200


@dataclass(frozen=True, slots=True)
class Sizes:
    """What products and attentions there are: (name, kind, outputs, inputs), and (heads, kv heads,
    head dimension, capacity) with the contexts of each."""

    products: tuple[tuple[str, str, int, int], ...]
    wide: int
    heads: tuple[int, int, int]
    context: int
    attentions: tuple[tuple[int, int, int, int], ...]
    rows: tuple[int, ...] = (1, 8, 32)


H200 = Sizes(
    products=(
        ("out", "added", 576, 576), ("gate up", "gated", 1536, 576), ("down", "added", 576, 1536),
        ("head", "normed", 49152, 576), ("draft head", "normed", 8192, 576),
        ("fc", "plain", 576, 1152), ("fuse", "plain", 576, 2880),
    ),
    wide=576, heads=(9, 3, 64), context=8192,
    attentions=tuple(
        (heads, kv, dim, context)
        for heads, kv, dim in ((9, 3, 64), (32, 8, 128), (24, 2, 256))
        for context in (1024, 8192, 16384, 65536)
    ),
)  # fmt: skip
TINY = Sizes(
    products=(
        ("out", "added", 48, 48), ("gate up", "gated", 80, 48), ("down", "added", 48, 80),
        ("head", "normed", 96, 48), ("fc", "plain", 48, 96),
    ),
    wide=48, heads=(4, 2, 16), context=128, attentions=((4, 2, 16, 100), (3, 1, 64, 70)),
    rows=(1, 3),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """`calls` are one layer each and return what they wrote; `truth` is that of the first, in
    float64. `moved` are the bytes that a layer must read."""

    name: str
    rows: int
    moved: int
    calls: tuple[Callable[[], Tensor], ...]
    truth: Callable[[], Tensor]


class Maker:
    """Draws cases on a device, in a dtype, from one seed."""

    def __init__(self, device: torch.device, dtype: torch.dtype, *, cold: bool = True) -> None:
        self.device, self.dtype, self.cold = device, dtype, cold
        self.generator = torch.Generator(device).manual_seed(5)

    def drawn(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Random values."""
        plain = torch.randn(shape, generator=self.generator, device=self.device)
        return (plain * scale).to(self.dtype)

    def layers(self, moved: int) -> int:
        """How many layers of `moved` bytes make all of them cold."""
        return min(max(COLD_BYTES // moved, 2), MOST_LAYERS) if self.cold else 2

    def product(
        self, name: str, kind: str, out: int, wide: int, rows: int, cut: Cut | None
    ) -> Case:
        """One of the products."""
        lines = 2 * out if kind == "gated" else out
        moved = lines * wide * self.dtype.itemsize
        x, norm = self.drawn(1, rows, wide), 1 + self.drawn(wide, scale=0.1)
        residual = self.drawn(1, rows, out)
        weights = [self.drawn(lines, wide, scale=wide**-0.5) for _ in range(self.layers(moved))]
        run: dict[str, Callable[[Tensor], Tensor]] = {
            "plain": lambda w: products.plain(x, w, cut),
            "normed": lambda w: products.normed(x, norm, EPS, w, cut),
            "gated": lambda w: products.gated(x, norm, EPS, w, cut),
            "added": lambda w: products.added(x, w, residual, cut),
        }
        calls = tuple((lambda w=w: run[kind](w)) for w in weights)

        def truth() -> Tensor:
            plain = kind in ("plain", "added")
            own = x.double() if plain else normed(x.double(), norm.double())
            y = own @ weights[0].double().T
            if kind == "gated":
                gate, up = y.chunk(2, dim=-1)
                return F.silu(gate) * up
            return residual.double() + y if kind == "added" else y

        return Case(name, rows, moved, calls, truth)

    def projection(self, sizes: Sizes, rows: int, cut: Cut | None, *, queries: bool = True) -> Case:
        """Queries and cache rows of W = rows tokens of one lane."""
        (heads, kv, dim), wide = sizes.heads, sizes.wide
        lines = (heads + 2 * kv) * dim
        moved = (lines if queries else 2 * kv * dim) * wide * self.dtype.itemsize
        pool, window = self.window(1, rows, sizes.context, sizes.context // 2)
        rope = Rope(dim, sizes.context + 2 * SCRATCH_ROWS, 1e4, None, self.device)
        x, norm = self.drawn(1, rows, wide), 1 + self.drawn(wide, scale=0.1)
        weights = [self.drawn(lines, wide, scale=wide**-0.5) for _ in range(self.layers(moved))]
        shape = (1, kv, sizes.context + 2 * SCRATCH_ROWS, dim)
        keys = torch.full(shape, float("nan"), dtype=self.dtype, device=self.device)
        values = keys.clone()

        def call(weight: Tensor) -> Tensor:
            q = qkv.project(
                x, norm, EPS, weight, (rope.cos, rope.sin), window, keys, values,
                queries=queries, cut=cut,
            )  # fmt: skip
            return q

        def first() -> Tensor:
            q = call(weights[0])
            at = window.positions[0]
            written = [t[0].transpose(0, 1)[at][None] for t in (keys, values)]
            return torch.cat([q, *written], dim=2)

        def truth() -> Tensor:
            y = normed(x.double(), norm.double()) @ weights[0].double().T
            y = y.unflatten(-1, (-1, dim))
            angles = [t.double() for t in rope.at(window.positions)]
            turned = rotate(y[:, :, : heads + kv].transpose(1, 2), *angles).transpose(1, 2)
            all_of = torch.cat([turned, y[:, :, heads + kv :]], dim=2)
            return all_of if queries else all_of[:, :, heads:]

        calls = (first, *((lambda w=w: call(w)) for w in weights[1:]))
        assert int(pool.consumed[0]) + rows <= sizes.context
        return Case("qkv" if queries else "kv alone", rows, moved, calls, truth)

    def attention(
        self, shape: tuple[int, int, int, int], lanes: int, width: int, capacity: int,
        split: Split | None,
    ) -> Case:  # fmt: skip
        """Attention of W rows of B lanes behind `context` tokens of a cache for `capacity`."""
        heads, kv, dim, context = shape
        rows = capacity + 2 * SCRATCH_ROWS
        moved = 2 * lanes * kv * context * dim * self.dtype.itemsize
        _, window = self.window(lanes, width, capacity, context - width)
        q = self.drawn(lanes, width, heads, dim)
        caches = [
            (self.drawn(lanes, kv, rows, dim), self.drawn(lanes, kv, rows, dim))
            for _ in range(self.layers(2 * lanes * kv * rows * dim * self.dtype.itemsize))
        ]
        calls = tuple(
            (lambda k=k, v=v: verify_attention.attend(q, k, v, window, split)) for k, v in caches
        )

        def truth() -> Tensor:
            return attended(q, *caches[0], window)

        name = f"attention {heads}/{kv}x{dim} at {context} of {capacity}"
        return Case(name, lanes * width, moved, calls, truth)

    def lookup(self, sizes: Sizes, rows: int) -> Case:
        """What a draft head's first product reads."""
        wide, vocabulary = sizes.wide, 1000
        table, hidden = self.drawn(vocabulary, wide), self.drawn(1, rows, wide)
        norms = 1 + self.drawn(2, wide, scale=0.1)
        tokens = torch.arange(rows, device=self.device)[None] * 7

        def call() -> Tensor:
            return lookups.pair(hidden, norms[0], tokens, table, norms[1], EPS)

        def truth() -> Tensor:
            told = normed(table[tokens].double(), norms[1].double())
            return torch.cat([normed(hidden.double(), norms[0].double()), told], dim=-1)

        return Case("pair", rows, 2 * rows * wide * self.dtype.itemsize, (call,) * 30, truth)

    def window(
        self, lanes: int, width: int, context: int, consumed: int
    ) -> tuple[SlotPool, Window]:
        """W rows of B lanes that all have consumed as much."""
        pool = SlotPool(lanes, context, 1, self.device)
        pool.consumed.fill_(consumed)
        for slot in range(lanes):
            pool.start(slot)
        return pool, Window(Lanes(pool, range(lanes)), width)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    """Root-mean-square normalisation."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def attended(q: Tensor, keys: Tensor, values: Tensor, window: Window) -> Tensor:
    """Plain attention in float64: [B, W, heads * D]."""
    batch, width, heads, dim = q.shape
    out = []
    for lane in range(batch):
        seen = int(window.positions[lane, -1]) + 1
        group = heads // keys.shape[1]
        k, v = (t[lane, :, :seen].double().repeat_interleave(group, 0) for t in (keys, values))
        scores = torch.einsum("whd,hkd->hwk", q[lane].double(), k) / math.sqrt(dim)
        hidden = torch.arange(seen, device=q.device) > window.positions[lane][:, None]
        shares = scores.masked_fill(hidden[None], float("-inf")).softmax(-1)
        out.append(torch.einsum("hwk,hkd->whd", shares, v).reshape(width, heads * dim))
    return torch.stack(out)


def error(own: Tensor, truth: Tensor) -> float:
    """The difference's length over the truth's; whatever is no number stays none."""
    return float((own.double() - truth).norm() / truth.norm())


def poisoned(*shape: Any, **options: Any) -> Tensor:
    """`torch.empty`, but full of what is no number."""
    made = _empty(*shape, **options)
    return made.fill_(float("nan")) if made.is_floating_point() else made


_empty = torch.empty
