"""A round that is ended sooner: columns, states and the next round are plain decoding's.

The llama is compared with transformers run over exactly the tokens that stand, and with a bench
that is given them as a prompt: to the bit where rows do not depend on the width of their pass.
Rows past those that stand are overwritten with a large number before anything goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from flarechat.engine.accept import EXHAUSTED, RUNNING, STOPPED
from flarechat.engine.frame import LaneRecord
from flarechat.engine.plan import LawShape
from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.protocol import MAX_DRAFT_TOKENS, PACKED, STORED, Sampling
from tests.engine.tiny import (
    CONTEXT,
    PACKED_HALF,
    PROMPTS,
    STORED_TILES,
    VOCABULARY,
    Bench,
    ScriptedDrafter,
    bench,
    cache_of,
    greedy,
)

WIDE = MAX_DRAFT_TOKENS + 1
PENALISED = Sampling(
    temperature=0.8, top_k=8, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2
)
SLOTS = (2, 0, 3, 1)
COLUMNS = ("pending", "consumed", "generated", "budget", "finish", "counts")


def scripted(of: LlamaForCausalLM, truth: dict[int, list[int]], dtype: str = "float32") -> Bench:
    """A bench whose drafter is always right about plain decoding."""
    made = bench(of, dtype=dtype)
    made.executor.drafter = ScriptedDrafter(made.pool, truth, lambda slot, done: WIDE)
    return made


def opened(made: Bench, slots: Sequence[int], **how: object) -> None:
    for slot in slots:
        made.open(slot, PROMPTS[slot], **{"budget": 40, **how})  # type: ignore[arg-type]


def columns(made: Bench, slot: int) -> dict[str, Tensor]:
    return {name: made.pool.tensors()[name][slot].clone() for name in COLUMNS}


def poison(made: Bench) -> None:
    """Overwrite every row past those consumed, where a round may still be written."""
    for slot in range(made.pool.slots):
        consumed = int(made.pool.consumed[slot])
        for rows in (*made.target.kv.keys, *made.target.kv.values):
            rows[slot, :, consumed : CONTEXT + SCRATCH_ROWS] = 77


def assert_stands(
    made: Bench, of: LlamaForCausalLM, slot: int, tokens: Sequence[int], record: LaneRecord
) -> None:
    """The slot is as if these tokens had been decoded one by one."""
    held = [*PROMPTS[slot], *tokens]
    counts = torch.bincount(torch.tensor(tokens, dtype=torch.int64), minlength=VOCABULARY)
    own, rows = columns(made, slot), len(held) - 1

    assert held[-1] == int(own["pending"])
    assert rows == int(own["consumed"]) == record.consumed
    assert len(tokens) == int(own["generated"]) == record.generated
    assert torch.equal(counts, own["counts"].long())
    assert tuple(tokens[len(tokens) - record.emitted :]) == record.tokens
    for ours, theirs in zip(made.kv(slot, rows), cache_of(of, held[:-1]), strict=True):
        for mine, true in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, true, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("token", [None, 17])
@pytest.mark.parametrize("kept", range(WIDE + 1))
def test_any_number_of_rows_with_or_without_another_token(
    model: LlamaForCausalLM, truth: dict[int, list[int]], kept: int, token: int | None
) -> None:
    if kept == 0 and token is not None:
        return
    made = scripted(model, truth)
    opened(made, (0,))
    (played,) = made.play((0,), MAX_DRAFT_TOKENS, judged=True)
    record = made.executor.amend(0, kept, token)
    tokens = [*truth[0][: kept - 1], token] if token is not None else truth[0][:kept]
    poison(made)

    assert WIDE == played.emitted and RUNNING == record.finish
    assert WIDE - 1 == played.accepted
    assert (kept - 1 if token is not None else WIDE - 1) == record.accepted
    assert_stands(made, model, 0, tokens, record)
    expected = greedy(model, [*PROMPTS[0], *tokens], 3)
    said = [t for _ in range(3) for t in made.play((0,), 0)[0].tokens]
    assert expected == said


def test_twice_in_a_row_and_of_a_replaced_token(
    model: LlamaForCausalLM, truth: dict[int, list[int]]
) -> None:
    made = scripted(model, truth)
    opened(made, (0,))
    made.play((0,), MAX_DRAFT_TOKENS, judged=True)
    for kept, token, tokens in (
        (6, None, truth[0][:6]),
        (6, 9, [*truth[0][:5], 9]),
        (6, None, [*truth[0][:5], 9]),
        (3, None, truth[0][:3]),
        (3, 11, [*truth[0][:2], 11]),
        (0, None, []),
    ):
        record = made.executor.amend(0, kept, token)
        assert_stands(made, model, 0, tokens, record)


@pytest.mark.parametrize("token", [None, 17])
def test_past_the_end_of_a_sequence_and_up_to_it(
    model: LlamaForCausalLM, truth: dict[int, list[int]], token: int | None
) -> None:
    terminal = truth[0][5]
    at = truth[0].index(terminal) + 1
    assert at > 2
    made = scripted(model, truth)
    opened(made, (0,), eos=(terminal, 31))
    (played,) = made.play((0,), MAX_DRAFT_TOKENS, judged=True)

    assert (at, STOPPED) == (played.emitted, played.finish)
    assert STOPPED == made.executor.amend(0, at).finish
    record = made.executor.amend(0, at, token)
    assert (STOPPED if token is None else RUNNING) == record.finish
    record = made.executor.amend(0, at - 1)
    assert RUNNING == record.finish
    assert_stands(made, model, 0, truth[0][: at - 1], record)
    assert STOPPED == made.executor.amend(0, at - 1, 31).finish


def test_out_of_budget_and_back_within_it(
    model: LlamaForCausalLM, truth: dict[int, list[int]]
) -> None:
    made = scripted(model, truth)
    opened(made, (0,), budget=5)
    (played,) = made.play((0,), MAX_DRAFT_TOKENS, judged=True)

    assert (5, EXHAUSTED) == (played.emitted, played.finish)
    assert EXHAUSTED == made.executor.amend(0, 5, 17).finish
    record = made.executor.amend(0, 4)
    assert RUNNING == record.finish
    assert_stands(made, model, 0, truth[0][:4], record)
    assert EXHAUSTED == made.play((0,), MAX_DRAFT_TOKENS, judged=True)[0].finish


@pytest.mark.parametrize("slots", [SLOTS[:2], SLOTS])
@pytest.mark.parametrize("amended", [0, 1])
def test_one_lane_alone_and_the_others_to_the_bit_as_they_were(
    model: LlamaForCausalLM, truth: dict[int, list[int]], slots: tuple[int, ...], amended: int
) -> None:
    made, slot = scripted(model, truth), slots[amended]
    opened(made, slots)
    made.play(slots, MAX_DRAFT_TOKENS, judged=True)
    others = [s for s in slots if s != slot]
    before = [columns(made, s) for s in others]
    record = made.executor.amend(slot, 3, 20)

    assert_stands(made, model, slot, [*truth[slot][:2], 20], record)
    for other, columns_before in zip(others, before, strict=True):
        for name, value in columns(made, other).items():
            assert torch.equal(columns_before[name], value), name
    poison(made)
    after = {s: made.play(slots, 0)[slots.index(s)].tokens for s in slots[:1]}
    assert after
    expected = greedy(model, [*PROMPTS[slot], *truth[slot][:2], 20], 1)
    assert expected[0] == int(made.pool.pending[slot])
    for other in others:
        assert truth[other][WIDE] == int(made.pool.pending[other])


@pytest.mark.parametrize("dtype", [STORED_TILES, PACKED_HALF])
def test_to_the_bit_what_decoding_those_tokens_leaves(
    model: LlamaForCausalLM, truth: dict[int, list[int]], dtype: str
) -> None:
    """Logits behind an amended round, penalties counted, and what is drawn from them."""
    assert dtype in (STORED, PACKED)
    law = LawShape.of([PENALISED], VOCABULARY)
    for kept in (1, 4, 7):
        made, plain = scripted(model, truth, dtype), scripted(model, truth, dtype)
        opened(made, (0,), sampling=PENALISED)
        played = made.play((0,), MAX_DRAFT_TOKENS, law=law, judged=True)[0]
        kept = min(kept, played.emitted)
        made.executor.amend(0, kept, 21)
        tokens = [*played.tokens[: kept - 1], 21]
        plain.open(0, PROMPTS[0], generated=tokens, sampling=PENALISED, budget=40)
        rows = len(PROMPTS[0]) + kept - 1
        poison(made)

        for name, value in columns(made, 0).items():
            assert torch.equal(value, columns(plain, 0)[name]), name
        for ours, theirs in zip(made.kv(0, rows), plain.kv(0, rows), strict=True):
            assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
        for width in (3, 0, 7):
            one, two = (b.play((0,), width, law=law)[0] for b in (made, plain))
            assert one.tokens == two.tokens


def test_log_probabilities_are_of_the_token_that_stands(
    model: LlamaForCausalLM, truth: dict[int, list[int]]
) -> None:
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes

    made = scripted(model, truth)
    opened(made, (0,))
    plan = Plan(3, CONTEXT + SCRATCH_ROWS, LawShape(1), "match", logprobs=1, judged=True)
    frame = made.executor.play(Lanes(made.pool, (0,)), plan)
    assert frame.logprobs is not None
    made.executor.amend(0, 2, 30)
    text = [*PROMPTS[0], truth[0][0]]
    true = of_last(model, text).log_softmax(-1)

    assert float(true[30]) == pytest.approx(float(frame.logprobs.chosen[0, 1]), abs=1e-3)


def of_last(model: LlamaForCausalLM, text: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([text]), use_cache=False).logits[0, -1]
    return logits
