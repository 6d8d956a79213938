"""Forced tokens come before copies, which are looked up behind them and cut to what is legal."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flarechat.engine.drafters import make_drafter
from flarechat.engine.offer import Offer
from flarechat.engine.plan import Plan
from flarechat.engine.slot import Lanes
from tests.engine.drafters.test_ahead import PROMPT, STREAM, drafter_of, offered
from tests.engine.tiny import CPU

ON = STREAM[4:]


@pytest.mark.parametrize("forced", range(8))
def test_a_copy_that_begins_with_what_is_forced_goes_on_behind_it(forced: int) -> None:
    drafter, pool = drafter_of()
    offer = drafter.stage(0, 7, forced=ON[:forced])
    proposal = drafter.propose(Lanes(pool, (0,)), Plan(7, 64, drafting="copies"))
    length = 8 if 4 + forced >= 8 else 4

    if forced < 7:
        assert Offer("context", 7, length, forced=forced) == offer
    else:
        assert Offer(count=7, forced=7) == offer
    assert [ON[:7]] == offered(drafter, pool, 7)
    assert proposal.sure is not None and [forced] == proposal.sure.tolist()


def test_a_copy_that_contradicts_what_is_forced_is_dropped() -> None:
    drafter, pool = drafter_of()

    assert Offer(count=2, forced=2) == drafter.stage(0, 7, forced=(9, 8))
    assert [[9, 8]] == offered(drafter, pool, 7)


@pytest.mark.parametrize("limit", range(8))
def test_no_more_is_forced_than_a_round_has_room_for(limit: int) -> None:
    drafter, pool = drafter_of()
    offer = drafter.stage(0, limit, forced=range(50, 60))

    assert Offer(count=limit, forced=limit) == offer
    assert limit == 0 or [list(range(50, 50 + limit))] == offered(drafter, pool, 7)


@pytest.mark.parametrize("legal", range(8))
@pytest.mark.parametrize("forced", [0, 2])
def test_copies_are_cut_to_their_legal_beginning(forced: int, legal: int) -> None:
    drafter, pool = drafter_of()
    asked: list[Sequence[int]] = []

    def judge(drafts: Sequence[int]) -> int:
        asked.append(list(drafts))
        return min(legal, len(drafts))

    offer = drafter.stage(0, 7, forced=ON[:forced], legal=judge)
    count = max(legal, forced)

    assert [ON[:7]] == asked
    assert (count, forced, 7 - count) == (offer.count, offer.forced, offer.removed)
    assert [ON[:count]] == offered(drafter, pool, 7)
    assert (offer.source == "none") == (count == forced)


def test_a_request_that_forbids_copies_has_its_forced_drafts() -> None:
    drafter, pool = drafter_of()
    drafter.open(0, "next", PROMPT, restored=0, history=False, mtp=False)

    assert Offer(count=3, forced=3) == drafter.stage(0, 7, forced=(7, 8, 9))
    assert [[7, 8, 9]] == offered(drafter, pool, 7)


def test_nothing_stays_sure_behind_the_round() -> None:
    drafter, pool = drafter_of()
    lanes, plan = Lanes(pool, (0,)), Plan(7, 64, drafting="copies")
    for forget in (
        lambda: drafter.stage(0, 7),
        lambda: drafter.stage(0, 0),
        lambda: drafter.close(0),
    ):
        drafter.stage(0, 7, forced=ON[:3])
        forget()
        sure = drafter.propose(lanes, plan).sure
        assert sure is not None and [0] == sure.tolist()


def test_without_a_drafter_nothing_is_offered() -> None:
    assert Offer() == make_drafter("none", 1, CPU).stage(0, 7, forced=(1, 2))


@pytest.mark.parametrize(
    ("drafting", "draft_tokens", "cut"),
    [
        ("none", 0, 0),
        ("mtp", 7, 0),
        ("copies", 2, 0),
        ("copies", 3, 4),
        ("both", 2, 0),
        ("both", 7, 4),
    ],
)
def test_drafts_that_no_round_came_to_do_not_count_as_removed(
    drafting: str, draft_tokens: int, cut: int
) -> None:
    assert cut == Offer("history", 3, 8, learned=7, removed=4).cut(drafting, draft_tokens)
