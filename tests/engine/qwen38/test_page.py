"""The page with the Qwen3.8 target and its head: lanes, laws, ends, cancels, texts, addresses.

What the page does with any target is tested with llama; here all states of this one are looked at.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from flarechat.engine.accept import RUNNING
from flarechat.engine.frame import read
from flarechat.engine.plan import LawShape, Plan, extent_for
from flarechat.engine.slot import SCRATCH_ROWS, Lanes
from flarechat.engine.state.indexer import RING
from flarechat.protocol import Sampling, Speculation, Started
from tests.engine.conftest import Desk
from tests.engine.mtp_reference import Script
from tests.engine.qwen38 import kin
from tests.engine.qwen38.drafting import LONG, PROMPTS, drafter_of, luck, workbench
from tests.engine.qwen38.mtp_reference import ReferenceHead
from tests.engine.qwen38.paths import RATIO, Path, assert_head, assert_target, path
from tests.engine.qwen38.test_end_to_end import QUESTION, fresh_desk
from tests.engine.qwen38.test_rollback import assert_untouched, everything
from tests.engine.qwen38.tiny import CONTEXT, reference
from tests.engine.statistics import chi_square_p
from tests.engine.test_round import NoHostSync
from tests.engine.test_sampling import expected_law
from tests.engine.tiny import Bench

COUNT = 30
TEXTS = (PROMPTS[0], LONG[5:9], PROMPTS[2], LONG[2:4])
WARM = Sampling(temperature=0.8, top_k=20)
LAWS = {
    "warm": WARM,
    "whole": Sampling(temperature=1.1),
    "filtered": Sampling(temperature=0.9, top_k=30, top_p=0.9, min_p=0.02),
    "penalised": Sampling(temperature=0.9, top_k=25, repetition_penalty=1.3, presence_penalty=0.2),
}


def greedy_paths() -> list[Path]:
    return [path(reference(), text, COUNT + 8) for text in TEXTS]


def assert_slot(made: Bench, head: ReferenceHead, slot: int, along: Path, rows: int) -> None:
    assert rows == int(made.pool.consumed[slot])
    assert_target(made.target, slot, along, rows)  # type: ignore[arg-type]
    assert_head(drafter_of(made), slot, head, along, rows)


def poison(made: Bench, slots: tuple[int, ...]) -> None:
    """Spoil everything a round must not read: rows past the consumed ones, what the round before
    left behind, raw keys of closed blocks, and all of the slots that do not play."""
    target, cache = made.target, drafter_of(made).cache
    states: list[Any] = [target.caches.sparse, cache.layers]  # type: ignore[attr-defined]
    for behind, sparse in enumerate(states):
        for slot in range(made.pool.slots):
            rows = int(made.pool.consumed[slot]) - behind if slot in slots else 0
            _poison_sparse(sparse, slot, max(rows, 0))
    recurrent, ngram = target.caches.recurrent, target.caches.ngram  # type: ignore[attr-defined]
    for left in (*recurrent.left.values(), recurrent.conv.fresh, ngram.columns.fresh):
        left.fill_(1e3)
    for slot in set(range(made.pool.slots)) - set(slots):
        recurrent.state[slot] = recurrent.conv.rows[slot] = float("nan")
        ngram.columns.rows[slot] = drafter_of(made).hidden.rows[slot] = float("nan")


def _poison_sparse(sparse: Any, slot: int, rows: int) -> None:
    for tensor in sparse.kv.tensors().values():
        tensor[slot, :, rows:] = 1e3
    sparse.indexer.blocks[slot, :, rows // RATIO :] = 1e3
    open_rows = torch.arange(rows - rows % RATIO, rows) % RING
    spoilt = torch.ones(sparse.indexer.ring.shape[2], dtype=torch.bool)
    spoilt[open_rows] = False
    sparse.indexer.ring[slot, :, spoilt] = 1e3


rounds = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), min_size=1, max_size=5
)


@settings(deadline=None, max_examples=60)
@given(
    rounds=rounds,
    slots=st.sampled_from([(0,), (3,), (1, 2), (3, 0), (0, 1, 2, 3), (2, 0, 3, 1)]),
    budgets=st.lists(st.sampled_from([1, 2, 3, 5, 9, COUNT]), min_size=4, max_size=4),
    terminal=st.sampled_from([None, 2, 5, 9]),
    acceptance=st.sampled_from(["match", "ratio", "mixed"]),
    commit=st.sampled_from(["records", "columns", "reforward"]),
)
def test_any_rounds_of_any_lanes_leave_the_states_of_plain_decoding(
    rounds: list[tuple[int, int, bool]], slots: tuple[int, ...], budgets: list[int],
    terminal: int | None, acceptance: str, commit: str,
) -> None:  # fmt: skip
    paths, (made, head) = greedy_paths(), workbench(reference(), commit=commit)
    for slot in slots:
        eos = () if terminal is None else (paths[slot].answer[terminal],)
        made.open(
            slot, TEXTS[slot], budget=budgets[slot], eos=eos, match=acceptance != "ratio",
            chunk=3 + slot,
        )  # fmt: skip
    emitted = dict.fromkeys(slots, 0)
    for k, good, more in rounds:
        script = luck(paths, lambda slot, done, n=good: (n + slot) % 8, more=more)
        drafter_of(made).script = script
        poison(made, slots)
        for slot, lane in zip(slots, made.play(slots, k, acceptance=acceptance), strict=True):
            told = paths[slot].answer[emitted[slot] : emitted[slot] + lane.emitted]
            assert tuple(told) == lane.tokens
            emitted[slot] += lane.emitted
        for slot in slots:
            if emitted[slot]:
                rows = len(TEXTS[slot]) + emitted[slot] - 1
                assert_slot(made, head, slot, paths[slot], rows)


@pytest.mark.parametrize("lanes", [(0,), (1, 3), (2, 0, 1, 3)])
@pytest.mark.parametrize("acceptance", ["match", "ratio", "mixed"])
def test_a_chain_that_is_often_right_leaves_the_states_of_what_it_said(
    acceptance: str, lanes: tuple[int, ...]
) -> None:
    of, law = kin.kin(), LawShape.of([WARM], 64)
    prompts = {slot: [t % 64 for t in TEXTS[slot]] for slot in lanes}

    def played(along: dict[int, Path] | None = None) -> tuple[dict[int, list[int]], list[int]]:
        """The texts and what was accepted, every round's states held to the texts of `along`."""
        made, head = kin.bench(of)
        drafter_of(made).script = lambda slot, done, k: [done % 64] if done % 5 == 4 else []
        for slot in lanes:
            by_match = acceptance == "match" or (acceptance == "mixed" and slot % 2 == 0)
            made.open(slot, prompts[slot], sampling=WARM, seed=11 + slot, match=by_match)
        texts, accepted = {slot: list(prompts[slot]) for slot in lanes}, list[int]()
        for k in (7, 3, 5, 0, 7, 1, 7):
            records = made.play(lanes, k, law=law, acceptance=acceptance)
            for slot, lane in zip(lanes, records, strict=True):
                texts[slot] += lane.tokens
                accepted.append(lane.accepted)
                if along:
                    assert along[slot].tokens[: len(texts[slot])] == texts[slot]
                    assert_slot(made, head, slot, along[slot], len(texts[slot]) - 1)
        return texts, accepted

    texts, accepted = played()
    played({slot: path(of, tuple(text), 0) for slot, text in texts.items()})

    assert len(set(accepted)) > 2


def no_copies(slot: int, done: int, k: int) -> list[int]:
    return []


def some_copies(slot: int, done: int, k: int) -> list[int]:
    return [9, 9] if done % 3 == 0 else []


# Every width with the head; with copies before the chain, and with MTP off, some.
CASES = [
    *((k, True, no_copies) for k in range(1, 8)),
    *((k, True, some_copies) for k in (2, 5, 7)),
    (7, False, no_copies),
]


@pytest.mark.parametrize("sampling", LAWS.values(), ids=LAWS)
def test_a_seeded_text_by_match_is_the_same_at_every_width_with_its_head_and_without(
    sampling: Sampling,
) -> None:
    of, law = kin.kin(), LawShape.of([sampling], 64)

    def text(k: int, *, mtp: bool, script: Script) -> tuple[list[int], int]:
        made, _ = kin.bench(of, slots=1)
        drafter_of(made).script = script
        made.open(0, [5, 6, 7, 9], sampling=sampling, seed=1, budget=30, mtp=mtp)
        said, accepted = list[int](), 0
        for width in itertools.cycle((k, k, max(k - 3, 0))):
            if int(made.pool.finish[0]) != RUNNING:
                return said, accepted
            lane = made.play((0,), width, law=law)[0]
            said, accepted = said + list(lane.tokens), accepted + lane.accepted
        raise AssertionError

    plain, _ = text(0, mtp=False, script=no_copies)
    played = [text(k, mtp=mtp, script=script) for k, mtp, script in CASES]

    assert all(plain == said for said, _ in played)
    assert sum(accepted for _, accepted in played) > 20


V, MANY = 12, 2500


def test_the_first_tokens_by_ratio_have_exactly_the_targets_law() -> None:
    counts, law, accepted = first_two(Sampling(temperature=1.2))

    assert chi_square_p(counts, law * MANY) > 1e-3
    assert 0.1 < accepted < 2.9


def test_a_law_that_is_not_the_drafts_own_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from flarechat.engine.drafters.mtp import MtpDrafter

    laws = MtpDrafter._laws

    def sharper(*given: Any) -> tuple[Tensor, Tensor | None]:
        q, ids = laws(*given)
        assert q is not None
        return q.pow(2) / q.pow(2).sum(-1, keepdim=True), ids

    monkeypatch.setattr(MtpDrafter, "_laws", sharper)
    counts, law, _ = first_two(Sampling(temperature=1.2))

    assert chi_square_p(counts, law * MANY) < 1e-6


def first_two(sampling: Sampling) -> tuple[Tensor, Tensor, float]:
    """Counts of the first two tokens over many seeds by ratio, their law, the mean accepted."""
    of, prompt, context = kin.kin(V), [2, 7, 3], 16
    made, _ = kin.bench(of, slots=MANY, context=context)
    slots = tuple(range(MANY))
    pool, drafter = made.pool, drafter_of(made)
    pool.open(0, prompt, sampling=sampling, seed=0, match=False, budget=9, eos=())
    drafter.open(0, "r", prompt, restored=0, history=False, mtp=True)
    made.executor.prefill(Lanes(pool, (0,)), torch.tensor([prompt[:-1]]), Plan(1, context))
    pool.start(0)
    for name, column in pool.tensors().items():
        column[:] = column[0].clone() if name != "seed" else torch.arange(MANY) * 7919 + 1
    for state in (*made.target.states(), *drafter.states()):
        for tensor in state.tensors().values():
            tensor[:] = tensor[0].clone()
    drafter.depth[:] = 3
    drafter.script = lambda slot, done, k: [3] if slot % 3 == 0 and not done else []
    said: list[list[int]] = [[] for _ in slots]
    accepted, plan = 0.0, Plan(3, context, LawShape.of([sampling], V), "ratio")
    while min(map(len, said)) < 2:
        records = read(made.executor.play(Lanes(pool, slots), plan))
        accepted = accepted or sum(r.accepted for r in records) / MANY
        for tokens, lane in zip(said, records, strict=True):
            tokens.extend(lane.tokens)

    def row(told: list[int]) -> Tensor:
        logits = of(torch.tensor([prompt + told]), use_cache=False).logits[0, -1]
        return expected_law(logits, sampling, prompt, told, V).double()

    law = torch.cat([row([])[token] * row([token]) for token in range(V)])
    codes = torch.tensor([tokens[0] * V + tokens[1] for tokens in said])
    return torch.bincount(codes, minlength=V * V), law, accepted


def test_finished_idle_and_cancelled_lanes_are_untouched(of: Qwen4ExpForCausalLM) -> None:
    paths, (made, head) = greedy_paths(), workbench(of)
    drafter_of(made).script = luck(paths, lambda slot, done: 7)
    for slot, budget in ((0, 3), (1, 40), (2, 40)):
        made.open(slot, TEXTS[slot], budget=budget)
    done = [record.emitted for record in made.play((0, 1, 2), 7)]
    made.pool.release(2)
    before = everything(made)
    again = made.play((0, 1, 2, 3), 7)

    assert [0, 8, 0, 0] == [record.emitted for record in again]
    assert_untouched(before, everything(made), (0, 2, 3))
    assert_slot(made, head, 0, paths[0], len(TEXTS[0]) + done[0] - 1)
    assert_slot(made, head, 1, paths[1], len(TEXTS[1]) + done[1] + 8 - 1)
    assert_slot(made, head, 2, paths[2], len(TEXTS[2]) + done[2] - 1)


@pytest.mark.parametrize("width", [1, 8])
def test_a_cancelled_slot_goes_on_from_what_it_holds_or_begins_anew(
    of: Qwen4ExpForCausalLM, width: int
) -> None:
    paths, (made, head) = greedy_paths(), workbench(of)
    drafter_of(made).script = luck(paths, lambda slot, done: 4)
    made.open(0, TEXTS[0])
    made.open(2, TEXTS[2])
    emitted = [record.emitted for record in made.play((0, 2), 7)]
    for slot in (0, 2):
        made.pool.release(slot)
        drafter_of(made).close(slot)
    held = paths[0].tokens[: len(TEXTS[0]) + emitted[0] - 1]
    following = path(of, (*held, 17, 4), COUNT)
    other = path(of, TEXTS[1], COUNT + 8)
    made.open(0, following.prompt, restored=len(held), chunk=1)
    made.open(2, other.prompt)
    script = luck([following, following, other], lambda slot, done: 9)
    drafter_of(made).script = script
    records = made.play((0, 2), width - 1)

    assert [width, width] == [record.emitted for record in records]
    assert_slot(made, head, 0, following, len(following.prompt) + width - 1)
    assert_slot(made, head, 2, other, len(other.prompt) + width - 1)


@pytest.mark.parametrize("length", [1, 2])
def test_a_lone_token_in_a_used_slot_begins_from_nothing(
    of: Qwen4ExpForCausalLM, length: int
) -> None:
    paths, (made, head) = greedy_paths(), workbench(of)
    drafter_of(made).script = luck(paths, lambda slot, done: 7)
    made.open(0, TEXTS[0])
    made.play((0,), 7)
    drafter_of(made).close(0)
    along = path(of, LONG[:length], COUNT)
    made.open(0, along.prompt)
    drafter_of(made).script = luck([along], lambda slot, done: 3)
    done = 0
    for k in (7, 0, 2):
        done += made.play((0,), k)[0].emitted
        assert_slot(made, head, 0, along, length + done - 1)


def test_a_request_without_mtp_keeps_the_head_up_for_the_next(of: Qwen4ExpForCausalLM) -> None:
    paths, (made, head) = greedy_paths(), workbench(of)
    drafter = drafter_of(made)
    drafter.script = luck(paths, lambda slot, done: 2)
    made.open(0, TEXTS[0], mtp=False)
    emitted = sum(made.play((0,), k)[0].emitted for k in (4, 0, 7))
    drafter.close(0)
    text = paths[0].tokens[: len(TEXTS[0]) + emitted]
    made.open(0, text, restored=len(text) - 1)

    assert drafter.always_absorbs
    assert_slot(made, head, 0, paths[0], len(text) - 1)
    assert [0, 3] == [drafter.stage(slot, 3).learned for slot in (1, 0)]


def test_the_context_can_be_filled_to_its_last_row(of: Qwen4ExpForCausalLM) -> None:
    count = CONTEXT - len(TEXTS[0])
    along, (made, head) = path(of, TEXTS[0], count), workbench(of)
    drafter_of(made).script = luck([along], lambda slot, done: 7)
    made.open(0, TEXTS[0], budget=count)
    said: list[int] = []
    while int(made.pool.finish[0]) == RUNNING:
        said += made.play((0,), 7)[0].tokens

    assert along.answer == said
    assert_slot(made, head, 0, along, CONTEXT - 1)


def test_addresses_stay_fixed(of: Qwen4ExpForCausalLM) -> None:
    paths, (made, _) = greedy_paths(), workbench(of)
    states = (*made.target.states(), *drafter_of(made).states())

    def addresses() -> list[int]:
        return [t.data_ptr() for state in states for t in state.tensors().values()]

    before = addresses()
    drafter_of(made).script = luck(paths, lambda slot, done: done % 8)
    made.open(0, TEXTS[0], chunk=7)
    for k in (7, 0, 3, 7):
        made.play((0,), k)

    assert before == addresses()


@pytest.mark.parametrize("acceptance", ["match", "ratio", "mixed"])
@pytest.mark.parametrize("share", [False, True])
def test_no_operation_of_a_round_with_its_head_waits_for_a_value(
    of: Qwen4ExpForCausalLM, acceptance: str, share: bool
) -> None:
    from flarechat.engine.drafters.mtp import MtpDrafter
    from flarechat.engine.round import play_round

    made, _ = workbench(of, record={"index_share_for_mtp_iteration": share})
    drafter = MtpDrafter(drafter_of(made).head, 4, CONTEXT, torch.device("cpu"))
    made.executor.drafter = drafter
    for slot in (0, 1):
        made.open(slot, TEXTS[slot], sampling=WARM, match=acceptance != "ratio")
        drafter.stage(slot, 7)
    lanes, law = Lanes(made.pool, (0, 1)), LawShape.of([WARM], 256)
    extent = extent_for(CONTEXT, CONTEXT + SCRATCH_ROWS)
    with NoHostSync():
        for k in (7, 0, 3):
            play_round(made.target, drafter, lanes, Plan(k, extent, law, acceptance, 2))


# The engine: what is restored of a conversation, and what is not.


FIELDS: dict[str, Any] = {
    "sampling": Sampling(temperature=1.0, top_k=20, seed=5),
    "speculation": Speculation(draft_tokens=5, adaptive=False),
    "thinking": False,
}


def assert_goes_on(used: Desk, fresh: Desk, tokens: list[int], restored: int) -> None:
    """A prompt of these tokens restores so many, and is answered as in a fresh engine."""
    for made in (used, fresh):
        made.engine.language = replace(made.engine.language, encode_chat=lambda *_: tokens)
    again = [made.ask("", max_tokens=24, **FIELDS)[0].text for made in (used, fresh)]
    started = [event for event in used.events if isinstance(event, Started)]

    assert restored == started[-1].restored_tokens
    assert again[0] == again[1]


@pytest.mark.parametrize("cancelled", [False, True])
def test_the_next_turn_goes_on_from_all_that_is_held(cancelled: bool) -> None:
    used, fresh = fresh_desk("bf16"), fresh_desk("bf16")
    first = used.request(QUESTION, max_tokens=40, **FIELDS)
    used.engine.submit(first)
    for _ in range(4 if cancelled else 99):
        used.engine.step()
    used.engine.cancel(first.id)
    held = used.engine.residents.held(0)

    assert ("cancelled" if cancelled else "length") == used.finished(first.id).reason
    assert len(held) == int(used.engine.pool.consumed[0]) > 0
    assert_goes_on(used, fresh, [*held, 70, 71, 72], len(held))


def test_a_state_that_ran_past_a_stop_string_is_taken_back_to_it() -> None:
    used, fresh = fresh_desk("bf16"), fresh_desk("bf16")
    told = fresh.ask(QUESTION, max_tokens=40, **FIELDS)[0].text
    for at in range(3, 20):
        finished, rounds = used.ask(QUESTION, max_tokens=40, stop=(told[at : at + 2],), **FIELDS)
        if rounds[-1].clipped:
            break
    held = used.engine.residents.held(0)

    assert rounds[-1].clipped
    assert finished.usage.context - 1 == len(held) == int(used.engine.pool.consumed[0])
    assert_goes_on(used, fresh, [*held, 70, 71], len(held))
