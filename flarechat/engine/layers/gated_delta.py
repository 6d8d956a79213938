"""The gated delta rule: linear attention whose state is a matrix per value head.

Owns its arithmetic, row by row and by chunks; what a row leaves behind, and how the state is made
again from it, is the state's to know. Float32 throughout, between the projections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.layers.conv import depthwise
from flarechat.engine.layers.linear import Linear
from flarechat.engine.layers.offset_norm import GatedNorm
from flarechat.engine.state.recurrent import DeltaShape, Records, spread

if TYPE_CHECKING:
    from flarechat.engine.state.passes import Pass
    from flarechat.engine.state.recurrent import RecurrentState

CHUNK = 64


def unit(x: Tensor) -> Tensor:
    """x over its length in the last dimension, float32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


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
    own, old = torch.split(solved, [v.shape[-1], k.shape[-1]], dim=-1)
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
        gate = torch.unflatten(self.z(x), -1, (self.shape.value_heads, -1))
        return self.out(self.norm(out.to(x.dtype), gate).flatten(-2))

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (of unit length, queries scaled) and values, float32, by heads."""
        s = self.shape
        keys = s.key_heads * s.key_dim
        q, k, v = torch.split(mixed, [keys, keys, s.value_heads * s.value_dim], dim=-1)
        q, k = (unit(torch.unflatten(part, -1, (s.key_heads, -1))) for part in (q, k))
        return q * s.key_dim**-0.5, k, torch.unflatten(v.float(), -1, (s.value_heads, -1))
