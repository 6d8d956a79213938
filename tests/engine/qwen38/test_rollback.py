"""Rejected rows leave no trace: every tensor of every state, after rounds of the page that accept
every number of drafts, at every place in an open block, by each of the three ways to commit.
"""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from flarechat.engine.accept import EXHAUSTED, RUNNING, STOPPED
from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.engine.state.recurrent import COMMITS
from flarechat.protocol import MAX_DRAFT_TOKENS
from tests.engine.qwen38.drafting import LONG, PROMPTS, drafter_of, luck, workbench
from tests.engine.qwen38.mtp_reference import ReferenceHead
from tests.engine.qwen38.paths import (
    Path,
    assert_equal,
    assert_head,
    assert_target,
    held,
    path,
    wrong,
)
from tests.engine.qwen38.tiny import CONTEXT, EOS
from tests.engine.tiny import Bench

WIDE = MAX_DRAFT_TOKENS + 1
SLOTS = (0, 1, 2, 3)
SHORT = tuple(LONG[:length] for length in (2, 3, 4, 5))
ANSWER = 26


def along(of: Qwen4ExpForCausalLM, prompts: tuple[tuple[int, ...], ...] = PROMPTS) -> list[Path]:
    return [path(of, prompt, ANSWER) for prompt in prompts]


def opened(made: Bench, paths: list[Path], **how: object) -> None:
    for slot, own in enumerate(paths):
        made.open(slot, own.prompt, budget=40, **how)  # type: ignore[arg-type]


def assert_slots(made: Bench, head: ReferenceHead, paths: list[Path], emitted: list[int]) -> None:
    """Every slot holds its prompt and as many tokens of its answer but the last."""
    for slot, count in enumerate(emitted):
        rows = len(paths[slot].prompt) + count - 1
        assert rows == int(made.pool.consumed[slot])
        assert_target(made.target, slot, paths[slot], rows)
        assert_head(drafter_of(made), slot, head, paths[slot], rows)


def assert_next(
    made: Bench, paths: list[Path], done: list[int], width: int, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """The next round's tokens and the logits of its first row are the path's → tokens emitted."""
    seen: list[Tensor] = []
    logits = made.target.logits
    monkeypatch.setattr(made.target, "logits", lambda x: seen.append(logits(x)) or seen[-1])
    records = made.play(SLOTS, width - 1)
    monkeypatch.undo()
    for slot, record in enumerate(records):
        own, count = paths[slot], done[slot]
        assert tuple(own.answer[count : count + record.emitted]) == record.tokens
        expected = own.logits[len(own.prompt) + count]
        assert_equal({"logits": seen[0][slot, 0]}, {"logits": expected})
        done[slot] += record.emitted
    return done


@pytest.mark.parametrize("following", [1, WIDE])
@pytest.mark.parametrize("shift", range(WIDE))
@pytest.mark.parametrize("prompts", [PROMPTS, SHORT], ids=["sparse", "short"])
@pytest.mark.parametrize("commit", COMMITS)
def test_every_number_of_kept_rows_at_every_place_of_an_open_block(
    of: Qwen4ExpForCausalLM, commit: str, prompts: tuple[tuple[int, ...], ...], shift: int,
    following: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    paths, (made, head) = along(of, prompts), workbench(of, commit=commit)
    opened(made, paths)
    accepted = [(shift + slot) % WIDE for slot in SLOTS]
    drafter_of(made).script = luck(paths, lambda slot, done: WIDE if done else accepted[slot])
    records = made.play(SLOTS, WIDE - 1)
    done = [record.emitted for record in records]

    assert [count + 1 for count in accepted] == done
    assert_slots(made, head, paths, done)
    done = assert_next(made, paths, done, following, monkeypatch)
    assert_slots(made, head, paths, done)


@pytest.mark.parametrize("following", [1, WIDE])
@pytest.mark.parametrize("place", range(1, WIDE + 1))
@pytest.mark.parametrize("commit", COMMITS)
def test_a_terminal_token_in_every_row_and_a_request_that_goes_on_behind_it(
    of: Qwen4ExpForCausalLM, commit: str, place: int, following: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    paths, (made, head) = along(of), workbench(of, commit=commit)
    # A terminal token must come where it is put, and nowhere before.
    assert all(len(set(own.answer[:WIDE])) == WIDE for own in paths)
    for slot, own in enumerate(paths):
        made.open(slot, own.prompt, budget=40, eos=(own.answer[(place - 1 + slot) % WIDE],))
    drafter_of(made).script = luck(paths, lambda slot, done: WIDE)
    done = [record.emitted for record in made.play(SLOTS, WIDE - 1)]

    assert [(place - 1 + slot) % WIDE + 1 for slot in SLOTS] == done
    assert {STOPPED} == {int(made.pool.finish[slot]) for slot in SLOTS}
    assert_slots(made, head, paths, done)
    before = everything(made)
    assert [0] * 4 == [record.emitted for record in made.play(SLOTS, WIDE - 1)]
    assert_untouched(before, everything(made))
    for slot, own in enumerate(paths):
        drafter_of(made).close(slot)
        text = own.tokens[: len(own.prompt) + done[slot]]
        made.open(slot, text, restored=len(text) - 1, budget=40)
    again = [own.behind(len(own.prompt) + done[s]) for s, own in enumerate(paths)]
    drafter_of(made).script = luck(again, lambda slot, count: WIDE)
    counts = assert_next(made, again, [0] * 4, following, monkeypatch)
    assert [following] * 4 == counts
    assert_slots(made, head, again, counts)


@pytest.mark.parametrize("budget", range(1, WIDE + 1))
@pytest.mark.parametrize("commit", COMMITS)
def test_a_budget_that_ends_in_every_row(of: Qwen4ExpForCausalLM, commit: str, budget: int) -> None:
    paths, (made, head) = along(of), workbench(of, commit=commit)
    for slot, own in enumerate(paths):
        made.open(slot, own.prompt, budget=budget)
    drafter_of(made).script = luck(paths, lambda slot, done: WIDE)
    done = [record.emitted for record in made.play(SLOTS, WIDE - 1)]

    assert [budget] * 4 == done
    finish = {int(made.pool.finish[slot]) for slot in SLOTS}
    assert {EXHAUSTED} == finish
    assert_slots(made, head, paths, done)


@pytest.mark.parametrize("width", range(1, WIDE + 1))
@pytest.mark.parametrize("commit", COMMITS)
def test_a_narrower_round_follows_one_that_kept_eight_rows(
    of: Qwen4ExpForCausalLM, commit: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, (made, head) = along(of), workbench(of, commit=commit)
    opened(made, paths)
    drafter_of(made).script = luck(paths, lambda slot, done: 2 if done == WIDE else WIDE)
    done = [record.emitted for record in made.play(SLOTS, WIDE - 1)]

    assert [WIDE] * 4 == done
    done = assert_next(made, paths, done, width, monkeypatch)
    assert [WIDE + min(width, 3)] * 4 == done
    assert_slots(made, head, paths, done)
    done = assert_next(made, paths, done, 2, monkeypatch)
    assert_slots(made, head, paths, done)


@pytest.mark.parametrize("commit", COMMITS)
def test_rounds_of_all_widths_with_any_luck(of: Qwen4ExpForCausalLM, commit: str) -> None:
    paths, (made, head) = along(of), workbench(of, commit=commit)
    opened(made, paths, chunk=5)
    drafter_of(made).script = luck(paths, lambda slot, done: (3 * slot + done) % 5, more=True)
    done = [0] * 4
    for width in itertools.cycle((8, 1, 3, 2, 7, 4)):
        if max(done) > ANSWER - WIDE:
            break
        for slot, record in enumerate(made.play(SLOTS, width - 1)):
            done[slot] += record.emitted
        assert_slots(made, head, paths, done)

    assert {RUNNING} == {int(made.pool.finish[slot]) for slot in SLOTS}
    for slot, own in enumerate(paths):
        assert own.answer[done[slot] - 1] == int(made.pool.pending[slot])


@pytest.mark.parametrize("shift", range(WIDE))
def test_the_three_ways_to_commit_agree_to_the_bit(of: Qwen4ExpForCausalLM, shift: int) -> None:
    paths, told = along(of), []
    for commit in COMMITS:
        made, _ = workbench(of, commit=commit)
        opened(made, paths)
        drafter_of(made).script = luck(paths, lambda slot, done: (shift + slot) % WIDE)
        made.play(SLOTS, WIDE - 1)
        rows = [int(made.pool.consumed[slot]) for slot in SLOTS]
        told.append([held(made.target, slot, rows[slot]) for slot in SLOTS])

    for own in told[1:]:
        for one, other in zip(told[0], own, strict=True):
            assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_running_rows_again_is_counted_and_timed(of: Qwen4ExpForCausalLM) -> None:
    for commit in COMMITS:
        paths, (made, _) = along(of), workbench(of, commit=commit)
        opened(made, paths)
        for width in (8, 1, 2):
            made.play(SLOTS, width - 1)

        assert (2 if commit == "reforward" else 0) == made.target.repairs
        assert (commit == "reforward") == (made.target.repair_ms > 0)


TERMINAL = (13, 14, 17, 22)  # texts in which the model's own terminal token comes early and often


@pytest.fixture(scope="module")
def terminal(of: Qwen4ExpForCausalLM) -> tuple[Qwen4ExpForCausalLM, list[Path]]:
    """A target that often says the token that bounds its n-grams, and texts where it does."""
    often = copy.deepcopy(of)
    often.lm_head.weight[EOS] *= 3
    drawn = torch.randint(2, 256, (24, 22), generator=torch.Generator().manual_seed(5))
    return often, [path(often, tuple(drawn[text].tolist()), ANSWER) for text in TERMINAL]


@pytest.mark.parametrize("shift", range(WIDE))
@pytest.mark.parametrize("commit", COMMITS)
def test_n_grams_end_at_terminal_tokens_inside_a_round(
    terminal: tuple[Qwen4ExpForCausalLM, list[Path]], commit: str, shift: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    often, paths = terminal
    made, head = workbench(often, commit=commit)
    opened(made, paths)

    def drafts(slot: int, done: int, k: int) -> list[int]:
        ahead, right = paths[slot].answer[done : done + k], WIDE if done else (shift + slot) % WIDE
        bad = [wrong(t) if t == EOS else EOS for t in ahead[right:]]
        return [*ahead[:right], *bad]

    drafter_of(made).script = drafts
    done = [record.emitted for record in made.play(SLOTS, WIDE - 1)]

    assert set(range(7)) <= {i for own in paths for i, t in enumerate(own.answer) if t == EOS}
    assert [(shift + slot) % WIDE + 1 for slot in SLOTS] == done
    assert_slots(made, head, paths, done)
    done = assert_next(made, paths, done, (1, WIDE)[shift % 2], monkeypatch)
    assert_slots(made, head, paths, done)


@pytest.mark.parametrize("following", [1, WIDE])
@pytest.mark.parametrize("shift", range(WIDE))
def test_a_snapshot_of_every_state_goes_on_in_another_slot(
    of: Qwen4ExpForCausalLM, shift: int, following: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, (made, head) = along(of), workbench(of)
    opened(made, paths)
    drafter_of(made).script = luck(paths, lambda slot, done: (shift + slot) % WIDE)
    done = [record.emitted for record in made.play(SLOTS, WIDE - 1)]
    states = (*made.target.states(), *drafter_of(made).states())
    rows = [int(made.pool.consumed[slot]) for slot in SLOTS]
    saved = [[state.snapshot(slot, rows[slot]) for state in states] for slot in SLOTS]
    for state in states:
        for tensor in state.tensors().values():
            tensor.fill_(77)
    swapped = [paths[3 - slot] for slot in SLOTS]
    for slot in SLOTS:
        for state, own in zip(states, saved[3 - slot], strict=True):
            state.restore(slot, rows[3 - slot], own)
        drafter_of(made).close(slot)
        text = swapped[slot].tokens[: rows[3 - slot] + 1]
        made.open(slot, text, restored=len(text) - 1, budget=40)
    ahead = [own.behind(rows[3 - s] + 1) for s, own in enumerate(swapped)]
    drafter_of(made).script = luck(ahead, lambda slot, done: WIDE)

    assert [(shift + slot) % WIDE + 1 for slot in SLOTS] == done
    counts = assert_next(made, ahead, [0] * 4, following, monkeypatch)
    assert_slots(made, head, ahead, counts)


def everything(made: Bench) -> dict[str, Tensor]:
    """A copy of every tensor that the pool and all states own, slots first."""
    states = (*made.target.states(), *made.executor.drafter.states())
    named = {f"{n}.{name}": t for n, s in enumerate(states) for name, t in s.tensors().items()}
    return {name: t.clone() for name, t in {**named, **made.pool.tensors()}.items()}


def assert_untouched(
    before: dict[str, Tensor], after: dict[str, Tensor], slots: tuple[int, ...] = SLOTS
) -> None:
    """Nothing of these slots has changed but rows of scratch."""
    at = list(slots)
    for name, value in before.items():
        one, two = real_rows(name, value)[at], real_rows(name, after[name])[at]
        assert torch.equal(one, two), name


def real_rows(name: str, value: Tensor) -> Tensor:
    """The rows of a state's tensor that are not scratch."""
    part = name.split(".", 1)[-1]
    if part.startswith(("keys.", "values.")):
        return value[:, :, : CONTEXT + SCRATCH_ROWS]
    if part == "ring":
        return value[:, :, :-SCRATCH_ROWS]
    return value[:, :, :-1] if part == "blocks" else value
