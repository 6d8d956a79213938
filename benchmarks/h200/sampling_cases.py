"""Random rounds for checks of sampling: slots, logits, laws and drafts, on a device.

Owns what is drawn and the torch law that the kernels are held to, in which of equal logits the
lower id comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from flarechat.engine import rng
from flarechat.engine.kernels import draws
from flarechat.engine.kernels import filter as filters
from flarechat.engine.proposal import Proposal
from flarechat.engine.sampling import TargetLaw, penalised
from flarechat.engine.slot import Lanes, SlotPool

CHOICES: dict[str, tuple[float, ...]] = {
    "temperature": (0.0, 0.2, 0.7, 1.0, 1.7),
    "top_k": (1, 2, 20, 50, 64),
    "top_p": (1.0, 0.95, 0.5),
    "min_p": (0.0, 0.02, 0.3),
    "repetition_penalty": (1.0, 1.1, 0.8),
    "presence_penalty": (0.0, 0.4),
    "frequency_penalty": (0.0, 0.3),
}
Held = TypeVar("Held", Lanes, TargetLaw, Proposal)


@dataclass(frozen=True, slots=True)
class Sizes:
    """`rounds` lanes decide in each check, over `vocabulary` tokens; `lanes` have logits."""

    rounds: int
    vocabulary: int
    lanes: int
    columns: tuple[int, ...]
    draft_columns: int
    drafts: tuple[int, ...]


def full() -> Sizes:
    """On a GPU."""
    return Sizes(1000, 500, 16, (49152, 151936, 248320), 8192, (1, 3, 7))


def dry() -> Sizes:
    """In the interpreter."""
    return Sizes(8, 90, 2, (150,), 100, (1, 3))


class Case:
    """Draws cases for `device`, each another one."""

    def __init__(self, sizes: Sizes, device: torch.device, *, flashinfer: bool) -> None:
        self.sizes, self.device, self.flashinfer = sizes, device, flashinfer
        self._generator = torch.Generator().manual_seed(11)

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        """int64 on the CPU."""
        return torch.randint(low, high, shape, generator=self._generator)

    def lanes(self, count: int, vocabulary: int) -> Lanes:
        """Lanes at mixed places with mixed sampling, some by match, in slots in no order."""
        pool = SlotPool(count, 8192, vocabulary, torch.device("cpu"))
        pool.pending.copy_(self.whole(0, vocabulary, count))
        pool.consumed.copy_(self.whole(0, 8000, count))
        pool.seed.copy_(self.whole(-(2**62), 2**62, count))
        pool.match.copy_(self.whole(0, 2, count) == 0)
        pool.finish.copy_((self.whole(0, 8, count) - 4).clamp_min(0))
        pool.budget.fill_(100)
        pool.generated.copy_(self.whole(90, 100, count))
        pool.eos[:, :3] = self.whole(0, vocabulary, count, 3)
        for name, values in CHOICES.items():
            column = pool.filters[name]
            picked = torch.tensor(values)[self.whole(0, len(values), count)]
            column.copy_(picked.to(column.dtype))
        said = self.whole(0, vocabulary, count, 40)
        pool.counts.scatter_(1, said, 2)
        pool.prompt_seen.scatter_(1, said.roll(7, 0), True)
        slots = torch.randperm(count, generator=self._generator).tolist()
        return moved(Lanes(pool, slots), self.device)

    def logits(
        self, columns: int, *, lanes: int | None = None, rows: int = 4
    ) -> tuple[Lanes, Tensor, Tensor]:
        """Lanes, bfloat16 logits [B, W, V] and drafts [B, W - 1]."""
        count = lanes or self.sizes.lanes
        drawn = torch.randn(count, rows, columns, generator=self._generator) * 3
        drafts = self.whole(0, columns, count, max(rows - 1, 1))[:, : rows - 1]
        return (
            self.lanes(count, columns), drawn.bfloat16().to(self.device), drafts.to(self.device),
        )  # fmt: skip

    def round(
        self, drafts: int, points: bool, *, lanes: int | None = None
    ) -> tuple[Lanes, TargetLaw, Proposal]:
        """Laws of 64 candidates, and drafts from laws near them or points."""
        count, vocabulary, few = lanes or self.sizes.rounds, self.sizes.vocabulary, 64
        draw = self._generator
        probs = torch.softmax(2 * torch.randn(count, drafts + 1, few, generator=draw), -1)
        probs = probs.sort(-1, descending=True).values
        held = self.whole(1, few + 1, count, drafts + 1, 1)
        probs = torch.where(torch.arange(few) < held, probs, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
        ids = torch.rand(count, drafts + 1, vocabulary, generator=draw).argsort(-1)[..., :few]
        p, q_ids = probs[:, :drafts], ids[:, :drafts]
        q = p * (torch.rand(p.shape, generator=draw) + 0.1) + 1e-3
        q = q / q.sum(-1, keepdim=True)
        tokens = q_ids[..., 0]
        if drafts and not points:
            at = torch.multinomial(q.reshape(-1, few), 1, generator=draw)
            tokens = q_ids.gather(2, at.reshape(count, drafts, 1))[..., 0]
        offered = self.whole(max(drafts - 1, 0), drafts + 1, count)
        law = (None, None) if points or not drafts else (q, q_ids)
        proposal = Proposal(tokens, offered, *law)
        made = moved(TargetLaw(probs, ids), self.device), moved(proposal, self.device)
        return self.lanes(count, vocabulary), *made


def moved(what: Held, device: torch.device) -> Held:
    """A copy on a device."""

    def at(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.detach().clone().to(device)

    if isinstance(what, TargetLaw):
        return TargetLaw(at(what.probs), at(what.ids), what.rising)  # type: ignore[arg-type]
    if isinstance(what, Proposal):
        parts = what.tokens, what.offered, what.probs, what.ids, what.sure
        return Proposal(*map(at, parts))  # type: ignore[arg-type]
    pool = SlotPool(what.pool.slots, what.pool.context, what.pool.vocabulary, device)
    for name, value in what.pool.tensors().items():
        pool.tensors()[name].copy_(value)
    return Lanes(pool, what.slots)


def stable_law(logits: Tensor, lanes: Lanes, drafts: Tensor) -> tuple[Tensor, Tensor]:
    """probs and ids [B, W, C] by a stable sort, in float32 on the CPU."""
    values = penalised(logits.float(), lanes, drafts)
    values, ids = values.sort(dim=-1, descending=True, stable=True)
    values, ids = values[..., : filters.CANDIDATES], ids[..., : filters.CANDIDATES]
    p, rank = lanes.sampling(), torch.arange(values.shape[-1])
    heat, top_k, top_p, min_p = (
        x[:, None, None] for x in (p.temperature, p.top_k, p.top_p, p.min_p)
    )
    values = values - values[..., :1]
    probs = torch.softmax(values / torch.where(heat > 0, heat, 1.0), -1)
    probs = torch.where(rank < top_k, probs, 0.0)
    before = (probs.cumsum(-1) - probs) / probs.sum(-1, keepdim=True)
    probs = torch.where((before < top_p) | (rank == 0), probs, 0.0)
    probs = torch.where(probs >= min_p * probs[..., :1], probs, 0.0)
    return torch.where(heat > 0, probs / probs.sum(-1, keepdim=True), (rank == 0).float()), ids


def uniforms(seed: Tensor, first: Tensor, count: int) -> Tensor:
    """As `rng.uniforms` of ACCEPT, by the kernels: float32 [n, count]."""
    out = torch.empty(len(seed), count, device=seed.device)
    wide = triton.next_power_of_2(count)
    _uniforms[(len(seed),)](seed, first, out, COUNT=count, WIDE=wide, DOMAIN=rng.ACCEPT)
    return out


@triton.jit
def _uniforms(  # type: ignore[no-untyped-def]
    seeds, firsts, out, COUNT: tl.constexpr, WIDE: tl.constexpr, DOMAIN: tl.constexpr
):
    row, column = tl.program_id(0), tl.arange(0, WIDE)
    number = tl.load(firsts + row) + column
    drawn = draws.uniform(tl.load(seeds + row), DOMAIN, number)
    tl.store(out + row * COUNT + column, drawn, column < COUNT)
