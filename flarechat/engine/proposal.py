"""Draft tokens on their way to the target, with the law that really drew each.

Owns the shapes of a proposal. Where all laws are point masses, as copies' are, `probs` is None.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts of a round over B lanes.

    tokens: int64 [B, K]; entries at or past `offered` are padding and can never be accepted.
    offered: int64 [B], drafts really offered, at most K.
    probs: float32 [B, K, C], row i the law draft i was drawn from; None for point masses, and
    where acceptance is by match, which does not look at it.
    ids: int64 [B, K, C], the token of each candidate; None when C is the vocabulary in order. A
    token that stands there twice has the sum.
    sure: int64 [B], how many of a lane's drafts, from the first and as far as they are offered, are
    kept without a test; None for none.
    """

    tokens: Tensor
    offered: Tensor
    probs: Tensor | None = None
    ids: Tensor | None = None
    sure: Tensor | None = None

    @property
    def draft_tokens(self) -> int:
        """K, padding included."""
        return self.tokens.shape[1]

    def valid(self) -> Tensor:
        """bool [B, K]: which entries are drafts and not padding."""
        depth = torch.arange(self.draft_tokens, device=self.tokens.device)
        return depth < self.offered[:, None]

    def untested(self) -> Tensor | None:
        """bool [B, K]: which drafts are kept without a test; None where none can be."""
        if self.sure is None:
            return None
        depth = torch.arange(self.draft_tokens, device=self.tokens.device)
        return depth < torch.minimum(self.sure, self.offered)[:, None]

    def prob_of_drafts(self) -> Tensor:
        """float32 [B, K]: q(d), the probability each draft had under its own law."""
        if self.probs is None:
            return torch.ones_like(self.tokens, dtype=torch.float32)
        if self.ids is None:
            return self.probs.gather(2, self.tokens[..., None])[..., 0]
        return torch.where(self.ids == self.tokens[..., None], self.probs, 0.0).sum(-1)

    def law_at(self, rows: Tensor, vocabulary: int) -> Tensor | None:
        """float32 [B, 1, V]: the law of draft `rows` int64 [B] of each lane; None if a point."""
        if self.probs is None:
            return None
        at = rows[:, None, None].expand(-1, 1, self.probs.shape[-1])
        q = self.probs.gather(1, at)
        if self.ids is None:
            return q
        return q.new_zeros(len(q), 1, vocabulary).scatter_add_(2, self.ids.gather(1, at), q)

    @staticmethod
    def empty(lanes: int, device: torch.device) -> Proposal:
        """No drafts: K = 0."""
        tokens = torch.zeros(lanes, 0, dtype=torch.int64, device=device)
        return Proposal(tokens, torch.zeros(lanes, dtype=torch.int64, device=device))
