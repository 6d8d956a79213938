"""The chain against a plain one: its drafts, the law kept beside each, and what acceptance makes
of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flarechat.engine import rng
from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.frame import read
from flarechat.engine.plan import LawShape, Plan
from flarechat.engine.proposal import Proposal
from flarechat.engine.round import play_round
from flarechat.engine.slot import Lanes
from flarechat.protocol import Sampling
from tests.engine.mtp_reference import RECORDS, ReferenceHead, kin, kin_tensors, workbench
from tests.engine.statistics import chi_square_p
from tests.engine.test_round import NoHostSync
from tests.engine.test_sampling import expected_law, samplings
from tests.engine.tiny import (
    CONTEXT,
    PACKED_HALF,
    PROMPT,
    PROMPTS,
    STORED_TILES,
    VOCABULARY,
    Bench,
    head_record,
    reference,
)

GREEDY = Sampling(temperature=0)
WARM = Sampling(temperature=0.9, top_k=20, top_p=0.97)
FREE = Sampling()
PENALISED = Sampling(
    temperature=1.1, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.3,
    frequency_penalty=0.2,
)  # fmt: skip


def staged(lanes: int, k: int, copies: dict[int, list[int]]) -> Proposal:
    """Copies by lane, padded to K, half of them sure."""
    rows = [[*copies.get(i, []), *[0] * k][:k] for i in range(lanes)]
    offered = torch.tensor([min(len(copies.get(i, [])), k) for i in range(lanes)])
    tokens = torch.tensor(rows, dtype=torch.int64).reshape(lanes, k)
    return Proposal(tokens, offered, sure=offered // 2)


def extended(made: Bench, slots: tuple[int, ...], plan: Plan, copies: Proposal) -> Proposal:
    drafter = made.executor.drafter
    assert isinstance(drafter, MtpDrafter)
    for slot in slots:
        drafter.stage(slot, plan.draft_tokens)
    with torch.inference_mode():
        proposal = drafter.extend(Lanes(made.pool, slots), plan, copies)
    assert proposal.sure is copies.sure
    return proposal


@pytest.mark.parametrize("draft_tokens", [1, 2, 4, 7])
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_greedy_chains_equal_a_plain_chain_and_go_on_from_copies(
    record: dict[str, Any], draft_tokens: int
) -> None:
    made, head = workbench(reference(), record)
    slots, copies = (2, 0, 1, 3), {0: [9, 9, 1], 1: [], 2: [4], 3: [5] * 7}
    tokens = {slot: list(PROMPTS[slot]) for slot in slots}
    for slot in slots:
        made.open(slot, PROMPTS[slot])
    for slot, lane in zip(slots, made.play(slots, 3), strict=True):
        tokens[slot] += lane.tokens
    plan = Plan(draft_tokens, CONTEXT, LawShape(1), "match")
    proposal = extended(made, slots, plan, staged(4, draft_tokens, copies))
    alone = extended(made, slots, plan, staged(4, draft_tokens, {}))

    assert [draft_tokens] * 4 == proposal.offered.tolist()
    for lane, slot in enumerate(slots):
        for got, forced in ((proposal, copies[lane]), (alone, [])):
            expected, _ = head.chain(tokens[slot], draft_tokens, choice(forced))
            assert expected == got.tokens[lane].tolist()


def test_a_lane_offers_its_copy_and_the_chain_as_deep_as_it_may_go() -> None:
    made, _ = workbench(reference())
    limits, copies = (3, 3, 3, 0), {0: [1], 1: [1] * 5, 2: [], 3: [1, 2]}
    for slot in range(4):
        made.open(slot, PROMPTS[slot], mtp=slot != 3)
    drafter, lanes = made.executor.drafter, Lanes(made.pool, range(4))
    assert isinstance(drafter, MtpDrafter)
    learned = [drafter.stage(slot, 3).learned for slot in range(4)]
    wide = drafter.extend(lanes, Plan(6, CONTEXT, LawShape(1), "match"), staged(4, 6, copies))
    narrow = drafter.extend(lanes, Plan(2, CONTEXT, LawShape(1), "match"), staged(4, 2, copies))

    assert list(limits) == learned
    assert [3, 5, 3, 2] == wide.offered.tolist()
    assert [2, 2, 2, 2] == narrow.offered.tolist()


def test_a_prompt_of_one_token_has_no_chain_before_its_first_round() -> None:
    made, _ = workbench(reference())
    made.open(0, PROMPT[:1])
    drafter = made.executor.drafter
    first = drafter.stage(0, 3).learned
    made.play((0,), 0)

    assert (0, 3) == (first, drafter.stage(0, 3).learned)


def choice(forced: list[int]) -> Any:
    return lambda step, row: forced[step] if step < len(forced) else int(row.argmax())


@settings(deadline=None, max_examples=40)
@given(
    sampling=samplings,
    record=st.sampled_from(list(RECORDS.values())),
    copied=st.lists(st.integers(0, VOCABULARY - 1), max_size=5),
    acceptance=st.sampled_from(["ratio", "match", "mixed"]),
    seed=st.integers(0, 2**40),
)
def test_each_draft_is_drawn_from_the_requests_own_law_with_the_promised_noise(
    sampling: Sampling, record: dict[str, Any], copied: list[int], acceptance: str, seed: int
) -> None:
    made, head = workbench(reference(spread=0.2), record)
    for slot in (0, 1):
        by_match = acceptance == "match" or (acceptance == "mixed" and slot == 1)
        made.open(slot, PROMPTS[slot], sampling=sampling, seed=seed + slot, match=by_match)
    law = LawShape.of([sampling], VOCABULARY)
    said = [list(r.tokens) for r in made.play((0, 1), 2, law=law, acceptance=acceptance)]
    plan = Plan(4, CONTEXT, law, acceptance)
    proposal = extended(made, (0, 1), plan, staged(2, 4, {1: copied}))

    for lane in (0, 1):
        told, forced = [*PROMPTS[lane], *said[lane]], (copied if lane else [])
        own = proposal.tokens[lane].tolist()
        _, rows = head.chain(told, 4, lambda step, row, own=own: own[step])
        by_match = acceptance == "match" or (acceptance == "mixed" and lane == 1)
        for step, row in enumerate(rows):
            before = said[lane] + own[:step]
            q = expected_law(row, sampling, list(PROMPTS[lane]), before, VOCABULARY)
            if step < len(forced):
                assert forced[step] == own[step]
                q = torch.nn.functional.one_hot(torch.tensor(own[step]), VOCABULARY).float()
            else:
                assert_drawn(own[step], q, seed + lane, len(told) + step, by_match)
            kept = proposal.law_at(torch.full((2,), step), VOCABULARY)
            if kept is not None:
                torch.testing.assert_close(kept[lane, 0], q, atol=3e-6, rtol=1e-4)
    assert (proposal.probs is None) == (acceptance == "match" or law.candidates == 1)


def assert_drawn(token: int, q: Tensor, seed: int, position: int, by_match: bool) -> None:
    """By match the token wins the Gumbel race over q, else the position's draw falls to it; both
    up to rounding."""
    if by_match:
        at = torch.tensor(seed), rng.SAMPLE, torch.tensor(position), torch.arange(len(q))
        race = q.log() + rng.gumbel(*at)
        assert float(race.max() - race[token]) < 1e-3
        return
    stream = torch.tensor(seed), rng.DRAFT, torch.tensor(4 * position)
    draw, through = float(rng.uniforms(*stream, 1)[0]), q.double().cumsum(0)
    below = float(through[token] - q[token])
    assert below - 1e-5 < draw < float(through[token]) + 1e-5


@pytest.mark.parametrize("acceptance", ["match", "ratio", "mixed"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM, FREE, PENALISED])
@pytest.mark.parametrize("record", [RECORDS["three taps"], RECORDS["a draft vocabulary"]])
def test_no_operation_of_the_drafter_waits_for_a_value(
    record: dict[str, Any], acceptance: str, sampling: Sampling
) -> None:
    made, _ = workbench(reference(), record)
    for slot in (0, 1):
        made.open(slot, PROMPTS[slot], sampling=sampling, match=acceptance != "ratio")
    drafter, lanes = made.executor.drafter, Lanes(made.pool, (0, 1))
    for slot in (0, 1):
        drafter.stage(slot, 7)
    law = LawShape.of([sampling], VOCABULARY)
    propose = MtpDrafter.propose.__get__(drafter)
    with NoHostSync(), torch.no_grad():
        for draft_tokens in (0, 1, 7):
            plan = Plan(draft_tokens, 64, law, acceptance)
            propose(lanes, plan)
            drafter_only = type("Real", (), {"propose": propose, "absorb": drafter.absorb})()
            play_round(made.target, drafter_only, lanes, plan)


@pytest.mark.parametrize("sampling", [GREEDY, WARM, PENALISED])
@pytest.mark.parametrize("dtype", ["float32", PACKED_HALF, STORED_TILES])
def test_a_seeds_text_is_the_same_at_every_width_with_mtp_on_and_off(
    sampling: Sampling, dtype: str
) -> None:
    of, record = kin(), head_record(vocabulary=range(0, VOCABULARY, 2))
    tensors = kin_tensors(record)
    law = LawShape.of([sampling], VOCABULARY)

    def text(k: int, *, mtp: bool, seed: int) -> tuple[list[int], int]:
        made, _ = workbench(of, record, tensors, dtype=dtype)
        made.open(0, sampling=sampling, seed=seed, budget=24, mtp=mtp)
        said, accepted = [], 0
        for width in itertools.cycle((k, k, max(k - 2, 0))):
            if int(made.pool.finish[0]):
                return said, accepted
            lane = made.play((0,), width, law=law, absorb=mtp)[0]
            said += lane.tokens
            accepted += lane.accepted

    for seed in (1, 2):
        plain, _ = text(0, mtp=False, seed=seed)
        widths = [*((k, True) for k in range(8)), (3, False), (7, False)]
        played = [text(k, mtp=mtp, seed=seed) for k, mtp in widths]

        assert all(plain == said for said, _ in played)
        assert sum(accepted for _, accepted in played) > 10


V, LANES = 12, 3000


def joint_law(head: ReferenceHead, sampling: Sampling, prompt: list[int]) -> Tensor:
    """P(first two tokens) by enumeration over the plain model, float64 [V * V]."""

    def row(said: list[int]) -> Tensor:
        logits = head.of(torch.tensor([prompt + said]), use_cache=False).logits[0, -1]
        return expected_law(logits, sampling, prompt, said, V).double()

    first = row([])
    return torch.cat([first[token] * row([token]) for token in range(V)])


def first_two(
    sampling: Sampling, record: dict[str, Any], copies: list[int]
) -> tuple[Tensor, Tensor, float]:
    """Counts of the first two tokens over many seeds in `ratio`, their law, the mean accepted."""
    of = kin(3, vocabulary=V, spread=0.3)
    made, head = workbench(of, record, kin_tensors(record), slots=LANES)
    prompt = [2, 7, 1]
    slots = tuple(range(LANES))
    made.open(0, prompt, sampling=sampling, match=False)
    pool, drafter = made.pool, made.executor.drafter
    for name, column in pool.tensors().items():
        column[:] = column[0].clone() if name != "seed" else torch.arange(LANES) * 7919 + 1
    for state in (*made.target.states(), *drafter.states()):
        for tensor in state.tensors().values():
            tensor[:] = tensor[0].clone()
    drafter.depth[:] = 3  # type: ignore[attr-defined]
    drafter.script = lambda slot, done, k: copies if slot % 3 == 0 and not done else []  # type: ignore[attr-defined]
    said: list[list[int]] = [[] for _ in slots]
    accepted = 0.0
    plan = Plan(3, CONTEXT, LawShape.of([sampling], V), "ratio")
    while min(map(len, said)) < 2:
        records = read(made.executor.play(Lanes(pool, slots), plan))
        accepted = accepted or sum(r.accepted for r in records) / LANES
        for tokens, lane in zip(said, records, strict=True):
            tokens.extend(lane.tokens)
    codes = torch.tensor([tokens[0] * V + tokens[1] for tokens in said])
    return torch.bincount(codes, minlength=V * V), joint_law(head, sampling, prompt), accepted


CASES = {
    "the chain": (FREE, head_record(), []),
    "a draft vocabulary": (FREE, head_record(vocabulary=range(0, V, 2)), []),
    "copies, then the chain": (FREE, head_record(), [3]),
    "filters": (WARM, head_record(), []),
    "penalties": (PENALISED, head_record(), [5]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_first_tokens_have_exactly_the_targets_law(case: tuple[Any, ...]) -> None:
    counts, law, accepted = first_two(*case)

    assert chi_square_p(counts, law * LANES) > 1e-3
    assert 0.1 < accepted < 2.9


def test_a_law_that_did_not_draw_the_draft_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    laws = MtpDrafter._laws

    def sharper(*args: Any) -> tuple[Tensor, Tensor | None]:
        q, ids = laws(*args)
        assert q is not None
        return q.pow(2) / q.pow(2).sum(-1, keepdim=True), ids

    monkeypatch.setattr(MtpDrafter, "_laws", sharper)
    counts, law, _ = first_two(FREE, head_record(), [])

    assert chi_square_p(counts, law * LANES) < 1e-6
