"""Attention and MLP blocks of the CPU's kernels in small, and what they compute written plainly."""

from __future__ import annotations

import copy
import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.kernels.cpu.library import (
    KINDS,
    AttentionFields,
    Library,
    Matrix,
    MlpFields,
    WindowFields,
)
from flarechat.engine.layers.rope import Rope, rotate
from flarechat.engine.weights import tiles
from flarechat.engine.window import Window
from tests.engine.kernels.slots import CPU, drawn

EPS = 1e-5
CONTEXT = 300


def weight(rows: int, columns: int, kind: str, seed: int, scale: float = 1.0) -> tiles.Tiles:
    """A random weight whose products are about as large as their rows, times `scale`."""
    drawn_floats = drawn(rows, columns, seed=seed) * (scale / math.sqrt(columns))
    if kind == "bf16":
        return tiles.from_bfloat16(drawn_floats.bfloat16())
    if kind == "q8_0":
        return tiles.rounded(drawn_floats)
    stored = tiles.KINDS[kind]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows, columns // 32, stored.bytes), dtype=np.uint8)
    steps = scale / math.sqrt(columns) * random.uniform(0.1, 0.3, (rows, columns // 32, 1))
    halves = np.concatenate([steps, -8 * steps][: stored.halves], axis=-1).astype("<f2")
    blocks[..., : 2 * stored.halves] = halves.view(np.uint8)
    return tiles.from_blocks(kind, blocks.reshape(rows, -1))


def matrix(stored: tiles.Tiles) -> Matrix:
    return Matrix(stored.data.data_ptr(), KINDS[stored.kind], stored.rows, stored.columns)


def as_read(x: Tensor, stored: tiles.Tiles) -> Tensor:
    """x [..., columns] as a product with that weight reads it."""
    if stored.kind == "bf16":
        return x
    groups = x.float().unflatten(-1, (-1, 32))
    largest = groups.abs().argmax(-1, keepdim=True)
    others = groups.scatter(-1, largest, 0.0)
    scales = others.abs().amax(-1, keepdim=True) / 127
    codes = torch.where(scales > 0, others / scales, 0.0).round()
    read = codes.double() * scales.double()
    return read.scatter(-1, largest, groups.gather(-1, largest).double()).flatten(-2)


def product(x: Tensor, stored: tiles.Tiles) -> Tensor:
    """float64."""
    return as_read(x, stored).double() @ stored.decode().double().T


def c_window(window: Window) -> WindowFields:
    return WindowFields(
        window.index.data_ptr(), window.consumed.data_ptr(), window.finish.data_ptr(),
        window.spare, len(window.index), window.width, window.shift, window.lanes.prefilling,
    )  # fmt: skip


def take(kernels: Library, instructions: str) -> None:
    """Use a set of instructions, or skip the test where the machine lacks it."""
    if not kernels.use(instructions):
        pytest.skip(f"this machine lacks {instructions}")


@dataclass
class AttentionCase:
    """One attention block with a cache of `slots` slots, full of numbers that nobody may see."""

    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    hidden: int = 64
    kind: str = "bf16"
    scale: float = 1.0
    slots: int = 2
    rows: int = CONTEXT + 64

    def __post_init__(self) -> None:
        wide, kept = self.heads * self.head_dim, self.kv_heads * self.head_dim
        sizes = [(wide, self.hidden), (kept, self.hidden), (kept, self.hidden), (self.hidden, wide)]
        self.weights = [
            weight(*size, self.kind, seed, self.scale if seed < 2 else 1.0)
            for seed, size in enumerate(sizes)
        ]
        self.norm = 1 + drawn(self.hidden, seed=9) / 4
        self.rope = Rope(self.head_dim, self.rows, 10000.0, None, CPU)
        shape = (self.slots, self.kv_heads, self.rows, self.head_dim)
        self.keys, self.values = (drawn(*shape, seed=seed).half() for seed in (10, 11))

    def fields(self) -> AttentionFields:
        return AttentionFields(
            self.norm.data_ptr(), self.rope.cos.data_ptr(), self.rope.sin.data_ptr(),
            self.keys.data_ptr(), self.values.data_ptr(), self.keys.stride(0), self.keys.stride(1),
            *map(matrix, self.weights), EPS, self.heads, self.kv_heads, self.head_dim,
        )  # fmt: skip

    def block(
        self, kernels: Library, window: Window, x: Tensor, into: Tensor | None = None
    ) -> Tensor:
        """x [B, W, hidden] → the same shape, by C; the cache is written."""
        x = x.contiguous()
        y = torch.full_like(x, math.nan) if into is None else into
        fields, place = self.fields(), c_window(window)
        kernels.attention_block(
            ctypes.addressof(fields), ctypes.addressof(place), x.data_ptr(), y.data_ptr()
        )
        return y

    def write(self, kernels: Library, window: Window, x: Tensor) -> None:
        fields, place, x = self.fields(), c_window(window), x.contiguous()
        kernels.attention_write(ctypes.addressof(fields), ctypes.addressof(place), x.data_ptr())

    def copy(self) -> AttentionCase:
        """The same weights, with a copy of the cache."""
        made = copy.copy(self)
        made.keys, made.values = self.keys.clone(), self.values.clone()
        return made

    def projected(self, window: Window, x: Tensor) -> list[Tensor]:
        """Queries, keys and values float64 [B, W, heads, head_dim], rotated."""
        normed = F.rms_norm(x.double(), (self.hidden,), self.norm.double(), EPS)
        split = [product(normed, w).unflatten(-1, (-1, self.head_dim)) for w in self.weights[:3]]
        cos, sin = (angle.double() for angle in self.rope.at(window.positions))
        q, k = (rotate(part.transpose(1, 2), cos, sin).transpose(1, 2) for part in split[:2])
        return [q, k, split[2]]

    def reference(self, window: Window, x: Tensor) -> Tensor:
        """float64 [B, W, hidden], of the cache as it is; it is not written."""
        q = self.projected(window, x)[0]
        seen = torch.zeros(*x.shape[:2], self.heads, self.head_dim, dtype=torch.float64)
        for lane, slot in enumerate(window.lanes.slots):
            for w, position in enumerate(window.positions[lane].tolist()):
                for head in range(self.heads):
                    at = slot, head // (self.heads // self.kv_heads), slice(0, position + 1)
                    scores = self.keys[at].double() @ q[lane, w, head] / math.sqrt(self.head_dim)
                    seen[lane, w, head] = scores.softmax(0) @ self.values[at].double()
        return x.double() + product(seen.flatten(2), self.weights[3])


@dataclass
class MlpCase:
    """One MLP block."""

    hidden: int = 64
    inner: int = 160
    kind: str = "bf16"
    scale: float = 1.0

    def __post_init__(self) -> None:
        sizes = [(self.inner, self.hidden), (self.inner, self.hidden), (self.hidden, self.inner)]
        self.weights = [
            weight(*size, self.kind, seed, self.scale) for seed, size in enumerate(sizes)
        ]
        self.norm = 1 + drawn(self.hidden, seed=9) / 4

    def block(self, kernels: Library, x: Tensor, into: Tensor | None = None) -> Tensor:
        """x [rows, hidden] → the same shape, by C."""
        y = torch.full_like(x, math.nan) if into is None else into
        fields = MlpFields(self.norm.data_ptr(), *map(matrix, self.weights), EPS)
        kernels.mlp_block(ctypes.addressof(fields), len(x), x.data_ptr(), y.data_ptr())
        return y

    def reference(self, x: Tensor) -> Tensor:
        """float64."""
        normed = F.rms_norm(x.double(), (self.hidden,), self.norm.double(), EPS)
        gate, up = (product(normed, w) for w in self.weights[:2])
        return x.double() + product(F.silu(gate) * up, self.weights[2])


def pieces(total: int, widths: Sequence[int]) -> list[tuple[int, int]]:
    """Begin and width of windows that cover `total` rows, of these widths in turn."""
    made, at = [], 0
    while at < total:
        width = min(widths[len(made) % len(widths)], total - at)
        made.append((at, width))
        at += width
    return made
