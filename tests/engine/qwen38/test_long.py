"""Texts of several buckets of the cache: prompts in chunks as the engine cuts them, lanes of very
unequal lengths, and slots that idle further on than the round can see."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from flarechat.engine.accept import IDLE, RUNNING
from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.engine import PREFILL_CHUNK
from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.frame import read
from flarechat.engine.plan import EXTENT_STEP, LawShape, Plan, extent_for
from flarechat.engine.recipes.qwen38 import load, load_head
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.protocol import Sampling
from tests.engine.qwen38 import tiny
from tests.engine.qwen38.mtp_reference import reference_head, tensors_of
from tests.engine.qwen38.paths import assert_equal

CONTEXT = 1300
ROWS = CONTEXT + SCRATCH_ROWS
LENGTHS = (2 * EXTENT_STEP - 2, 40, EXTENT_STEP + 1)
DEPTH = 3


class Talk:
    """Slots 0 to 2 with prompts of these lengths and slot 3 with none, and what they have said."""

    def __init__(self) -> None:
        of, cpu = tiny.reference(), tiny.CPU
        self.head = reference_head(of)
        self.model = load(
            tiny.config(), tiny.checkpoint(of), slots=4, context=CONTEXT, dtype="float32",
            device=cpu,
        )  # fmt: skip
        own = load_head(self.model, {}, tensors_of(self.head), dtype="float32", device=cpu)
        self.pool = SlotPool(4, CONTEXT, tiny.VOCABULARY, cpu)
        self.drafter = MtpDrafter(own, 4, CONTEXT, cpu)
        self.executor = EagerExecutor(self.model, self.drafter)
        self.texts: list[list[int]] = []
        for slot, length in enumerate(LENGTHS):
            self.texts.append(list(drawn(length)))
            self.open(slot, self.texts[slot])

    def open(self, slot: int, tokens: list[int]) -> None:
        greedy = Sampling(temperature=0)
        self.pool.open(slot, tokens, sampling=greedy, seed=1, match=True, budget=99, eos=())
        self.drafter.open(slot, "r", tokens, restored=0, history=False, mtp=True)
        for start in range(0, len(tokens) - 1, PREFILL_CHUNK):
            piece = tokens[start : min(start + PREFILL_CHUNK, len(tokens) - 1)]
            plan = Plan(len(piece) - 1, extent_for(start + len(piece), ROWS))
            self.executor.prefill(Lanes(self.pool, (slot,)), torch.tensor([piece]), plan)
        self.pool.start(slot)

    def play(self, slots: Sequence[int], k: int) -> None:
        """One round as the engine plans it: the extent is that of the lanes which play."""
        playing = [slot for slot in slots if int(self.pool.finish[slot]) == RUNNING]
        for slot in playing:
            self.drafter.stage(slot, k)
        most = max(int(self.pool.consumed[slot]) for slot in playing)
        plan = Plan(k, extent_for(most + k + 1, ROWS), LawShape(1), "match", drafting="mtp")
        records = read(self.executor.play(Lanes(self.pool, slots), plan))
        for slot, record in zip(slots, records, strict=True):
            if slot in playing:
                self.texts[slot] += record.tokens
                self.drafter.commit(slot, record.tokens)

    def chain(self, slot: int) -> tuple[list[int], dict[str, Tensor]]:
        """The slot's next drafts, and the logits that they came from."""
        seen: list[Tensor] = []
        self.drafter.stage(slot, DEPTH)
        logits = self.drafter.head.logits
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                self.drafter.head, "logits", lambda out: seen.append(logits(out)) or seen[-1]
            )
            plan = Plan(DEPTH, extent_for(len(self.texts[slot]) + DEPTH, ROWS))
            tokens = self.drafter.propose(Lanes(self.pool, (slot,)), plan).tokens[0].tolist()
        return tokens, {str(step): row[0, 0] for step, row in enumerate(seen)}


@functools.cache
def drawn(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(2, tiny.VOCABULARY, (length,), generator=generator).tolist()


def assert_chains(talk: Talk) -> None:
    """The head drafts as if it had been given all of each text at once."""
    for slot in (0, 2):
        drafts, logits = talk.chain(slot)
        expected, truth = talk.head.chain(talk.texts[slot], DEPTH, lambda _, row: int(row.argmax()))
        assert expected == drafts
        assert_equal(logits, {str(step): row for step, row in enumerate(truth)})


@torch.no_grad()
def test_lanes_in_different_buckets_say_what_transformers_says() -> None:
    talk = Talk()
    assert_chains(talk)
    talk.play((0, 1, 2, 3), 7)
    for slot in (0, 2):
        talk.pool.finish[slot] = IDLE
    for k in (5, 0):
        talk.play((1, 0, 2, 3), k)
    for slot in (0, 2):
        talk.pool.finish[slot] = RUNNING
    talk.play((2, 0), 3)
    talk.play((0, 1, 2, 3), 0)
    talk.play((0, 1, 2, 3), 7)

    for slot, length in enumerate(LENGTHS):
        said = talk.texts[slot][length:]
        truth = tiny.logits_of(tiny.reference(), talk.texts[slot]).argmax(-1).tolist()
        assert len(said) >= 4
        assert truth[length - 1 : -1] == said
    assert talk.pool.consumed[0] > 2 * EXTENT_STEP
    assert_chains(talk)
