"""N-gram features: a table's rows, chosen by hashing each token with the ones before it, gated into
every stream of the residual.

Owns the hash (its constants follow from the model's sizes and seed) and the module's arithmetic.
Where the table's rows lie is the table's to know; which rows a pass needs follows from its tokens
alone, before the model runs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.layers.conv import depthwise
from flarechat.engine.layers.linear import Linear
from flarechat.engine.layers.offset_norm import OffsetRMSNorm

if TYPE_CHECKING:
    from flarechat.engine.state.ngram import NgramState
    from flarechat.engine.state.passes import Pass

NGRAM = 3
_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


class Pending(Protocol):
    """Rows of a table that are being fetched."""

    def wait(self) -> Tensor:
        """Their features, side by side for each token: [..., heads * E]."""


class Table(Protocol):
    """Rows of n-gram features [R, E]."""

    def ahead(self, rows: Tensor) -> Pending:
        """Begin to fetch rows int64 [..., heads]."""


def splitmix64(value: int) -> int:
    """One step of that generator, from a 64-bit seed."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def multipliers(vocabulary: int, seed: int) -> list[int]:
    """One odd factor for a token and for each of those before it, so small that no product of it
    and a token id overflows 63 bits."""
    half = max(1, ((1 << 63) - 1) // vocabulary // 2)
    seeds = ((seed + _GAMMA * (i + 1)) & _MASK for i in range(NGRAM))
    return [2 * (splitmix64(value) % half) + 1 for value in seeds]


def moduli(base: int, heads: int) -> list[int]:
    """The first `heads` primes from `base` on: the rows of each head's part of the table."""
    found: list[int] = []
    candidate = base
    while len(found) < heads:
        if candidate > 1 and all(candidate % d for d in range(2, math.isqrt(candidate) + 1)):
            found.append(candidate)
        candidate += 1
    return found


def table_rows(base: int, heads: int, divisor: int) -> int:
    """Rows of the whole table, rounded up to a multiple of `divisor`."""
    return -(-sum(moduli(base, heads)) // divisor) * divisor


class NgramHash:
    """From a token and the two before it to table rows: the first half of the `heads` heads hash
    two tokens, the others three. Tokens before a terminal one count as terminal."""

    def __init__(
        self, vocabulary: int, eos: int, heads: int, base: int, seed: int, device: torch.device
    ) -> None:
        sizes = moduli(base, heads)
        offsets = [sum(sizes[:head]) for head in range(heads)]
        self.eos = eos
        self.multipliers = torch.tensor(multipliers(vocabulary, seed), device=device)
        self.moduli = torch.tensor(sizes, device=device)
        self.offsets = torch.tensor(offsets, device=device)

    def rows(self, before: Tensor, tokens: Tensor) -> Tensor:
        """before int64 [B, 2] and tokens int64 [B, T] → row numbers int64 [B, T, heads]."""
        held = torch.cat([before, tokens], dim=1)
        second, first = held[:, :-2], held[:, 1:-1]
        second = torch.where(first == self.eos, self.eos, second)
        m = self.multipliers
        two = (tokens * m[0]) ^ (first * m[1])
        three = two ^ (second * m[2])
        half = len(self.moduli) // 2
        mixed = torch.stack([two] * half + [three] * half, dim=-1)
        return mixed.remainder(self.moduli) + self.offsets


class Ngram:
    """The module of one layer. `conv` is [S * D, taps], dilated by the n-gram's length."""

    def __init__(
        self, hashing: NgramHash, table: Table, key: Linear, value: Linear,
        norms: tuple[OffsetRMSNorm, OffsetRMSNorm, OffsetRMSNorm], conv: Tensor, streams: int,
    ) -> None:  # fmt: skip
        self.hash, self.table, self.key, self.value = hashing, table, key, value
        self.norm_key, self.norm_query, self.norm_conv = norms
        self.conv, self.streams = conv, streams

    def ahead(self, tokens: Tensor, cache: NgramState, run: Pass) -> Pending:
        """Begin to fetch the features of tokens int64 [B, T], which nothing else decides."""
        rows = self.hash.rows(cache.ids.before(run.lanes, 0)[..., 0], tokens)
        run.settle(cache.ids, 0, tokens[..., None])
        return self.table.ahead(rows)

    def __call__(self, h: Tensor, features: Tensor, cache: NgramState, run: Pass) -> Tensor:
        """What the residual h [B, T, S * D] gains by features [B, T, heads * E]."""
        streams = (self.streams, -1)
        keys = torch.unflatten(self.norm_key(self.key(features)), -1, streams)
        queries = torch.unflatten(self.norm_query(h), -1, streams)
        agreed = (keys * queries).sum(-1, keepdim=True) / math.sqrt(queries.shape[-1])
        agreed = agreed.abs().clamp_min(1e-6).sqrt() * agreed.sign()
        gated = (torch.sigmoid(agreed) * self.value(features)[..., None, :]).flatten(-2)
        columns = self.norm_conv(gated)
        before = cache.columns.before(run.lanes, 0)
        run.settle(cache.columns, 0, columns)
        return gated + F.silu(depthwise(before, columns, self.conv, NGRAM))
