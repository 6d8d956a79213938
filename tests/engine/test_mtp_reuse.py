"""MTP switched off, switched on later, and prefixes restored under it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from flarechat.engine.drafters.mtp import MtpDrafter
from tests.engine.mtp_reference import RECORDS, StagedMtp, assert_draft_state, luck, workbench
from tests.engine.tiny import COUNT, PROMPT, PROMPTS, Bench, ScriptedDrafter, bench


def drafter_of(made: Bench) -> StagedMtp:
    drafter = made.executor.drafter
    assert isinstance(drafter, StagedMtp)
    return drafter


def played_without_mtp(
    made: Bench, truth: dict[int, list[int]]
) -> tuple[list[Any], list[Tensor], dict[str, Tensor]]:
    """Records, logits and rows of the target after a prefill and some rounds of copies, MTP off."""
    seen: list[Tensor] = []
    copies = ScriptedDrafter(made.pool, truth, lambda slot, done: (slot + done) % 4)
    if isinstance(made.executor.drafter, StagedMtp):
        made.executor.drafter.script = lambda slot, done, k: copies._guess(slot, k)
    else:
        made.executor.drafter = copies
    verify = made.target.verify

    def watched(*args: Any) -> tuple[Tensor, Tensor]:
        hidden, logits = verify(*args)
        seen.append(logits.clone())
        return hidden, logits

    made.target.verify = watched  # type: ignore[method-assign]
    for slot, prompt in enumerate(PROMPTS[:2]):
        made.open(slot, prompt, budget=COUNT, chunk=3, mtp=False)
    records = [made.play((0, 1), k, absorb=False) for k in (3, 0, 7, 1, 0)]
    return records, seen, made.target.kv.tensors()


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_with_mtp_off_the_target_is_the_one_that_never_had_a_head(
    model: LlamaForCausalLM, truth: dict[int, list[int]], record: dict[str, Any]
) -> None:
    plain_records, plain_logits, plain_rows = played_without_mtp(bench(model), truth)
    records, logits, rows = played_without_mtp(workbench(model, record)[0], truth)

    assert plain_records == records
    assert all(torch.equal(a, b) for a, b in zip(plain_logits, logits, strict=True))
    assert all(torch.equal(plain_rows[name], own) for name, own in rows.items())


@pytest.mark.parametrize("before", ["off", "on", "on, stopped early"])
def test_a_request_that_reuses_a_prefix_makes_the_rows_that_are_missing(
    model: LlamaForCausalLM,
    truth: dict[int, list[int]],
    before: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flarechat.engine.drafters.mtp._CATCH_UP", 5)
    made, head = workbench(model)
    drafter, on = drafter_of(made), before != "off"
    drafter.script = luck(truth, lambda slot, done: 5, wrong=True)
    made.open(0, budget=COUNT, mtp=on)
    emitted: list[int] = []
    for k in (7, 0, 3):
        emitted += made.play((0,), k, absorb=on)[0].tokens
    held = [*PROMPT, *emitted][:-1]
    if before == "on, stopped early":
        held = held[:-4]
    drafter.close(0)
    spoil_past(drafter, 0, len(held))
    ran = spy(monkeypatch, drafter)
    shared = held[:-2]
    following = [*shared, 7, 7, 3]
    made.open(0, following, restored=len(shared), budget=COUNT)

    assert_draft_state(made, head, 0, following)
    # The prompt's own chunk comes last; before it the head ran over the missing rows only.
    assert (0 if on else len(shared) - 1) == sum(ran[:-1])
    assert max(ran) <= 5
    drafter.script = lambda slot, done, k: []
    tokens = made.play((0,), 4)[0].tokens
    assert_draft_state(made, head, 0, [*following, *tokens])


def spoil_past(drafter: MtpDrafter, slot: int, rows: int) -> None:
    """Spoil the state of a slot past its first `rows` tokens."""
    drafter.hidden.rows[slot, rows:] = 1e3
    for tensor in drafter.cache.tensors().values():
        tensor[slot, :, max(rows - 1, 0) :] = 1e3


def spy(monkeypatch: pytest.MonkeyPatch, drafter: MtpDrafter) -> list[int]:
    """The widths of the head's passes from here on."""
    ran: list[int] = []
    for verb in ("forward", "write"):
        run = getattr(drafter.head, verb)

        def watched(hidden: Tensor, tokens: Tensor, *rest: Any, run: Any = run) -> Any:
            ran.append(tokens.shape[1])
            return run(hidden, tokens, *rest)

        monkeypatch.setattr(drafter.head, verb, watched)
    return ran


def test_rows_made_later_equal_rows_absorbed_at_once(model: LlamaForCausalLM) -> None:
    tokens = [*PROMPT, *PROMPTS[1], 3, 3]
    made, _ = workbench(model)
    made.open(0, tokens)
    made.open(1, tokens, mtp=False)
    drafter_of(made).close(1)
    made.open(1, tokens, restored=len(tokens) - 1)

    for rows in drafter_of(made).cache.tensors().values():
        torch.testing.assert_close(rows[0, :, : len(tokens) - 2], rows[1, :, : len(tokens) - 2])


def test_a_plan_without_absorption_runs_no_block_of_the_head(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, head = workbench(model)
    ran = spy(monkeypatch, drafter_of(made))
    made.open(0, mtp=False)
    tokens = [*PROMPT, *made.play((0,), 0, absorb=False)[0].tokens]

    assert [] == ran
    assert not any(bool(rows.any()) for rows in drafter_of(made).cache.tensors().values())
    assert_draft_state(made, head, 0, tokens, rows=0)


def test_absorbing_wants_of_the_last_block_its_keys_and_values_alone(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, head = workbench(model, RECORDS["two layers"])
    drafter, ran = drafter_of(made), list[int]()
    for layer, block in enumerate(drafter.head.blocks):  # type: ignore[attr-defined]
        down = block.mlp.down
        noted = lambda x, layer=layer, down=down: ran.append(layer) or down(x)  # noqa: E731
        monkeypatch.setattr(block.mlp, "down", noted)
    made.open(0, chunk=4)
    tokens = [*PROMPT, *made.play((0,), 0)[0].tokens]

    assert {0} == set(ran)
    assert_draft_state(made, head, 0, tokens)


@pytest.mark.parametrize("restored", [0, 1, 2, 7])
def test_a_restored_prefix_of_any_length_is_continued(
    model: LlamaForCausalLM, restored: int
) -> None:
    made, head = workbench(model)
    made.open(0, PROMPT, mtp=False)
    drafter_of(made).close(0)
    made.open(0, PROMPT, restored=restored)

    assert_draft_state(made, head, 0, PROMPT)


@pytest.mark.parametrize("first", [True, False])
def test_requests_with_and_without_mtp_take_turns_on_one_slot(
    model: LlamaForCausalLM, truth: dict[int, list[int]], first: bool
) -> None:
    made, head = workbench(model)
    drafter = drafter_of(made)
    drafter.script = luck(truth, lambda slot, done: 2, wrong=False)
    tokens: Sequence[int] = PROMPT
    for turn in range(4):
        on, restored = (turn % 2 == 0) == first, max(len(tokens) - 3, 0) if turn else 0
        made.open(0, tokens, restored=restored, mtp=on, budget=COUNT)
        said = [t for k in (3, 0, 5) for t in made.play((0,), k, absorb=on)[0].tokens]
        tokens = [*tokens, *said]
        drafter.close(0)

        rows = len(tokens) - 2 if on else min(drafter.ready[0], len(tokens) - 2)
        assert_draft_state(made, head, 0, tokens, rows)
        tokens = [*tokens[:-1], 4, 2]


def test_a_request_without_mtp_beside_one_with_it_is_caught_up_later(
    model: LlamaForCausalLM, truth: dict[int, list[int]]
) -> None:
    made, head = workbench(model)
    drafter = drafter_of(made)
    drafter.script = luck(truth, lambda slot, done: 3 * (slot == 0), wrong=False)
    made.open(0, budget=COUNT)
    made.open(1, PROMPTS[1], budget=COUNT, mtp=False)
    emitted: dict[int, list[int]] = {0: [], 1: []}
    for k in (4, 0, 7):
        for slot, lane in zip((0, 1), made.play((0, 1), k), strict=True):
            emitted[slot] += lane.tokens
    ready, tokens = drafter.ready[1], [*PROMPTS[1], *emitted[1]]
    drafter.close(1)
    made.open(1, tokens, restored=len(tokens) - 1, budget=COUNT)

    assert 0 == ready
    assert_draft_state(made, head, 0, [*PROMPT, *emitted[0]])
    assert_draft_state(made, head, 1, tokens)
