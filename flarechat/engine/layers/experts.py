"""The experts of a mixture: each row's product with the few it was routed to.

Owns the storage of an expert's weights. Which experts a row takes is the router's to say.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_GATHERED = 96


class Experts(Protocol):
    """x [N, D], ids int64 [N, k] and weights [N, k] → [N, D]: the weighted sum of down(silu(gate
    x) * up x) over each row's k experts."""

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor: ...


class DenseExperts:
    """Weights as torch holds them: gate_up [E, 2 I, D], gate rows first, and down [E, D, I].

    Few rows gather their experts' weights and nothing is read back from the device; many rows go
    expert by expert.
    """

    def __init__(self, gate_up: Tensor, down: Tensor) -> None:
        self.gate_up, self.down = gate_up, down

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        if ids.numel() > _GATHERED:
            return self._by_expert(x, ids, weights)
        flat = ids.reshape(-1)
        rows = x.repeat_interleave(ids.shape[1], dim=0)[..., None]
        gate, up = (self.gate_up[flat] @ rows).chunk(2, dim=1)
        out = (self.down[flat] @ (F.silu(gate) * up)).view(*ids.shape, -1)
        return (out * weights[..., None]).sum(1)

    def _by_expert(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert in ids.unique().tolist():
            row, choice = torch.where(ids == expert)
            gate, up = F.linear(x[row], self.gate_up[expert]).chunk(2, dim=-1)
            own = F.linear(F.silu(gate) * up, self.down[expert])
            out.index_add_(0, row, (own * weights[row, choice, None]).to(out.dtype))
        return out
