"""Slots full of requests of every kind, and laws over few candidates, for tests of sampling."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from flarechat.engine.proposal import Proposal
from flarechat.engine.sampling import TargetLaw, penalised
from flarechat.engine.slot import Lanes, SlotPool

CPU = torch.device("cpu")
CHOICES: dict[str, tuple[float, ...]] = {
    "temperature": (0.0, 0.2, 0.7, 1.0, 1.7),
    "top_k": (1, 2, 20, 50, 64),
    "top_p": (1.0, 0.95, 0.5, 0.05),
    "min_p": (0.0, 0.02, 0.3),
    "repetition_penalty": (1.0, 1.1, 0.8),
    "presence_penalty": (0.0, 0.4, -0.4),
    "frequency_penalty": (0.0, 0.3, -0.3),
}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lanes_of(count: int, vocabulary: int, seed: int, *, spare: int = 2) -> Lanes:
    """Lanes in mixed slots at mixed places; some by match, some ended, some about to end."""
    draw, slots = generator(seed), count + spare
    pool = SlotPool(slots, 8192, vocabulary, CPU)

    def whole(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape or (slots,), generator=draw)

    pool.pending.copy_(whole(0, vocabulary))
    pool.consumed.copy_(whole(0, 8000))
    pool.seed.copy_(whole(-(2**62), 2**62))
    pool.match.copy_(whole(0, 2) == 0)
    pool.finish.copy_((whole(0, 8) - 4).clamp_min(0))
    pool.budget.fill_(100)
    pool.generated.copy_(whole(90, 100))
    pool.eos[:, :3] = whole(0, vocabulary, slots, 3)
    for name, values in CHOICES.items():
        column = pool.filters[name]
        column.copy_(torch.tensor(values)[whole(0, len(values))].to(column.dtype))
    pool.counts.copy_(whole(-3, 4, slots, vocabulary).clamp_min(0))
    pool.prompt_seen.copy_(whole(0, 8, slots, vocabulary) == 0)
    return Lanes(pool, torch.randperm(slots, generator=draw)[:count].tolist())


def law_of(lanes: int, rows: int, candidates: int, vocabulary: int, seed: int) -> TargetLaw:
    """Falling laws with holes at the end, over candidates in no order."""
    draw = generator(seed)
    probs = torch.softmax(2 * torch.randn(lanes, rows, candidates, generator=draw), -1)
    probs = probs.sort(-1, descending=True).values
    held = torch.randint(1, candidates + 1, (lanes, rows, 1), generator=draw)
    probs = torch.where(torch.arange(candidates) < held, probs, 0.0)
    ids = torch.rand(lanes, rows, vocabulary, generator=draw).argsort(-1)[..., :candidates]
    return TargetLaw(probs / probs.sum(-1, keepdim=True), ids)


def near(law: TargetLaw, drafts: int, seed: int, *, fewer: int = 0) -> Proposal:
    """Drafts from laws near the target's, some of them the very same, at most one not offered."""
    draw = generator(seed)
    assert law.ids is not None
    p, ids = law.probs[:, :drafts], law.ids[:, :drafts]
    p, ids = p[..., : p.shape[-1] - fewer], ids[..., : p.shape[-1] - fewer]
    same = torch.rand(len(p), 1, 1, generator=draw) < 0.3
    q = torch.where(same, p, p * (torch.rand(p.shape, generator=draw) + 0.1) + 1e-3)
    q = q / q.sum(-1, keepdim=True)
    at = torch.multinomial(q.reshape(-1, q.shape[-1]), 1, generator=draw) if drafts else q[..., 0]
    tokens = ids.gather(2, at.long().reshape(len(p), drafts, 1))[..., 0]
    offered = torch.randint(max(drafts - 1, 0), drafts + 1, (len(p),), generator=draw)
    return Proposal(tokens, offered, q, ids)


V, LANES = 90, 60
CASES = {"laws": 0, "laws of fewer candidates": 7, "points": None}


def case(drafts: int, kind: str) -> tuple[Lanes, TargetLaw, Proposal]:
    lanes, law = lanes_of(LANES, V, seed=drafts), law_of(LANES, drafts + 1, 64, V, seed=50 + drafts)
    fewer = CASES[kind]
    proposal = near(law, drafts, seed=70 + drafts, fewer=fewer or 0)
    return lanes, law, proposal if fewer is not None else replace(proposal, probs=None, ids=None)


def require_same(own: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    """Rows after the last that counts mean nothing."""
    counted = torch.arange(own[0].shape[1]) <= theirs[1][:, None]
    assert torch.equal(theirs[1], own[1])
    assert torch.equal(theirs[0][counted], own[0][counted])


def stable_law(
    logits: Tensor, lanes: Lanes, drafts: Tensor, penalties: bool, first: int = 0,
    vocabulary: Tensor | None = None, *, count: int = 64,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The law by torch, with a stable sort where `topk` leaves the order of equals open."""
    values = logits.float()
    if penalties:
        values = penalised(values, lanes, drafts, first, vocabulary)
    values, column = values.sort(dim=-1, descending=True, stable=True)
    values, column = values[..., :count], column[..., :count]
    p, rank = lanes.sampling(), torch.arange(values.shape[-1])
    heat, top_k, top_p, min_p = (
        x[:, None, None] for x in (p.temperature, p.top_k, p.top_p, p.min_p)
    )
    probs = torch.softmax(values / torch.where(heat > 0, heat, 1.0), -1)
    probs = torch.where((rank < top_k) | (top_k == 0), probs, 0.0)
    before = (probs.cumsum(-1) - probs) / probs.sum(-1, keepdim=True)
    probs = torch.where((before < top_p) | (rank == 0), probs, 0.0)
    probs = torch.where(probs >= min_p * probs[..., :1], probs, 0.0)
    probs = torch.where(heat > 0, probs / probs.sum(-1, keepdim=True), (rank == 0).float())
    return probs, column if vocabulary is None else vocabulary[column]


def require_law(own: tuple[Tensor, Tensor], probs: Tensor, ids: Tensor) -> None:
    """Equal ids where there is mass, and nothing past the candidates there are."""
    found = ids.shape[-1]
    torch.testing.assert_close(own[0][..., :found], probs, atol=2e-6, rtol=2e-5)
    assert not own[0][..., found:].any()
    same = (own[1][..., :found] == ids) | (probs == 0)
    assert same.all()
