"""Slots: the fixed-address state of live requests, and lanes, the slots of one round.

SlotPool owns every per-request tensor (leading dimension S) and writes it in place only. Lanes is
a round's window on B of them: it gathers, and `advance` writes back. Caches are owned by the
target's and the drafter's states, which use the same slot numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from flarechat.engine import kernels
from flarechat.engine.accept import IDLE, RUNNING
from flarechat.protocol import Sampling

MAX_EOS = 16
SCRATCH_ROWS = 8


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Sampling parameters of B lanes, each a tensor [B]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor


_FILTERS = tuple(SamplingRows.__dataclass_fields__)
_FRACTIONS = tuple(name for name in _FILTERS if name != "top_k")
_NUMBERS = 7
# Columns begin at multiples of 16 bytes, as tensors of their own do: kernels are compiled for that.
_ALIGNED = 4


class SlotPool:
    """Per-request tensors of S slots. `context` is the most tokens one slot may hold.

    Columns of one dtype lie side by side in one tensor, so that a slot's are written by one copy.
    """

    def __init__(self, slots: int, context: int, vocabulary: int, device: torch.device) -> None:
        self.slots, self.context, self.vocabulary, self.device = slots, context, vocabulary, device
        room = _aligned(slots)
        self._numbers = torch.zeros(_NUMBERS, room, dtype=torch.int64, device=device)
        self._fractions = torch.zeros(len(_FRACTIONS), room, device=device)
        numbers: list[Tensor] = list(self._numbers[:, :slots])
        self.pending, self.consumed, self.generated = numbers[:3]
        self.budget, self.finish, self.seed, top_k = numbers[3:]
        fractions = zip(_FRACTIONS, self._fractions[:, :slots], strict=True)
        columns = {"top_k": top_k, **dict(fractions)}
        self.filters = {name: columns[name] for name in _FILTERS}
        self.match = torch.zeros(slots, dtype=torch.bool, device=device)
        self.eos = torch.full((slots, MAX_EOS), -1, dtype=torch.int64, device=device)
        self.counts = torch.zeros(slots, vocabulary, dtype=torch.int32, device=device)
        self.prompt_seen = torch.zeros(slots, vocabulary, dtype=torch.bool, device=device)
        self.finish.fill_(IDLE)
        # A slot that was never opened is played as an idle lane too: its law must be one.
        for name in ("top_p", "repetition_penalty"):
            self.filters[name].fill_(1)
        self._indexes: dict[tuple[int, ...], Tensor] = {}

    def index(self, slots: tuple[int, ...]) -> Tensor:
        """int64 [B]: the slots' numbers on the device, made once for each choice of slots."""
        made = self._indexes.get(slots)
        if made is None:
            made = torch.tensor(slots, dtype=torch.int64, device=self.device)
            self._indexes[slots] = made
        return made

    def open(
        self,
        slot: int,
        prompt: Sequence[int],
        generated: Sequence[int] = (),
        *,
        restored: int = 0,
        sampling: Sampling,
        seed: int,
        match: bool,
        budget: int,
        eos: Iterable[int],
    ) -> None:
        """Bind a slot to a request whose tokens are prompt + generated; the last one is pending.

        `consumed` is set to `restored`, the tokens whose state the caches already hold; prefill
        advances it over all tokens but the pending one, then `start` lets rounds play the slot.
        """
        pending = generated[-1] if generated else prompt[-1]
        told = (pending, restored, len(generated), budget, IDLE, seed, sampling.top_k)
        _put(self._numbers[:, slot], told)
        _put(self._fractions[:, slot], [getattr(sampling, name) for name in _FRACTIONS])
        ends = tuple(eos)[:MAX_EOS]
        _put(self.eos[slot], [*ends, *[-1] * (MAX_EOS - len(ends))])
        self.match[slot] = match
        seen = np.zeros(self.vocabulary, dtype=np.bool_)
        seen[np.fromiter(prompt, np.int64, len(prompt))] = True
        self.prompt_seen[slot].copy_(torch.from_numpy(seen), non_blocking=True)
        self.counts[slot] = 0
        if generated:
            at = torch.tensor(list(generated), device=self.device)
            self.counts[slot].index_add_(0, at, torch.ones_like(at, dtype=torch.int32))

    def start(self, slot: int) -> None:
        """Prefill is done: rounds may play the slot."""
        self.finish[slot] = RUNNING

    def release(self, slot: int) -> None:
        """Unbind a slot: a round that still names it emits nothing."""
        self.finish[slot] = IDLE

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor the pool owns, by name."""
        plain = ("pending", "consumed", "generated", "budget", "finish", "seed", "match", "eos")
        named = {name: getattr(self, name) for name in (*plain, "counts", "prompt_seen")}
        return named | self.filters

    @staticmethod
    def price(slots: int, vocabulary: int) -> int:
        """Bytes of a pool: the columns of a slot, and its two tables of all tokens."""
        columns = _NUMBERS * 8 + len(_FRACTIONS) * 4
        return _aligned(slots) * columns + slots * (1 + MAX_EOS * 8 + vocabulary * (4 + 1))

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor the pool owns."""
        tables = self._numbers, self._fractions, self.match, self.eos, self.counts, self.prompt_seen
        return sum(table.nbytes for table in tables)


def _aligned(slots: int) -> int:
    """Numbers that a column of so many slots takes."""
    return -(-slots // _ALIGNED) * _ALIGNED


def _put(view: Tensor, numbers: Sequence[float]) -> None:
    """Write numbers of the host's; a GPU is not waited for, whatever it is doing."""
    view.copy_(torch.tensor(numbers, dtype=view.dtype), non_blocking=True)


class Lanes:
    """B slots played together; `slots` are their numbers.

    Lanes that are `prefilling` write their own rows though no round may play them yet.
    """

    def __init__(self, pool: SlotPool, slots: Sequence[int], *, prefilling: bool = False) -> None:
        self.pool, self.slots, self.prefilling = pool, tuple(slots), prefilling

    @cached_property
    def index(self) -> Tensor:
        """int64 [B]: the slots' numbers on the device."""
        return self.pool.index(self.slots)

    def for_prefill(self) -> Lanes:
        """The same slots, prefilling."""
        return Lanes(self.pool, self.slots, prefilling=True)

    def __len__(self) -> int:
        return len(self.slots)

    def _rows(self, values: Tensor) -> Tensor:
        return values.index_select(0, self.index)

    def _columns(self, table: Tensor, tokens: Tensor | None) -> Tensor:
        return self._rows(table) if tokens is None else table[self.index[:, None], tokens]

    def pending(self) -> Tensor:
        """int64 [B]: sampled by the target, not yet consumed by it."""
        return self._rows(self.pool.pending)

    def inputs(self, drafts: Tensor) -> Tensor:
        """int64 [B, W]: the pending token, then the drafts [B, K]."""
        if (steps := kernels.of_round(drafts)) is not None:
            made: Tensor = steps.inputs(self, drafts)
            return made
        return torch.cat([self.pending()[:, None], drafts], dim=1)

    def consumed(self) -> Tensor:
        """int64 [B]: tokens whose state is in the caches."""
        return self._rows(self.pool.consumed)

    def generated(self) -> Tensor:
        """int64 [B]: tokens emitted so far."""
        return self._rows(self.pool.generated)

    def budget(self) -> Tensor:
        """int64 [B]: most tokens to emit."""
        return self._rows(self.pool.budget)

    def finish(self) -> Tensor:
        """int64 [B]: RUNNING, or why the lane ended."""
        return self._rows(self.pool.finish)

    def seed(self) -> Tensor:
        """int64 [B]."""
        return self._rows(self.pool.seed)

    def match(self) -> Tensor:
        """bool [B]: acceptance by match."""
        return self._rows(self.pool.match)

    def eos(self) -> Tensor:
        """int64 [B, MAX_EOS]: end-of-sequence ids, padded with -1."""
        return self._rows(self.pool.eos)

    def counts(self, tokens: Tensor | None = None) -> Tensor:
        """int32 [B, V]: how often each token was generated; only `tokens` int64 [R], if given."""
        return self._columns(self.pool.counts, tokens)

    def prompt_seen(self, tokens: Tensor | None = None) -> Tensor:
        """bool [B, V]: which tokens the prompt has; only `tokens` int64 [R], if given."""
        return self._columns(self.pool.prompt_seen, tokens)

    def sampling(self) -> SamplingRows:
        """The filters' parameters, each [B]."""
        return SamplingRows(**{n: self._rows(v) for n, v in self.pool.filters.items()})

    def positions(self, width: int, shift: int = 0) -> Tensor:
        """int64 [B, W]: sequence positions of the next `width` inputs, moved by `shift`."""
        return self.consumed()[:, None] + torch.arange(
            shift, shift + width, device=self.index.device
        )

    def next_positions(self, width: int) -> Tensor:
        """int64 [B, W]: positions of the tokens that rows 0 … W-1 predict."""
        return self.positions(width) + 1

    def cache_rows(self, width: int, shift: int = 0) -> Tensor:
        """int64 [B, W]: the cache rows of `positions`, to be written.

        Scratch rows past the context stand in for those of a lane that is not RUNNING (unless it
        is prefilling) and for rows before the first.
        """
        rows = self.positions(width, shift)
        scratch = self.pool.context + SCRATCH_ROWS
        scratch_rows = scratch + torch.arange(width, device=self.index.device)
        live = rows >= 0
        if not self.prefilling:
            live = live & (self.finish() == RUNNING)[:, None]
        return torch.where(live, rows, scratch_rows)

    def advance(self, tokens: Tensor, emitted: Tensor, finish: Tensor) -> None:
        """Count `emitted` tokens of each lane and keep the last one pending, in place."""
        if (steps := kernels.of_round(tokens)) is not None:
            steps.advance(self, tokens, emitted, finish)
            return
        pool, index = self.pool, self.index
        last = tokens.gather(1, (emitted - 1).clamp_min(0)[:, None])[:, 0]
        pool.pending.index_copy_(0, index, torch.where(emitted > 0, last, self.pending()))
        pool.consumed.index_add_(0, index, emitted)
        pool.generated.index_add_(0, index, emitted)
        pool.finish.index_copy_(0, index, finish)
        row = torch.arange(tokens.shape[1], device=index.device)
        at = (index[:, None] * pool.vocabulary + tokens).reshape(-1)
        kept = (row < emitted[:, None]).to(torch.int32).reshape(-1)
        pool.counts.view(-1).index_add_(0, at, kept)
