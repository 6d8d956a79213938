"""The mixture of experts: a router, the experts it chooses, and one expert that all rows share."""

from __future__ import annotations

import torch
from torch import Tensor

from flarechat.engine.layers.experts import Experts
from flarechat.engine.layers.linear import Linear
from flarechat.engine.layers.mlp import MLP


class Router:
    """The `chosen` likeliest experts of each row, their probabilities scaled to sum to one."""

    def __init__(self, gate: Linear, chosen: int, *, renormalise: bool) -> None:
        self.gate, self.chosen, self.renormalise = gate, chosen, renormalise

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, D] → expert ids int64 [N, k] and weights [N, k]."""
        probs = torch.softmax(self.gate(x), dim=-1, dtype=torch.float32)
        weights, ids = probs.topk(self.chosen, dim=-1)
        if self.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return ids, weights.to(x.dtype)


class MoE:
    """Routed experts, plus a shared one behind a sigmoid gate."""

    def __init__(self, router: Router, experts: Experts, shared: MLP, shared_gate: Linear) -> None:
        self.router, self.experts = router, experts
        self.shared, self.shared_gate = shared, shared_gate

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., D] → [..., D]."""
        flat = x.reshape(-1, x.shape[-1])
        routed = self.experts(flat, *self.router(flat))
        shared = torch.sigmoid(self.shared_gate(flat)) * self.shared(flat)
        return (routed + shared).view(x.shape)
