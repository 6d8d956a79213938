"""The C steps of a round against the torch code: laws to rounding, draws and counts to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flarechat.engine import kernels
from flarechat.engine.kernels import cpu
from flarechat.engine.plan import LawShape, Plan
from flarechat.engine.proposal import Proposal
from flarechat.engine.sampling import TargetLaw, target_law
from flarechat.engine.slot import Lanes
from flarechat.engine.state.hidden import HiddenState
from flarechat.engine.window import Window
from tests.engine.requests import (
    CASES,
    CPU,
    LANES,
    V,
    case,
    generator,
    lanes_of,
    require_law,
    stable_law,
)
from tests.engine.steps import (
    require_committed_as_by_the_torch_code,
    require_decided_as_by_the_torch_code,
    require_drawn_as_the_torch_chain_draws,
    require_drawn_from_the_law_where_a_draft_leaves_nothing,
    require_inputs_as_of_the_torch_code,
    require_sure_drafts_kept,
)

if cpu.library() is None:
    pytest.skip(f"no C kernels: {cpu.reason()}", allow_module_level=True)

from flarechat.engine.kernels.cpu import rounds


@pytest.fixture(autouse=True)
def references() -> Iterator[None]:
    """What is not called by name is plain torch."""
    with kernels.in_torch():
        yield


def no_drafts(lanes: Lanes) -> Tensor:
    return torch.zeros(len(lanes), 0, dtype=torch.int64)


def require_candidates(own: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    assert theirs[1].shape == own[1].shape
    require_law(own, *theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("candidates", [1, 2, 40, 64])
@pytest.mark.parametrize("columns", [7, 64, 127, 128, 129, 700, 9000])
def test_each_row_has_the_law_of_the_torch_code(
    columns: int, candidates: int, dtype: torch.dtype
) -> None:
    """In bfloat16 many logits are equal, and of equals the lower id comes first."""
    lanes = lanes_of(3, columns, seed=columns)
    lanes.pool.filters["top_k"].clamp_max_(candidates)
    if candidates == 1:
        lanes.pool.filters["temperature"].fill_(0)
    draw = generator(columns + candidates)
    logits = (3 * torch.randn(3, 4, columns, generator=draw)).to(dtype)
    drafts = torch.randint(0, columns, (3, 2), generator=draw)
    for penalties in (False, True):
        own = rounds.law(logits, lanes, drafts, LawShape(candidates, penalties=penalties))
        count = min(candidates, columns)
        require_candidates(own, stable_law(logits, lanes, drafts, penalties, count=count))
        torch.testing.assert_close(own[0].sum(-1), torch.ones(3, 4))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("spread", [0.02, 3.0])
@pytest.mark.parametrize("columns", [1, 7, 300, 9000])
def test_a_law_of_the_whole_vocabulary_is_that_of_the_torch_code(
    columns: int, spread: float, mapped: bool
) -> None:
    """Filters of every kind, with many candidates to sort where values are near each other."""
    lanes, draw = lanes_of(20, 2 * columns, seed=columns), generator(columns)
    top_k = torch.tensor([0, 0, 100, 5000])[torch.randint(0, 4, (22,), generator=draw)]
    lanes.pool.filters["top_k"].copy_(top_k)
    vocabulary = torch.arange(0, 2 * columns, 2) if mapped else None
    logits = spread * torch.randn(20, 2, columns if mapped else 2 * columns, generator=draw)
    drafts = torch.randint(0, 2 * columns, (20, 3), generator=draw)
    for penalties in (False, True):
        shape = LawShape(0, ordered=True, penalties=penalties)
        probs, ids = rounds.law(logits, lanes, drafts, shape, 1, vocabulary)
        theirs = target_law(logits, lanes, drafts, shape, first=1, vocabulary=vocabulary)

        assert ids is None
        torch.testing.assert_close(probs, theirs.probs, atol=2e-7, rtol=3e-5)
        assert torch.equal(theirs.probs > 0, probs > 0)


def test_of_equals_at_the_edge_of_a_nucleus_the_lower_ids_stay() -> None:
    lanes = lanes_of(1, 8, seed=1)
    for name, value in {"temperature": 1.0, "top_k": 0, "top_p": 0.5, "min_p": 0.0}.items():
        lanes.pool.filters[name].fill_(value)
    probs, _ = rounds.law(torch.zeros(1, 1, 8), lanes, no_drafts(lanes), LawShape(0, ordered=True))

    assert [0.25] * 4 + [0.0] * 4 == probs[0, 0].tolist()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_candidates_are_those_that_a_sort_finds(data: st.DataObject) -> None:
    """Values from a few numbers, endless ones among them, in rows of any length."""
    columns = data.draw(st.integers(1, 700))
    few = st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0, float("-inf")])
    values = data.draw(st.lists(few, min_size=columns, max_size=columns))
    candidates = min(data.draw(st.integers(1, 64)), columns)
    lanes, logits = lanes_of(1, columns, seed=3), torch.tensor(values)[None, None]
    _, ids = rounds.law(logits, lanes, no_drafts(lanes), LawShape(candidates))
    order = logits.sort(dim=-1, descending=True, stable=True).indices

    assert order[..., :candidates].tolist() == ids.tolist()


def test_rising_and_equal_values_are_found_too() -> None:
    """The worst for a search that looks past a bar: everything passes it, or pushes it up."""
    lanes, columns = lanes_of(2, 5000, seed=3), torch.arange(5000)
    logits = torch.stack([columns.float(), torch.zeros(5000)])[:, None]
    _, ids = rounds.law(logits, lanes, no_drafts(lanes), LawShape(64))

    assert columns.flip(0)[:64].tolist() == ids[0, 0].tolist()
    assert columns[:64].tolist() == ids[1, 0].tolist()


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_logits_that_are_no_numbers_still_make_a_law(value: float) -> None:
    lanes = lanes_of(4, 300, seed=5)
    logits = torch.full((4, 2, 300), value)
    for candidates in (0, 1, 40):
        probs, ids = rounds.law(logits, lanes, no_drafts(lanes), LawShape(candidates))

        torch.testing.assert_close(probs.sum(-1), torch.ones(4, 2))
        assert ids is None or bool(((ids >= 0) & (ids < 300)).all())


def test_a_drafters_columns_are_mapped_to_their_tokens() -> None:
    """Drafts that the drafter cannot say count for nothing there."""
    lanes = lanes_of(3, 400, seed=5)
    vocabulary = torch.arange(1, 400, 3)
    logits = 2 * torch.randn(3, 1, len(vocabulary), generator=generator(6))
    drafts = torch.randint(0, 400, (3, 4), generator=generator(7))
    for first in (0, 2, 4):
        shape = LawShape(64, penalties=True)
        own = rounds.law(logits, lanes, drafts, shape, first, vocabulary)
        theirs = stable_law(logits, lanes, drafts[:, :first], True, first, vocabulary)
        require_candidates(own, theirs)


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("acceptance", ["ratio", "match", "mixed"])
def test_drafts_are_drawn_as_the_torch_chain_draws_them(acceptance: str, staged: bool) -> None:
    def begin(lanes: Lanes, depth: Tensor, staged: Proposal | None, steps: int) -> Any:
        plan = Plan(steps, 512, LawShape(64, penalties=True), acceptance)
        return rounds.drafts(lanes, depth, staged, plan)

    require_drawn_as_the_torch_chain_draws(begin, acceptance, staged)


@pytest.mark.parametrize("acceptance", ["ratio", "match", "mixed"])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
def test_a_lane_decides_as_the_torch_code_does(drafts: int, kind: str, acceptance: str) -> None:
    require_decided_as_by_the_torch_code(rounds.accept, drafts, kind, acceptance)


@pytest.mark.parametrize("acceptance", ["ratio", "match", "mixed"])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("drafts", [1, 4, 7])
def test_sure_drafts_are_kept_and_the_rest_decided_as_ever(
    drafts: int, kind: str, acceptance: str
) -> None:
    require_sure_drafts_kept(rounds.accept, drafts, kind, acceptance)


def test_points_of_a_greedy_law_are_kept_as_long_as_they_are_right() -> None:
    lanes, law, proposal = case(3, "points")
    assert law.ids is not None
    best, right = law.ids[:, :3, 0], torch.arange(LANES) % 4
    drafts = torch.where(torch.arange(3) >= right[:, None], (best + 1) % V, best)
    sure = TargetLaw(torch.ones(LANES, 4, 1), law.ids[..., :1])
    offer = replace(proposal, tokens=drafts, offered=torch.full((LANES,), 3))
    for acceptance in ("ratio", "match", "mixed"):
        tokens, accepted = rounds.accept(sure, offer, lanes, acceptance)

        assert torch.equal(right, accepted)
        own = law.ids[torch.arange(LANES), right, 0]
        assert torch.equal(own, tokens[torch.arange(LANES), right])


def test_what_a_draft_leaves_nothing_of_is_drawn_from_the_law() -> None:
    require_drawn_from_the_law_where_a_draft_leaves_nothing(rounds.accept)


def test_emitted_tokens_are_clipped_counted_and_packed_as_the_torch_code_does() -> None:
    require_committed_as_by_the_torch_code(rounds)


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_a_round_reads_the_pending_token_and_its_drafts(drafts: int) -> None:
    require_inputs_as_of_the_torch_code(rounds, drafts)


@pytest.mark.parametrize("prefilling", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_rows_are_kept_and_found_as_the_torch_code_does(
    dtype: torch.dtype, prefilling: bool
) -> None:
    """Of lanes that have ended the rows are spare ones; one lane has consumed nothing."""
    lanes = lanes_of(6, 5, seed=3)
    lanes.pool.context = 64
    lanes.pool.consumed.remainder_(60)
    lanes.pool.consumed[lanes.slots[0]] = 0
    lanes.prefilling = prefilling
    assert len(lanes.finish().unique()) > 1
    theirs, own = (HiddenState(8, 64, 6, dtype, CPU) for _ in range(2))
    before = torch.randn(8, 80, 6, generator=generator(1)).to(dtype)
    hidden = torch.randn(6, 3, 6, generator=generator(2)).to(dtype)
    for state in (theirs, own):
        state.rows.copy_(before)
    theirs.store(lanes, hidden, torch.ones(6).long(), Plan(2, 512))
    rounds.store(own.rows, hidden, Window(lanes, 3))

    assert torch.equal(theirs.rows, own.rows)
    assert torch.equal(theirs.last(lanes), rounds.last(own.rows, Window(lanes, 1, -1)))


def test_the_dispatch_leaves_laws_of_many_candidates_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Called outside of the fixture's reach."""
    monkeypatch.setattr(kernels, "_in_torch", False)
    lanes, calls = lanes_of(2, 100, seed=8), list[int]()
    plain = rounds.law

    def counted(*arguments: Any) -> Any:
        calls.append(arguments[3].candidates)
        return plain(*arguments)

    monkeypatch.setattr(rounds, "law", counted)
    logits = torch.randn(2, 2, 100, generator=generator(9))
    for shape in (LawShape(20), LawShape(64), LawShape(65), LawShape(0, ordered=True)):
        target_law(logits, lanes, no_drafts(lanes), shape)

    assert [20, 64, 0] == calls
    assert not kernels.native(logits.to("meta"))
