"""The frozen target in training: batched passes that keep raw hidden rows, and a decode cache.

Owns the target's weights on the training device. It shares no code with the engine's model, so the
two can be compared; tests hold both against transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a llama that training needs; names follow its config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """From config.json's keys. A scaled rotary embedding is refused."""
        heads = config["num_attention_heads"]
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            raise ValueError(f"training knows plain rotary positions, not {rope['rope_type']!r}")
        return cls(
            config["hidden_size"],
            config["intermediate_size"],
            config["num_hidden_layers"],
            heads,
            config.get("num_key_value_heads") or heads,
            config.get("head_dim") or config["hidden_size"] // heads,
            config["vocab_size"],
            config["rms_norm_eps"],
            float(config.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        )

    @property
    def split(self) -> list[int]:
        """Rows of q, k and v in the fused product."""
        kv = self.num_key_value_heads * self.head_dim
        return [self.num_attention_heads * self.head_dim, kv, kv]


def rotary(shape: Shape, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [rows, head_dim], rotate-half form."""
    pairs = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device)
    inv = shape.rope_theta ** -(pairs / shape.head_dim)
    angles = torch.arange(rows, device=device).float()[:, None] * inv
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [B, H, T, D] by cos, sin [T, D]."""
    left, right = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-right, left], dim=-1) * sin).to(x.dtype)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension in x's dtype."""
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


@dataclass(frozen=True, slots=True)
class Block:
    """One layer's weights; q, k, v are one product, so are gate and up."""

    input_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, get: Callable[[str], Tensor], layer: int) -> Block:
        """From checkpoint tensors; `get(name)` reads one."""
        base = f"model.layers.{layer}"

        def joined(part: str, *names: str) -> Tensor:
            return torch.cat([get(f"{base}.{part}.{name}_proj.weight") for name in names])

        return cls(
            get(f"{base}.input_layernorm.weight"),
            joined("self_attn", "q", "k", "v"),
            joined("self_attn", "o"),
            get(f"{base}.post_attention_layernorm.weight"),
            joined("mlp", "gate", "up"),
            joined("mlp", "down"),
        )


class Target:
    """A llama's weights in one dtype, never trained."""

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, rows: int,
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        self.shape, self.dtype, self.device = Shape.of(config), dtype, device

        def get(name: str) -> Tensor:
            return tensors[name].to(device=device, dtype=dtype)

        self.embedding = get("model.embed_tokens.weight")
        tied = config.get("tie_word_embeddings", False)
        self.head = self.embedding if tied else get("lm_head.weight")
        self.final_norm = get("model.norm.weight")
        self.blocks = [Block.of(get, i) for i in range(self.shape.num_hidden_layers)]
        self.cos, self.sin = rotary(self.shape, rows, device)

    def block(self, layer: int, x: Tensor, positions: slice, attend: Attend) -> Tensor:
        """One layer over x [B, T, D]; `attend(layer, q, k, v)` gives [B, H, T, D_head]."""
        shape, w = self.shape, self.blocks[layer]
        batch, length, _ = x.shape
        qkv = F.linear(norm(x, w.input_norm, shape.rms_norm_eps), w.qkv).split(shape.split, -1)
        q, k, v = (t.view(batch, length, -1, shape.head_dim).transpose(1, 2) for t in qkv)
        cos, sin = self.cos[positions], self.sin[positions]
        mixed = attend(layer, rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), w.out)
        gate, up = F.linear(norm(x, w.mlp_norm, shape.rms_norm_eps), w.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, w.down)

    def hidden(self, ids: Tensor, taps: Sequence[int]) -> Tensor:
        """Raw hidden rows after the tapped number of layers, concatenated: [B, T, D * taps]."""
        x, kept = F.embedding(ids, self.embedding), {}
        for layer in range(len(self.blocks)):
            x = self.block(layer, x, slice(0, ids.shape[1]), _causal)
            if layer + 1 in taps:
                kept[layer + 1] = x
        return torch.cat([kept[tap] for tap in taps], dim=-1)

    def logits(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Next-token logits of raw last-layer rows, over all tokens or the head's `rows`."""
        head = self.head if rows is None else rows
        return F.linear(norm(hidden, self.final_norm, self.shape.rms_norm_eps), head)


def _causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class DecodeCache:
    """Keys and values of a batch that grows one token a step, over at most `rows` tokens."""

    def __init__(self, target: Target, batch: int, rows: int) -> None:
        s = target.shape
        size = (s.num_hidden_layers, batch, s.num_key_value_heads, rows, s.head_dim)
        self.target, self.rows = target, 0
        self.keys = torch.zeros(size, dtype=target.dtype, device=target.device)
        self.values = torch.zeros_like(self.keys)

    def extend(self, ids: Tensor) -> Tensor:
        """Feed ids [B, T] (T > 1 only at the start) and return the last row's logits [B, V]."""
        start, end = self.rows, self.rows + ids.shape[1]
        self.rows = end

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.keys[layer, :, :, start:end] = k
            self.values[layer, :, :, start:end] = v
            if end - start > 1:
                return _causal(layer, q, k, v)
            # The query heads of a group become rows of their key-value head: k, v are read once.
            batch, heads, _, dim = q.shape
            grouped = q.view(batch, k.shape[1], -1, dim)
            keys, values = self.keys[layer, :, :, :end], self.values[layer, :, :, :end]
            return F.scaled_dot_product_attention(grouped, keys, values).view(batch, heads, 1, dim)

        x = F.embedding(ids, self.target.embedding)
        for layer in range(len(self.target.blocks)):
            x = self.target.block(layer, x, slice(start, end), attend)
        return self.target.logits(x[:, -1])
