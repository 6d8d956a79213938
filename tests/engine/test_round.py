"""The page against plain decoding: tokens, counters and every state tensor.

The drafter is scripted to be right for exactly n guesses, so every accepted count is played; a
random drafter would only ever exercise rejection.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM

from flarechat.engine.accept import EXHAUSTED, STOPPED
from flarechat.engine.plan import LawShape
from flarechat.engine.slot import Lanes
from flarechat.protocol import MAX_DRAFT_TOKENS, Sampling
from tests.engine.tiny import (
    CONTEXT,
    COUNT,
    PROMPT,
    PROMPTS,
    VOCABULARY,
    Bench,
    ScriptedDrafter,
    bench,
    cache_of,
    greedy,
)


def scripted(model: LlamaForCausalLM, truth: dict[int, list[int]], good: object) -> Bench:
    made = bench(model)
    made.executor.drafter = ScriptedDrafter(
        made.pool, truth, good if callable(good) else lambda slot, done: good
    )
    return made


def run(made: Bench, slot: int, widths: Iterator[int]) -> list[int]:
    out: list[int] = []
    while int(made.pool.finish[slot]) == 0:
        out += made.play((slot,), next(widths))[0].tokens
    return out


def assert_state(
    made: Bench, model: LlamaForCausalLM, slot: int, prompt: tuple[int, ...], emitted: list[int]
) -> None:
    """Counters, pending token, penalty counts and KV rows are those of plain decoding."""
    held = [*prompt, *emitted][:-1]
    pool = made.pool
    counts = torch.bincount(torch.tensor(emitted), minlength=VOCABULARY)

    assert len(held) == int(pool.consumed[slot])
    assert len(emitted) == int(pool.generated[slot])
    assert emitted[-1] == int(pool.pending[slot])
    assert torch.equal(counts, pool.counts[slot].long())
    for (keys, values), (own_keys, own_values) in zip(
        cache_of(model, held), made.kv(slot, len(held)), strict=True
    ):
        torch.testing.assert_close(own_keys, keys, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(own_values, values, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("draft_tokens", range(MAX_DRAFT_TOKENS + 1))
def test_every_accepted_count_equals_plain_decoding(
    model: LlamaForCausalLM, truth: dict[int, list[int]], draft_tokens: int
) -> None:
    for good in range(draft_tokens + 1):
        made = scripted(model, truth, good)
        made.open(0, budget=COUNT)
        first = made.play((0,), draft_tokens)[0]
        emitted = [*first.tokens, *run(made, 0, itertools.repeat(draft_tokens))]

        assert good == first.accepted
        assert good + 1 == first.emitted
        assert truth[0][:COUNT] == emitted
        assert_state(made, model, 0, PROMPT, emitted)


@pytest.mark.parametrize("widths", [(7, 0, 3, 1, 5), (7, 0), (0, 7), (1, 2, 3, 4, 5, 6, 7)])
def test_mixed_widths_and_mixed_luck_equal_plain_decoding(
    model: LlamaForCausalLM, truth: dict[int, list[int]], widths: tuple[int, ...]
) -> None:
    made = scripted(model, truth, lambda slot, done: done % 8)
    made.open(0, budget=COUNT)
    emitted = run(made, 0, itertools.cycle(widths))

    assert truth[0][:COUNT] == emitted
    assert_state(made, model, 0, PROMPT, emitted)


@pytest.mark.parametrize("before", range(MAX_DRAFT_TOKENS + 1))
@pytest.mark.parametrize("after", [0, 1, 7])
def test_each_width_follows_each_accepted_count(
    model: LlamaForCausalLM, truth: dict[int, list[int]], before: int, after: int
) -> None:
    made = scripted(model, truth, lambda slot, done: before)
    made.open(0, budget=COUNT)
    emitted = [*made.play((0,), 7)[0].tokens, *made.play((0,), after)[0].tokens]

    assert truth[0][: len(emitted)] == emitted
    assert_state(made, model, 0, PROMPT, emitted)


@pytest.mark.parametrize("place", range(1, 9))
def test_a_terminal_token_ends_the_lane_wherever_it_is_in_the_block(
    model: LlamaForCausalLM, truth: dict[int, list[int]], place: int
) -> None:
    eos = next(t for i, t in enumerate(truth[0]) if i >= place - 1 and t not in truth[0][:i])
    at = truth[0].index(eos) + 1
    made = scripted(model, truth, 7)
    made.open(0, budget=COUNT, eos=(eos,))
    emitted = run(made, 0, itertools.repeat(7))

    assert truth[0][:at] == emitted
    assert int(made.pool.finish[0]) == STOPPED
    assert_state(made, model, 0, PROMPT, emitted)


@pytest.mark.parametrize("budget", range(1, 18))
def test_the_budget_ends_the_lane_at_every_position_of_a_block(
    model: LlamaForCausalLM, truth: dict[int, list[int]], budget: int
) -> None:
    made = scripted(model, truth, 7)
    made.open(0, budget=budget)
    emitted = run(made, 0, itertools.repeat(7))

    assert truth[0][:budget] == emitted
    assert int(made.pool.finish[0]) == EXHAUSTED
    assert_state(made, model, 0, PROMPT, emitted)


def test_a_terminal_draft_the_target_would_not_say_is_rejected(
    model: LlamaForCausalLM, truth: dict[int, list[int]]
) -> None:
    wrong = (truth[0][0] + 1) % VOCABULARY
    made = scripted(model, truth, 0)
    made.open(0, budget=COUNT, eos=(wrong,))
    record = made.play((0,), 3)[0]

    assert (truth[0][0],) == record.tokens
    assert int(made.pool.finish[0]) == 0


@pytest.mark.parametrize("lanes", [(0, 1), (3, 1), (0, 1, 2, 3), (2, 0, 3, 1)])
def test_lanes_that_finish_at_different_times_do_not_touch_each_other(
    model: LlamaForCausalLM, truth: dict[int, list[int]], lanes: tuple[int, ...]
) -> None:
    budgets = {slot: 5 + 9 * place for place, slot in enumerate(lanes)}
    made = scripted(model, truth, lambda slot, done: (slot + done) % 8)
    for slot in lanes:
        made.open(slot, PROMPTS[slot], budget=budgets[slot])
    emitted: dict[int, list[int]] = {slot: [] for slot in lanes}
    for draft_tokens in itertools.cycle((7, 0, 2, 4)):
        if all(int(made.pool.finish[slot]) for slot in lanes):
            break
        for slot, record in zip(lanes, made.play(lanes, draft_tokens), strict=True):
            emitted[slot] += record.tokens

    for slot in lanes:
        assert truth[slot][: budgets[slot]] == emitted[slot]
        assert_state(made, model, slot, PROMPTS[slot], emitted[slot])


def test_a_finished_lane_in_a_later_round_emits_nothing_and_touches_nothing(
    model: LlamaForCausalLM, truth: dict[int, list[int]]
) -> None:
    made = scripted(model, truth, 7)
    made.open(0, budget=3)
    made.open(1, PROMPTS[1], budget=COUNT)
    made.play((0, 1), 7)
    rows = int(made.pool.consumed[0])
    pool_before = {n: t[0].clone() for n, t in made.pool.tensors().items()}
    kv_before = [(k.clone(), v.clone()) for k, v in made.kv(0, CONTEXT)]
    record = made.play((0, 1), 7)[0]

    assert (0, ()) == (record.emitted, record.tokens)
    assert rows == int(made.pool.consumed[0])
    for name, value in made.pool.tensors().items():
        assert torch.equal(pool_before[name], value[0]), name
    for (k, v), (k_now, v_now) in zip(kv_before, made.kv(0, CONTEXT), strict=True):
        assert torch.equal(k, k_now)
        assert torch.equal(v, v_now)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 256])
def test_prefill_in_chunks_leaves_the_state_of_one_pass(
    model: LlamaForCausalLM, truth: dict[int, list[int]], chunk: int
) -> None:
    made = bench(model)
    made.open(0, budget=COUNT, chunk=chunk)
    emitted = run(made, 0, itertools.repeat(0))

    assert truth[0][:COUNT] == emitted
    assert_state(made, model, 0, PROMPT, emitted)


def test_the_context_can_be_filled_to_its_last_row(model: LlamaForCausalLM) -> None:
    count = CONTEXT - len(PROMPT)
    truth = {0: greedy(model, PROMPT, count)}
    made = scripted(model, truth, 7)
    made.open(0, budget=count)
    emitted = run(made, 0, itertools.repeat(7))

    assert truth[0] == emitted
    assert_state(made, model, 0, PROMPT, emitted)


def test_addresses_stay_fixed_over_a_whole_answer(
    model: LlamaForCausalLM, truth: dict[int, list[int]]
) -> None:
    made = scripted(model, truth, lambda slot, done: done % 8)

    def addresses() -> list[int]:
        owned = {**made.pool.tensors(), **made.target.kv.tensors()}
        return [t.data_ptr() for t in owned.values()]

    before = addresses()
    made.open(0, budget=COUNT)
    run(made, 0, itertools.cycle((7, 0, 3)))

    assert before == addresses()


class NoHostSync(TorchDispatchMode):
    """Refuses every operation that would make the host wait for a tensor's value."""

    BANNED = frozenset(
        f"aten::{name}"
        for name in ("_local_scalar_dense", "item", "nonzero", "masked_select", "equal", "_unique2")
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func._schema.name in self.BANNED:
            raise AssertionError(f"host sync on the page: {func._schema.name}")
        return func(*args, **(kwargs or {}))


FILTERED = Sampling(temperature=0.8, top_k=12, top_p=0.9, repetition_penalty=1.2)
WHOLE = Sampling(temperature=1.1, top_p=0.9, min_p=0.01, presence_penalty=0.3)


@pytest.mark.parametrize("acceptance", ["match", "ratio", "mixed"])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0), FILTERED, WHOLE, Sampling()])
def test_no_operation_on_the_page_waits_for_a_value(
    model: LlamaForCausalLM, truth: dict[int, list[int]], acceptance: str, sampling: Sampling
) -> None:
    from flarechat.engine.plan import Plan
    from flarechat.engine.round import play_round

    made = bench(model)
    for slot in (0, 1):
        made.open(slot, PROMPTS[slot], sampling=sampling, match=acceptance != "ratio")
    law = LawShape.of([sampling], VOCABULARY)
    lanes = Lanes(made.pool, (0, 1))
    copies = CopyStage(made.pool)
    with NoHostSync(), torch.no_grad():
        for draft_tokens in (0, 1, 7):
            plan = Plan(draft_tokens, 64, law, acceptance, logprobs=2)
            play_round(made.target, copies, lanes, plan)


def test_the_sync_guard_fires_on_a_planted_branch() -> None:
    with pytest.raises(AssertionError, match="host sync"), NoHostSync():
        bool(torch.ones(1).sum() > 0)


class CopyStage:
    """The product's copy drafter with fixed drafts staged, for guards that forbid reads."""

    def __new__(cls, pool):  # type: ignore[no-untyped-def]
        from flarechat.engine.drafters.copies import CopyDrafter

        drafter = CopyDrafter(pool.slots, pool.device)
        drafter.anywhere.fill_(5)
        drafter.there.fill_(5)
        return drafter
