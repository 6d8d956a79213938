"""The gated delta rule: linear attention whose state is a matrix per value head.

Owns its arithmetic, row by row and by chunks, and what a row must leave behind for the state to be
made again: its key, its correction and its decay. State is float32 throughout. Value heads share
key heads in equal runs, as grouped queries share keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.layers.conv import depthwise
from flarechat.engine.layers.linear import Linear
from flarechat.engine.layers.offset_norm import GatedNorm

if TYPE_CHECKING:
    from flarechat.engine.state.passes import Pass
    from flarechat.engine.state.recurrent import RecurrentState

CHUNK = 64


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Heads of keys and of values, and their dimensions."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def state(self) -> tuple[int, int, int]:
        """Shape of one layer's state of one slot."""
        return self.value_heads, self.key_dim, self.value_dim

    @property
    def channels(self) -> int:
        """Features of queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class Records:
    """What W rows leave behind: `key` [B, W, Hk, K], `correction` [B, W, Hv, V] and `decay`
    [B, W, Hv] (its logarithm), float32; `states` has the state after each row."""

    key: Tensor
    correction: Tensor
    decay: Tensor
    states: list[Tensor] = field(default_factory=list)


def unit(x: Tensor) -> Tensor:
    """x over its length in the last dimension, float32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def spread(x: Tensor, heads: int) -> Tensor:
    """[B, T, Hk, K] → [B, T, heads, K]: each key head for its run of value heads."""
    return x.repeat_interleave(heads // x.shape[2], dim=2)


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Records]:
    """Row by row. q, k float32 [B, T, Hk, K], v [B, T, Hv, V], decay and beta [B, T, Hv], state
    [B, Hv, K, V] → outputs [B, T, Hv, V] and the rows' records; `state` itself stays.

    A row with decay 0 and beta 0 leaves the state as it was, to the bit.
    """
    heads = v.shape[2]
    wide_q, wide_k = spread(q, heads)[..., None], spread(k, heads)[..., None]
    out, corrections, states = [], [], []
    for t in range(v.shape[1]):
        decayed = state * decay[:, t, :, None, None].exp()
        told = (decayed * wide_k[:, t]).sum(-2)
        correction = beta[:, t, :, None] * (v[:, t] - told)
        state = decayed + wide_k[:, t] * correction[..., None, :]
        out.append((state * wide_q[:, t]).sum(-2))
        corrections.append(correction)
        states.append(state)
    return torch.stack(out, 1), Records(k, torch.stack(corrections, 1), decay, states)


def replay(state: Tensor, records: Records, count: Tensor) -> Tensor:
    """The state [B, Hv, K, V] after the first `count` [B] of the records' rows, step by step as
    `recurrent` takes them."""
    kept = torch.arange(records.decay.shape[1], device=count.device) < count[:, None]
    decay = records.decay.masked_fill(~kept[..., None], 0)
    correction = records.correction.masked_fill(~kept[..., None, None], 0)
    key = records.key.masked_fill(~kept[..., None, None], 0)
    key = spread(key, correction.shape[2])[..., None]
    for t in range(decay.shape[1]):
        state = state * decay[:, t, :, None, None].exp()
        state = state + key[:, t] * correction[:, t, :, None, :]
    return state


def chunked(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """As `recurrent`, CHUNK rows at a time → outputs and the state after the last row."""
    length, heads = v.shape[1], v.shape[2]
    padding = -length % CHUNK
    q, k = spread(q, heads), spread(k, heads)
    q, k, v = (F.pad(x, (0, 0, 0, 0, 0, padding)).transpose(1, 2) for x in (q, k, v))
    decay, beta = (F.pad(x, (0, 0, 0, padding)).transpose(1, 2) for x in (decay, beta))
    out = []
    for start in range(0, length + padding, CHUNK):
        rows = slice(start, start + CHUNK)
        seen, state = _chunk(
            q[:, :, rows], k[:, :, rows], v[:, :, rows], decay[:, :, rows], beta[:, :, rows], state
        )
        out.append(seen)
    return torch.cat(out, 2)[:, :, :length].transpose(1, 2), state


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One chunk, heads before rows: every row's correction at once, by a triangular solve."""
    total = decay.cumsum(-1)
    causal = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, float("-inf")).exp()
    grown = total.exp()[..., None]
    weighted = beta[..., None] * k
    system = (weighted @ k.mT) * between
    sides = torch.cat([beta[..., None] * v, weighted * grown], dim=-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    own, old = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    correction = own - old @ state
    out = (q * grown) @ state + ((q @ k.mT) * between) @ correction
    last = total[..., -1:]
    state = state * last[..., None].exp() + (k * (last - total).exp()[..., None]).mT @ correction
    return out, state


class GatedDelta:
    """One layer: projections, a short causal convolution, the rule, a gated norm.

    `conv` is [channels, taps], `a_log` and `dt_bias` are float32 [Hv].
    """

    def __init__(
        self, shape: DeltaShape, qkv: Linear, z: Linear, a: Linear, b: Linear, conv: Tensor,
        a_log: Tensor, dt_bias: Tensor, norm: GatedNorm, out: Linear,
    ) -> None:  # fmt: skip
        self.shape, self.qkv, self.z, self.a, self.b = shape, qkv, z, a, b
        self.conv, self.rate, self.dt_bias = conv, -a_log.float().exp(), dt_bias.float()
        self.norm, self.out = norm, out

    def __call__(self, x: Tensor, cache: RecurrentState, layer: int, run: Pass) -> Tensor:
        """x [B, T, D] → [B, T, D]; `layer` counts the cache's layers."""
        qkv = self.qkv(x)
        before = cache.conv.before(run.lanes, layer)
        q, k, v = self._heads(F.silu(depthwise(before, qkv, self.conv)))
        beta = torch.sigmoid(self.b(x)).float()
        decay = self.rate * F.softplus(self.a(x).float() + self.dt_bias)
        state = cache.before(run.lanes, layer)
        if run.prefill:
            out, state = chunked(q, k, v, decay, beta, state)
            cache.commit(run.lanes, layer, state, run.count)
        else:
            decay, beta = run.masked(decay), run.masked(beta)
            out, records = recurrent(q, k, v, decay, beta, state)
            cache.take(run, layer, records)
        run.settle(cache.conv, layer, qkv)
        gate = self.z(x).unflatten(-1, (self.shape.value_heads, -1))
        return self.out(self.norm(out.to(x.dtype), gate).flatten(-2))

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (of unit length, queries scaled) and values, float32, by heads."""
        s = self.shape
        keys = s.key_heads * s.key_dim
        q, k, v = mixed.split([keys, keys, s.value_heads * s.value_dim], dim=-1)
        q, k = (unit(part.unflatten(-1, (s.key_heads, -1))) for part in (q, k))
        return q * s.key_dim**-0.5, k, v.float().unflatten(-1, (s.value_heads, -1))
