"""What a draft row is taught, and what it is worth: distances of its law to the target's.

Rows are picked first (assistant tokens), so everything here is [N, R] over the draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Law:
    """A sampling law that acceptance is measured under. Temperature 0 means argmax."""

    temperature: float
    top_k: int
    top_p: float

    def name(self) -> str:
        """As tables print it."""
        return "0" if self.temperature == 0 else f"{self.temperature}/{self.top_k}/{self.top_p}"


def soft(draft: Tensor, target: Tensor, temperature: float = 1.0) -> Tensor:
    """Cross-entropy of the draft's law against the target's, mean over rows. Logits [N, R]."""
    return F.cross_entropy(draft.float() / temperature, torch.softmax(target / temperature, -1))


def hard(draft: Tensor, said: Tensor) -> Tensor:
    """Cross-entropy against the token really said: draft [N, R], said int64 [N], -100 outside."""
    return F.cross_entropy(draft.float(), said)


def overlap(draft: Tensor, target: Tensor, temperature: float) -> Tensor:
    """1 - sum min(p, q) at a temperature, mean over rows: the share of drafts refused."""
    q = torch.softmax(draft.float() / temperature, -1)
    p = torch.softmax(target / temperature, -1)
    return 1 - torch.minimum(p, q).sum(-1).mean()


@torch.no_grad()
def accepted_share(draft: Tensor, target: Tensor, ids: Tensor | None, law: Law) -> Tensor:
    """sum min(p, q) of every row, exactly: float32 [N].

    draft [N, R] over the draft vocabulary `ids` int64 [R] (None: the whole), target [N, V] over
    the whole. Both are filtered by `law`.
    """
    if law.temperature == 0:
        best = draft.argmax(-1)
        return ((best if ids is None else ids[best]) == target.argmax(-1)).float()
    q, q_at = filtered(draft, law)
    p, p_at = filtered(target, law)
    q_at = q_at if ids is None else ids[q_at]
    same = p_at[:, :, None] == q_at[:, None, :]
    return torch.where(same, torch.minimum(p[:, :, None], q[:, None, :]), 0.0).sum((1, 2))


def filtered(logits: Tensor, law: Law) -> tuple[Tensor, Tensor]:
    """Temperature, top-k, top-p: probabilities and token places, both [N, top_k]."""
    values, at = logits.float().topk(min(law.top_k, logits.shape[-1]), dim=-1)
    probs = torch.softmax(values / law.temperature, -1)
    probs = torch.where(probs.cumsum(-1) - probs < law.top_p, probs, 0.0)
    return probs / probs.sum(-1, keepdim=True), at
