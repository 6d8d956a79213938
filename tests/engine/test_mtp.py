"""The MTP head and its drafter's state against plain teacher forcing, row by row.

A wrong draft row costs speed and no test of tokens sees it; so state is compared after every
round, with every accepted count, and a planted fault shows that the comparison bites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.plan import LawShape
from flarechat.engine.slot import SCRATCH_ROWS, Lanes
from flarechat.protocol import MAX_DRAFT_TOKENS, Sampling
from tests.engine.mtp_reference import (
    RECORDS,
    Script,
    StagedMtp,
    assert_draft_state,
    kin,
    kin_tensors,
    luck,
    workbench,
)
from tests.engine.tiny import (
    CONTEXT,
    COUNT,
    PROMPT,
    PROMPTS,
    VOCABULARY,
    Bench,
    greedy,
    head_record,
    shared,
)


def script_of(made: Bench, script: Script) -> None:
    assert isinstance(made.executor.drafter, StagedMtp)
    made.executor.drafter.script = script


def poison(made: Bench, slots: Sequence[int]) -> None:
    """Spoil every row that should be unreachable."""
    drafter = made.executor.drafter
    assert isinstance(drafter, MtpDrafter)
    for slot in slots:
        rows = int(made.pool.consumed[slot])
        drafter.hidden.rows[slot, rows:] = 1e3
        for cache, first in ((drafter.cache, max(rows - 1, 0)), (made.target.kv, rows)):
            for tensor in cache.tensors().values():
                tensor[slot, :, first:] = 1e3


@pytest.mark.parametrize("chunk", [1, 3, 256])
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_prefill_in_chunks_absorbs_like_teacher_forcing(
    model: LlamaForCausalLM, chunk: int, record: dict[str, Any]
) -> None:
    made, head = workbench(model, record)
    prompt = (*PROMPT, *PROMPTS[2], *PROMPTS[1])
    made.open(1, prompt, chunk=chunk)

    assert_draft_state(made, head, 1, prompt)


@pytest.mark.parametrize("draft_tokens", range(1, MAX_DRAFT_TOKENS + 1))
@pytest.mark.parametrize("wrong", [True, False], ids=["copies", "copies then chain"])
def test_every_accepted_count_leaves_the_state_of_teacher_forcing(
    model: LlamaForCausalLM, truth: dict[int, list[int]], draft_tokens: int, wrong: bool
) -> None:
    for good in range(draft_tokens + 1):
        made, head = workbench(model)
        script_of(made, luck(truth, lambda slot, done, n=good: n, wrong=wrong))
        made.open(0, budget=COUNT)
        emitted: list[int] = []
        for k in (draft_tokens, draft_tokens, 0, 7, 1):
            poison(made, (0,))
            record = made.play((0,), k)[0]
            emitted += record.tokens

            assert record.accepted >= min(good, k)
            assert truth[0][: len(emitted)] == emitted
            assert_draft_state(made, head, 0, [*PROMPT, *emitted])


@pytest.mark.parametrize("place", range(1, 9))
def test_a_terminal_token_anywhere_in_a_block_leaves_true_rows(
    model: LlamaForCausalLM, truth: dict[int, list[int]], place: int
) -> None:
    eos = next(t for i, t in enumerate(truth[0]) if i >= place - 1 and t not in truth[0][:i])
    made, head = workbench(model)
    script_of(made, luck(truth, lambda slot, done: 7, wrong=True))
    made.open(0, budget=COUNT, eos=(eos,))
    emitted: list[int] = []
    while int(made.pool.finish[0]) == 0:
        emitted += made.play((0,), 7)[0].tokens

    assert eos == emitted[-1]
    assert_draft_state(made, head, 0, [*PROMPT, *emitted])


rounds = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), min_size=1, max_size=6
)


@settings(deadline=None, max_examples=100)
@given(
    rounds=rounds,
    slots=st.sampled_from([(0,), (3,), (1, 2), (3, 0), (0, 1, 2, 3), (2, 0, 3, 1)]),
    budgets=st.lists(st.sampled_from([1, 2, 3, 5, 9, COUNT]), min_size=4, max_size=4),
    terminal=st.sampled_from([None, 2, 5, 9]),
    acceptance=st.sampled_from(["match", "ratio", "mixed"]),
    record=st.sampled_from(list(RECORDS.values())),
)
def test_any_rounds_of_any_lanes_leave_the_state_of_teacher_forcing(
    rounds: list[tuple[int, int, bool]],
    slots: tuple[int, ...],
    budgets: list[int],
    terminal: int | None,
    acceptance: str,
    record: dict[str, Any],
) -> None:
    model, plain = shared()
    made, head = workbench(model, record)
    for slot in slots:
        eos = () if terminal is None else (plain[slot][terminal],)
        made.open(
            slot, PROMPTS[slot], budget=budgets[slot], eos=eos, match=acceptance != "ratio",
            chunk=3 + slot,
        )  # fmt: skip
    emitted: dict[int, list[int]] = {slot: [] for slot in slots}
    for k, good, wrong in rounds:
        script_of(made, luck(plain, lambda slot, done, n=good: (n + slot) % 8, wrong=wrong))
        poison(made, slots)
        for slot, lane in zip(slots, made.play(slots, k, acceptance=acceptance), strict=True):
            emitted[slot] += lane.tokens
        for slot in slots:
            assert plain[slot][: len(emitted[slot])] == emitted[slot]
            assert_draft_state(made, head, slot, [*PROMPTS[slot], *emitted[slot]])


@pytest.mark.parametrize("acceptance", ["match", "ratio", "mixed"])
def test_a_chain_that_is_often_right_leaves_the_state_of_teacher_forcing(acceptance: str) -> None:
    of, record = kin(), head_record()
    made, head = workbench(of, record, kin_tensors(record))
    warm = Sampling(temperature=0.8, top_k=20)
    slots = (2, 0, 1, 3)
    for slot in slots:
        by_match = acceptance == "match" or (acceptance == "mixed" and slot % 2 == 0)
        made.open(slot, PROMPTS[slot], sampling=warm, seed=11 + slot, match=by_match)
    emitted: dict[int, list[int]] = {slot: [] for slot in slots}
    accepted: list[int] = []
    for k in (7, 3, 5, 0, 7, 1, 7):
        law = LawShape.of([warm], VOCABULARY)
        for slot, lane in zip(
            slots, made.play(slots, k, law=law, acceptance=acceptance), strict=True
        ):
            emitted[slot] += lane.tokens
            accepted.append(lane.accepted)
        for slot in slots:
            assert_draft_state(made, head, slot, [*PROMPTS[slot], *emitted[slot]])

    assert len(set(accepted)) > 3


def test_a_finished_and_an_idle_lane_touch_nothing(
    model: LlamaForCausalLM, truth: dict[int, list[int]]
) -> None:
    made, _ = workbench(model)
    script_of(made, luck(truth, lambda slot, done: 7, wrong=False))
    made.open(0, budget=3)
    made.open(1, PROMPTS[1], budget=COUNT)
    made.play((0, 1), 7)
    drafter = made.executor.drafter
    assert isinstance(drafter, MtpDrafter)
    owned = {**drafter.cache.tensors(), **drafter.hidden.tensors()}
    before = {name: tensor.clone() for name, tensor in owned.items()}
    made.play((0, 1, 2, 3), 7)

    real = CONTEXT + 8
    for name, tensor in owned.items():
        rows = tensor.movedim(-2, 1)[:, :real]
        for slot in (0, 2, 3):
            assert torch.equal(before[name].movedim(-2, 1)[slot, :real], rows[slot]), name
        assert not torch.equal(before[name].movedim(-2, 1)[1, :real], rows[1])


def test_rows_that_are_not_a_lanes_own_go_to_scratch(model: LlamaForCausalLM) -> None:
    made, _ = workbench(model)
    made.open(0, (5,))
    made.open(1, PROMPT)
    lanes, scratch = Lanes(made.pool, (0, 1, 2)), CONTEXT + SCRATCH_ROWS
    spare = [scratch, scratch + 1, scratch + 2]

    assert [[scratch, 0, 1], [6, 7, 8], spare] == lanes.cache_rows(3, -1).tolist()
    assert [[0, 1, 2], [7, 8, 9], spare] == lanes.cache_rows(3).tolist()
    assert [0, 1, 2] == lanes.for_prefill().cache_rows(3)[2].tolist()


def test_addresses_stay_fixed(model: LlamaForCausalLM, truth: dict[int, list[int]]) -> None:
    made, _ = workbench(model)
    drafter = made.executor.drafter
    assert isinstance(drafter, MtpDrafter)

    def addresses() -> list[int]:
        owned = [t for state in drafter.states() for t in state.tensors().values()]
        return [t.data_ptr() for t in (*owned, drafter.depth)]

    before = addresses()
    script_of(made, luck(truth, lambda slot, done: done % 8, wrong=False))
    made.open(0, budget=COUNT)
    for k in (7, 0, 3):
        made.play((0,), k)

    assert before == addresses()


def test_a_lone_token_is_not_drafted_from_before_it_has_a_state(model: LlamaForCausalLM) -> None:
    made, head = workbench(model)
    made.open(0, (5,), budget=COUNT)
    records = [made.play((0,), 3)[0], made.play((0,), 3)[0]]

    assert [0, 3] == [record.offered for record in records]
    assert greedy(model, (5,), 2) == [t for r in records for t in r.tokens][:2]
    assert_draft_state(made, head, 0, [5, *(t for r in records for t in r.tokens)])
