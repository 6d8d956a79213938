"""The draft head as a trainable module, unrolled the way the engine will run it.

Row i pairs the target's hidden row g[i] with the embedding of x[i+1] and predicts x[i+2]; a chain
begun at row i feeds its own output back with the next token. All chains of a text are unrolled at
once: at depth j every row sees the true rows up to its own start and its chain's own rows (the
training-time test of Li et al. 2025, "EAGLE-3").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.target import Shape, Target, norm, rotary, rotate


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What is chosen about a head; the rest is the target's.

    `taps` counts the target's blocks passed before each hidden row that is fed in.
    """

    layers: int = 1
    intermediate_size: int = 1536
    taps: tuple[int, ...] = (30,)


class HeadLayer(nn.Module):
    """One llama layer; q, k, v are one product, so are gate and up."""

    def __init__(self, shape: Shape, intermediate: int) -> None:
        super().__init__()
        dim, wide = shape.hidden_size, shape.split[0]
        self.shape = shape
        self.input_norm = nn.Parameter(torch.ones(dim))
        self.qkv = nn.Parameter(torch.zeros(sum(shape.split), dim))
        self.out = nn.Parameter(torch.zeros(dim, wide))
        self.mlp_norm = nn.Parameter(torch.ones(dim))
        self.gate_up = nn.Parameter(torch.zeros(2 * intermediate, dim))
        self.down = nn.Parameter(torch.zeros(dim, intermediate))

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of x [B, T, D], rotated, each [B, heads, T, D_head]; k, v stand for every q."""
        shape, (batch, length, _) = self.shape, x.shape
        qkv = F.linear(norm(x, self.input_norm, shape.rms_norm_eps), self.qkv.to(x.dtype))
        q, k, v = (
            t.view(batch, length, -1, shape.head_dim).transpose(1, 2)
            for t in qkv.split(shape.split, -1)
        )
        group = shape.num_attention_heads // shape.num_key_value_heads
        k, v = rotate(k, cos, sin), v
        return (
            rotate(q, cos, sin),
            k.repeat_interleave(group, 1),
            v.repeat_interleave(group, 1),
        )

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Attention's result [B, heads, T, D_head] and the gated MLP added to x."""
        batch, length, _ = x.shape
        x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), self.out.to(x.dtype))
        h = norm(x, self.mlp_norm, self.shape.rms_norm_eps)
        gate, up = F.linear(h, self.gate_up.to(x.dtype)).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down.to(x.dtype))


class DraftHead(nn.Module):
    """fc over [norm(g) ; norm(embedding)], layers, norm; g fuses the tapped hidden rows."""

    def __init__(self, target: Shape, shape: HeadShape) -> None:
        super().__init__()
        dim = target.hidden_size
        self.target, self.shape = target, shape
        self.norm_hidden = nn.Parameter(torch.ones(dim))
        self.norm_embedding = nn.Parameter(torch.ones(dim))
        self.fc = nn.Parameter(torch.zeros(dim, 2 * dim))
        self.norm = nn.Parameter(torch.ones(dim))
        count = len(shape.taps)
        self.fuse = nn.Parameter(torch.zeros(dim, dim * count)) if count > 1 else None
        self.layers = nn.ModuleList(
            HeadLayer(target, shape.intermediate_size) for _ in range(shape.layers)
        )

    def features(self, hidden: Tensor) -> Tensor:
        """g: the tapped rows [B, T, D * taps] as one row [B, T, D]."""
        return hidden if self.fuse is None else F.linear(hidden, self.fuse.to(hidden.dtype))

    def chain(self, hidden: Tensor, embedded: Tensor, steps: int) -> Iterator[Tensor]:
        """Outputs y [B, T, D] of depths 0 … steps-1 for chains begun at every row.

        hidden is the target's rows [B, T, D * taps]; embedded [B, T, D] the embeddings of x.
        Row i at depth j was fed x[i+1+j]; rows past T - 2 - j are wrapped around and mean nothing.
        """
        length, eps = hidden.shape[1], self.target.rms_norm_eps
        cos, sin = rotary(self.target, length + steps, hidden.device)
        seen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]
        g = self.features(hidden)
        for depth in range(steps):
            fed = torch.roll(embedded, -(1 + depth), dims=1)
            pair = [norm(g, self.norm_hidden, eps), norm(fed, self.norm_embedding, eps)]
            x = F.linear(torch.cat(pair, -1), self.fc.to(g.dtype))
            turn = cos[depth : depth + length], sin[depth : depth + length]
            for layer, rows in zip(self.layers, seen, strict=True):
                q, k, v = layer.queries(x, *turn)
                rows.append((k, v))
                x = layer.finish(x, _attend(q, rows))
            yield x
            g = x


def _attend(q: Tensor, rows: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Each row attends the true rows up to its start, then its own chain's rows, one a depth."""
    true_k, true_v = rows[0]
    if len(rows) == 1:
        return F.scaled_dot_product_attention(q, true_k, true_v, is_causal=True)
    length, scale = q.shape[2], 1 / math.sqrt(q.shape[-1])
    causal = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    true = (q @ true_k.transpose(-1, -2) * scale).masked_fill(~causal, float("-inf"))
    own = torch.stack([(q * k).sum(-1) * scale for k, _ in rows[1:]], dim=-1)
    precise = torch.promote_types(q.dtype, torch.float32)
    weights = torch.softmax(torch.cat([true, own], -1), -1, dtype=precise).to(q.dtype)
    mixed = weights[..., :length] @ true_v
    for place, (_, v) in enumerate(rows[1:]):
        mixed = mixed + weights[..., length + place, None] * v
    return mixed


@torch.no_grad()
def start_from(target: Target, shape: HeadShape, generator: torch.Generator) -> DraftHead:
    """A head that begins as the target's last layers, with both inputs passed on.

    A wider MLP gets random rows that do nothing yet; a narrower one keeps the rows that matter
    most, by the norm of what they write.
    """
    head = DraftHead(target.shape, shape).to(target.device)
    dim = target.shape.hidden_size
    eye = torch.eye(dim, device=target.device)
    head.fc[:, :dim], head.fc[:, dim:] = eye, 0.5 * eye
    head.fc += 0.01 * _randn(head.fc.shape, generator)
    head.norm.copy_(target.final_norm)
    if head.fuse is not None:
        head.fuse.copy_(0.01 * _randn(head.fuse.shape, generator))
        head.fuse[:, -dim:] += eye
    for place, layer in enumerate(head.layers):
        source = target.blocks[len(target.blocks) - shape.layers + place]
        layer.input_norm.copy_(source.input_norm)
        layer.qkv.copy_(source.qkv)
        layer.out.copy_(source.out)
        layer.mlp_norm.copy_(source.mlp_norm)
        _fit_mlp(layer, source.gate_up.float(), source.down.float(), generator)
    return head


def _fit_mlp(layer: nn.Module, gate_up: Tensor, down: Tensor, generator: torch.Generator) -> None:
    wanted, given = layer.down.shape[1], down.shape[1]
    order = down.norm(dim=0).argsort(descending=True)[: min(wanted, given)].sort().values
    gate, up = gate_up.chunk(2)
    kept = len(order)
    for half, rows in ((0, gate), (wanted, up)):
        layer.gate_up[half : half + kept] = rows[order]
        fresh = layer.gate_up[half + kept : half + wanted]
        fresh.copy_(gate_up.std() * _randn(fresh.shape, generator))
    layer.down[:, :kept] = down[:, order]


def _randn(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)
