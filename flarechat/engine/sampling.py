"""Logits to the target law: penalties, temperature, top-k, top-p, min-p, in that order.

Owns the law of a row and how a token is drawn from it. Knows nothing of drafts' acceptance.
Filters follow transformers' processors of the same names (temperature, then top-k, then top-p on
what is left, then min-p relative to the likeliest); temperature 0 means argmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine import kernels
from flarechat.engine.plan import CANDIDATES

if TYPE_CHECKING:
    from flarechat.engine.plan import LawShape
    from flarechat.engine.slot import Lanes

_NO_TOKEN = torch.iinfo(torch.int64).max


@dataclass(frozen=True, slots=True)
class TargetLaw:
    """The target's law at each row, over its candidates.

    probs: float32 [B, W, C], rows sum to one.
    ids: int64 [B, W, C], the token of each candidate; None when C is the vocabulary in order.
    `rising` says that the ids are in order, though they may not be all.
    """

    probs: Tensor
    ids: Tensor | None
    rising: bool = False

    def candidates(self) -> Tensor:
        """int64, broadcastable to [B, W, C]: the candidates' token ids."""
        if self.ids is not None:
            return self.ids
        return torch.arange(self.probs.shape[-1], device=self.probs.device)[None, None]

    def prob_of(self, tokens: Tensor) -> Tensor:
        """p(token) for tokens int64 [B, K] at rows 0 … K-1: float32 [B, K]."""
        rows = tokens.shape[1]
        if self.ids is None:
            return self.probs[:, :rows].gather(2, tokens[..., None])[..., 0]
        same = self.ids[:, :rows] == tokens[..., None]
        return torch.where(same, self.probs[:, :rows], 0.0).sum(-1)

    @property
    def certain(self) -> bool:
        """Whether every row has one candidate, so that no noise decides anything."""
        return self.probs.shape[-1] == 1

    def only(self) -> Tensor:
        """int64 [B, W]: the candidates, where the law is certain."""
        return self.candidates()[..., 0].expand(self.probs.shape[:-1])

    def draw(self, noise: Tensor) -> Tensor:
        """Gumbel-max draw at every row: noise [B, W, C] → tokens int64 [B, W]."""
        return self.token_at((self.probs.log() + noise).argmax(-1))

    def token_at_mass(self, mass: Tensor) -> Tensor:
        """Inverse distribution function in the order of ids: mass float32 [B, W] → int64 [B, W].

        The first token with which the tokens up to it have more than `mass`; where rounding leaves
        none, the last. Never one of probability 0.
        """
        held, ids = self.probs > 0, self.candidates()
        passed = held & (self._mass_to_each() > mass[..., None])
        first = torch.where(passed, ids, _NO_TOKEN).amin(-1)
        return torch.where(first < _NO_TOKEN, first, torch.where(held, ids, 0).amax(-1))

    def _mass_to_each(self) -> Tensor:
        """float32 [B, W, C]: what each candidate and those of lower ids have together."""
        if self.ids is None or self.rising:
            return self.probs.cumsum(-1)
        if self.ids.shape[-1] <= CANDIDATES:
            below = self.ids[..., None, :] <= self.ids[..., None]
            return torch.where(below, self.probs[..., None, :], 0.0).sum(-1)
        order = self.ids.argsort(-1)
        return torch.empty_like(self.probs).scatter_(
            2, order, self.probs.gather(2, order).cumsum(-1)
        )

    def token_at(self, index: Tensor) -> Tensor:
        """Candidate index [B, W] → token id [B, W]."""
        return index if self.ids is None else self.ids.gather(2, index[..., None])[..., 0]

    def row(self, rows: Tensor) -> TargetLaw:
        """The law of one row a lane: rows int64 [B] → a law with W = 1."""
        at = rows[:, None, None].expand(-1, 1, self.probs.shape[-1])
        ids = None if self.ids is None else self.ids.gather(1, at)
        return TargetLaw(self.probs.gather(1, at), ids, self.rising)


def target_law(
    logits: Tensor, lanes: Lanes, drafts: Tensor, shape: LawShape, *, first: int = 0,
    vocabulary: Tensor | None = None,
) -> TargetLaw:  # fmt: skip
    """The law at each row: logits [B, W, V], drafts [B, K]; row i follows drafts before first + i.

    A drafter's logits may cover some tokens only: `vocabulary` int64 [R] names them, rising, and
    V is R.
    """
    steps = kernels.of_round(logits)
    if steps is not None and steps.takes(shape):
        law = TargetLaw(*steps.law(logits, lanes, drafts, shape, first, vocabulary))
        if law.ids is not None:
            return law
    else:
        logits = logits.float()
        if shape.penalties:
            logits = penalised(logits, lanes, drafts, first, vocabulary)
        law = _filtered(logits, lanes, shape)
    if vocabulary is None:
        return law
    ids = vocabulary[law.candidates()].expand(law.probs.shape)
    return TargetLaw(law.probs, ids, rising=law.ids is None)


def _filtered(logits: Tensor, lanes: Lanes, shape: LawShape) -> TargetLaw:
    """Temperature and filters: logits [B, W, V] to the law over their columns."""
    if shape.candidates == 1:
        best = logits.argmax(-1, keepdim=True)
        return TargetLaw(torch.ones_like(best, dtype=torch.float32), best)

    ids: Tensor | None = None
    if shape.candidates:
        logits, ids = logits.topk(min(shape.candidates, logits.shape[-1]), dim=-1)
    elif shape.ordered:
        logits, ids = logits.sort(dim=-1, descending=True)
    sampling = lanes.sampling()
    heat = sampling.temperature[:, None, None]
    # Differences to the likeliest keep a tiny temperature from making infinities.
    logits = logits - logits.amax(-1, keepdim=True)
    probs = torch.softmax(logits / torch.where(heat > 0, heat, 1.0), dim=-1)
    if ids is not None:
        probs = _truncated(probs, sampling.top_k[:, None, None], sampling.top_p[:, None, None])
    floor = sampling.min_p[:, None, None] * probs.amax(-1, keepdim=True)
    probs = torch.where(probs >= floor, probs, 0.0)
    probs = probs / probs.sum(-1, keepdim=True)
    point = torch.zeros_like(probs).scatter_(2, probs.argmax(-1, keepdim=True), 1.0)
    probs = torch.where(heat > 0, probs, point)
    if shape.candidates or ids is None:
        return TargetLaw(probs, ids)
    return TargetLaw(torch.empty_like(probs).scatter_(2, ids, probs), None)


def _truncated(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Zero what top-k and top-p remove; rows are in descending order. top_k 0 means off."""
    rank = torch.arange(probs.shape[-1], device=probs.device)
    probs = torch.where((rank < top_k) | (top_k == 0), probs, 0.0)
    before = probs.cumsum(-1) - probs
    kept = (before < top_p * probs.sum(-1, keepdim=True)) | (top_p >= 1) | (rank == 0)
    return torch.where(kept, probs, 0.0)


def penalised(
    logits: Tensor, lanes: Lanes, drafts: Tensor, first: int = 0, vocabulary: Tensor | None = None
) -> Tensor:
    """Repetition, presence and frequency penalties at each row; arguments as of `target_law`.

    Row i counts the committed generated tokens and its drafts before, each once. Repetition also
    looks at the prompt (as transformers does); presence and frequency at generated tokens only.
    """
    counts = _counts(lanes, drafts, first, logits.shape[1], vocabulary)
    sampling = lanes.sampling()
    repetition = sampling.repetition_penalty[:, None, None]
    seen = lanes.prompt_seen(vocabulary)[:, None] | (counts > 0)
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, scaled, logits)
    logits = logits - sampling.presence_penalty[:, None, None] * (counts > 0)
    return logits - sampling.frequency_penalty[:, None, None] * counts


def _counts(
    lanes: Lanes, drafts: Tensor, first: int, width: int, vocabulary: Tensor | None
) -> Tensor:
    """int32 [B, W, V] (or R): how often each token stands before each row."""
    counts = lanes.counts(vocabulary)[:, None].expand(-1, width, -1)
    rows = torch.arange(first, first + width, device=drafts.device)[:, None]
    before = torch.arange(drafts.shape[1], device=drafts.device) < rows
    if vocabulary is not None:
        same = drafts[:, None, :, None] == vocabulary
        return counts + (same & before[..., None]).sum(2, dtype=counts.dtype)
    at = drafts[:, None].expand(-1, width, -1)
    return counts.clone().scatter_add_(2, at, before.to(counts.dtype).expand(len(lanes), -1, -1))
