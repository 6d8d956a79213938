"""The experts of a mixture: each row's product with the few it was routed to.

Owns the storage of an expert's weights. Which experts a row takes is the router's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine import kernels
from flarechat.engine.weights.formats import FP8_BLOCKS, NVFP4, Packed

_ROUND = 32  # rows of the widest round: four lanes of eight
_GATHERED_BYTES = 64 << 20

Take = Callable[[Tensor], tuple[Tensor, Tensor]]


class Experts(Protocol):
    """x [N, D], ids int64 [N, k] and weights [N, k] → [N, D]: the weighted sum of down(silu(gate
    x) * up x) over each row's k experts."""

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor: ...


class DenseExperts:
    """Weights as torch holds them: gate_up [E, 2 I, D], gate rows first, and down [E, D, I].

    The rows of a round gather their experts' weights, a few rows at a time, and nothing is read
    back from the device; more rows go expert by expert.
    """

    def __init__(self, gate_up: Tensor, down: Tensor) -> None:
        self.gate_up, self.down = gate_up, down

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        pair_bytes = self.gate_up[0].nbytes + self.down[0].nbytes
        return _multiplied(x, ids, weights, self._taken, pair_bytes)

    def _taken(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """gate_up [..., 2 I, D] and down [..., D, I] of the experts `ids` int64 [...]."""
        return self.gate_up[ids], self.down[ids]


class PackedExperts:
    """Weights as the checkpoint packs them: gate_up [E, 2, I, D] and down [E, D, I].

    On a GPU our kernel decodes on the way. Elsewhere the experts that are used are decoded to
    floats, a few rows' at a time, or one by one for more rows than a round has. Activations stay
    floats.
    """

    kind = ""

    def __init__(self, gate_up: Packed, down: Packed) -> None:
        for packed in (gate_up, down):
            if packed.kind != self.kind:
                raise ValueError(f"{type(self).__name__} cannot hold {packed.kind}")
        self.gate_up, self.down = gate_up, down

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        if kernels.fused(x):
            from flarechat.engine.kernels.experts import packed_experts

            return packed_experts(x, ids, weights, self.gate_up, self.down)
        _, _, inner, wide = self.gate_up.shape
        pair_bytes = 3 * inner * wide * torch.float32.itemsize
        return _multiplied(x, ids, weights, lambda some: self._decoded(some, x.dtype), pair_bytes)

    def _decoded(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """gate_up [..., 2 I, D] and down [..., D, I] of the experts `ids` int64 [...]."""
        gate_up = self.gate_up.take(ids).decode().to(dtype).flatten(-3, -2)
        return gate_up, self.down.take(ids).decode().to(dtype)


class Nvfp4Experts(PackedExperts):
    """Four bits a weight, sixteen to a scale."""

    kind = NVFP4


class Fp8Experts(PackedExperts):
    """Eight bits a weight, a scale for every tile of 128 by 128."""

    kind = FP8_BLOCKS


def hold_experts(gate_up: Tensor | Packed, down: Tensor | Packed) -> Experts:
    """Experts in the storage their weights have, floats [E, 2 I, D] and [E, D, I] or packed."""
    if isinstance(gate_up, Packed) and isinstance(down, Packed):
        held = Nvfp4Experts if gate_up.kind == NVFP4 else Fp8Experts
        return held(gate_up, down)
    assert isinstance(gate_up, Tensor) and isinstance(down, Tensor), "one is packed, one is not"
    return DenseExperts(gate_up, down)


def _multiplied(x: Tensor, ids: Tensor, weights: Tensor, take: Take, pair_bytes: int) -> Tensor:
    """Rows x [N, D] with the experts that `take` gives: a row's one takes `pair_bytes`."""
    if len(x) > _ROUND:
        return _by_expert(x, ids, weights, take)
    step = max(1, _GATHERED_BYTES // pair_bytes // ids.shape[1])
    rows = zip(*(torch.split(part, step) for part in (x, ids, weights)), strict=True)
    return torch.cat([_gathered(a, w, *take(i.reshape(-1))) for a, i, w in rows])


def _gathered(x: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Rows x [N, D] with their own k experts each, gate_up [N k, 2 I, D] and down [N k, D, I]."""
    rows = x.repeat_interleave(weights.shape[1], dim=0)[..., None]
    gate, up = (gate_up @ rows).chunk(2, dim=1)
    out = (down @ (F.silu(gate) * up)).view(*weights.shape, -1)
    return (out * weights[..., None]).sum(1)


def _by_expert(x: Tensor, ids: Tensor, weights: Tensor, take: Take) -> Tensor:
    """Expert by expert, all of its rows together."""
    out = torch.zeros_like(x)
    for expert in torch.unique(ids):
        row, choice = torch.where(ids == expert)
        gate_up, down = take(expert)
        gate, up = F.linear(x[row], gate_up).chunk(2, dim=-1)
        own = F.linear(F.silu(gate) * up, down)
        out.index_add_(0, row, (own * weights[row, choice, None]).to(out.dtype))
    return out
