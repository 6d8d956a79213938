"""A round that is ended sooner leaves no trace in states that cannot step back: recurrences,
n-grams, rings, the head's last row; by each of the three ways to commit."""

from __future__ import annotations

import pytest
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.state.recurrent import COMMITS
from tests.engine.qwen38.drafting import LONG, PROMPTS, drafter_of, luck, workbench
from tests.engine.qwen38.paths import assert_head, assert_target, path, wrong
from tests.engine.qwen38.test_rollback import (
    SLOTS,
    WIDE,
    along,
    assert_next,
    assert_slots,
    opened,
)
from tests.engine.qwen38.tiny import CONTEXT
from tests.engine.tiny import Bench

BEGINNINGS = (LONG[:1], *PROMPTS[1:])


def poison(made: Bench, slot: int) -> None:
    """Overwrite every row of a cache past those consumed."""
    rows = int(made.pool.consumed[slot])
    sparse = made.target.caches.sparse  # type: ignore[attr-defined]
    for cache in (*sparse.kv.keys, *sparse.kv.values):
        cache[slot, :, rows : CONTEXT + SCRATCH_ROWS] = 77
    sparse.indexer.blocks[slot, :, rows // sparse.indexer.ratio :] = 77


@pytest.mark.parametrize("kept", range(WIDE + 1))
@pytest.mark.parametrize("prompts", [PROMPTS, BEGINNINGS], ids=["sparse", "begun"])
@pytest.mark.parametrize("commit", COMMITS)
def test_every_number_of_rows_of_one_lane_among_four(
    of: Qwen4ExpForCausalLM, commit: str, prompts: tuple[tuple[int, ...], ...], kept: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    paths, (made, head) = along(of, prompts), workbench(of, commit=commit)
    opened(made, paths)
    drafter_of(made).script = luck(paths, lambda slot, done: WIDE)
    slot = kept % 2
    done = [record.emitted for record in made.play(SLOTS, WIDE - 1, judged=True)]
    made.executor.amend(slot, kept)
    poison(made, slot)
    done[slot] = kept

    assert [WIDE] * 3 == [count for other, count in enumerate(done) if other != slot]
    if kept or len(prompts[slot]) > 1:
        assert_slots(made, head, paths, done)
    done = assert_next(made, paths, done, (1, WIDE)[kept % 2], monkeypatch)
    assert_slots(made, head, paths, done)


@pytest.mark.parametrize("commit", COMMITS)
def test_another_token_twice_and_behind_a_round_of_one_row(
    of: Qwen4ExpForCausalLM, commit: str
) -> None:
    own, (made, head) = path(of, PROMPTS[0], 26), workbench(of, commit=commit)
    opened(made, [own])
    drafter_of(made).script = luck([own], lambda slot, done: WIDE)
    made.play((0,), WIDE - 1, judged=True)
    made.executor.amend(0, 6)
    bad = wrong(own.answer[3])
    made.executor.amend(0, 4, bad)
    rows = len(own.prompt) + 3

    assert bad == int(made.pool.pending[0])
    assert_target(made.target, 0, own, rows)
    assert_head(drafter_of(made), 0, head, own, rows)
    text = (*own.tokens[:rows], bad)
    other = path(of, text, 6)
    drafter_of(made).script = luck([other], lambda slot, done: 0)
    made.pool.generated[0] = 0
    made.play((0,), 0, judged=True)
    assert_target(made.target, 0, other, len(text))
    assert_head(drafter_of(made), 0, head, other, len(text))
    made.executor.amend(0, 0)
    assert_target(made.target, 0, own, rows)
    assert_head(drafter_of(made), 0, head, own, rows)


def test_rounds_that_nobody_judges_hold_nothing(of: Qwen4ExpForCausalLM) -> None:
    paths, (made, _) = along(of), workbench(of)
    opened(made, paths)
    drafter_of(made).script = luck(paths, lambda slot, done: WIDE)
    made.play(SLOTS, WIDE - 1)
    states = (*made.target.states(), *drafter_of(made).states())
    held = {n: t for s in states for n, t in s.tensors().items() if n.startswith("held")}

    assert len(held) == 5
    for name, tensor in held.items():
        assert not tensor.any(), name
