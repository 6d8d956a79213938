"""Moves the tiny target on by passes of rows, of which a count stays, without a drafter.

TEXT is what stays, WRONG what is rejected.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from flarechat.engine.accept import RUNNING
from flarechat.engine.plan import Plan, extent_for
from flarechat.engine.recipes.qwen38 import Model
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.engine.state.indexer import RING
from flarechat.engine.state.recurrent import COMMITS
from flarechat.protocol import Sampling
from tests.engine.qwen38 import tiny
from tests.engine.tiny import Bench

ROUNDING = 5e-5
EXTENT = tiny.CONTEXT + SCRATCH_ROWS
TEXT: list[int] = torch.randint(2, 240, (64,), generator=torch.Generator().manual_seed(3)).tolist()
for _place in (0, 3, 22, 24, 25, 31):
    TEXT[_place] = tiny.EOS
WRONG = [250 - i for i in range(16)]


def text(length: int = 45, seed: int = 1, eos: Sequence[int] = (20, 33)) -> list[int]:
    """Random tokens with a terminal one at some places."""
    drawn = torch.randint(2, 256, (length,), generator=torch.Generator().manual_seed(seed))
    tokens = drawn.tolist()
    for place in eos:
        tokens[place] = tiny.EOS
    return tokens


@torch.inference_mode()
def passes(
    bench: Bench, slot: int, tokens: Sequence[int], chunks: Sequence[int], width: int
) -> Tensor:
    """Logits [N, V] of a text whose beginning is prefilled in chunks, the rest verified."""
    pool, target = bench.pool, bench.target
    pool.open(slot, tokens, sampling=Sampling(temperature=0), seed=0, match=True, budget=99, eos=())
    lanes, at, out = Lanes(pool, (slot,)), 0, []
    extent = extent_for(len(tokens), tiny.CONTEXT + SCRATCH_ROWS)
    for chunk in chunks:
        piece = torch.tensor([tokens[at : at + chunk]])
        hidden = target.prefill(lanes.for_prefill(), piece, Plan(chunk - 1, extent))
        out.append(target.logits(target.mixer.mix(hidden))[0])
        at += chunk
        pool.consumed[slot] = at
    pool.finish[slot] = RUNNING
    while at < len(tokens):
        rows = min(width, len(tokens) - at)
        piece = torch.tensor([tokens[at : at + rows]])
        _, logits = target.verify(lanes, piece, Plan(rows - 1, extent))
        target.keep(lanes, torch.tensor([rows]))
        out.append(logits[0])
        at += rows
        pool.consumed[slot] = at
    return torch.cat(out)


def judged(start: int, width: int, kept: int) -> list[int]:
    """Rows of which the first `kept` are the text's."""
    return (TEXT[start : start + kept] + WRONG)[:width]


@functools.cache
def model(commit: str) -> Model:
    """A model that commits so; "stepped" is one more for passes of one row."""
    commit = commit if commit in COMMITS else "columns"
    return tiny.target(tiny.reference(), slots=3, commit=commit)


class Runner:
    """One model's slots, moved on by passes of rows of which a count stays."""

    def __init__(self, commit: str = "records", slot: int = 1) -> None:
        self.model, self.slot = model(commit), slot
        self.pool = SlotPool(3, tiny.CONTEXT, tiny.VOCABULARY, tiny.CPU)

    def open(self, slot: int, consumed: int = 0) -> None:
        self.pool.open(
            slot, TEXT, sampling=Sampling(temperature=0), seed=0, match=True, budget=99, eos=(),
            restored=consumed,
        )  # fmt: skip
        self.pool.start(slot)

    @torch.inference_mode()
    def prefill(self, count: int) -> Runner:
        self.open(self.slot)
        if count:
            lanes = Lanes(self.pool, (self.slot,)).for_prefill()
            self.model.prefill(lanes, torch.tensor([TEXT[:count]]), Plan(count - 1, EXTENT))
            self.pool.consumed[self.slot] = count
        return self

    @torch.inference_mode()
    def step(self, rows: Sequence[int], kept: int) -> Tensor:
        """Verify rows, keep the first `kept`, and return the logits [W, V]."""
        lanes = Lanes(self.pool, (self.slot,))
        _, logits = self.model.verify(lanes, torch.tensor([rows]), Plan(len(rows) - 1, EXTENT))
        self.model.keep(lanes, torch.tensor([kept]))
        self.pool.consumed[self.slot] += kept
        return logits[0]

    def one_by_one(self, start: int, end: int) -> None:
        for token in TEXT[start:end]:
            self.step([token], 1)

    def states(self) -> dict[str, Tensor]:
        """Copies of all that the slot's `consumed` tokens make of each state."""
        rows = int(self.pool.consumed[self.slot])
        caches, slot = self.model.caches, self.slot
        named = {
            "S": caches.recurrent.state[slot],
            "conv": caches.recurrent.conv.rows[slot],
            "ids": caches.ngram.ids.rows[slot],
            "columns": caches.ngram.columns.rows[slot],
            "keys": caches.sparse.kv.keys[0][slot, :, :rows],
            "values": caches.sparse.kv.values[0][slot, :, :rows],
            "blocks": caches.sparse.indexer.blocks[slot, :, : rows // 4],
        }
        open_rows = torch.arange(rows - rows % 4, rows) % RING
        named["open"] = caches.sparse.indexer.ring[slot].index_select(1, open_rows)
        return {name: tensor.clone() for name, tensor in named.items()}
