"""Copies staged to go on from a round that was not read yet: the page offers them to a lane that
stands where they expect it, and to no other."""

from __future__ import annotations

import pytest

from flarechat.engine.drafters.copies import CopyDrafter
from flarechat.engine.offer import Offer
from flarechat.engine.plan import Plan
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.protocol import HistoryTotals
from tests.engine.tiny import CPU

STREAM = list(range(100, 140))
PROMPT = [*STREAM, 1, 2, 3, *STREAM[:4]]
CONSUMED = len(PROMPT) - 1


def drafter_of(prompt: list[int] = PROMPT, *, slots: int = 1) -> tuple[CopyDrafter, SlotPool]:
    """Copies for one slot whose request has read its prompt, and a pool that says so."""
    drafter, pool = CopyDrafter(slots, CPU), SlotPool(slots, 4 * len(PROMPT), 256, CPU)
    for slot in range(slots):
        drafter.open(slot, f"r{slot}", prompt, restored=0, history=True, mtp=False)
        stand(pool, slot, len(prompt) - 1, prompt[-1])
    return drafter, pool


def stand(pool: SlotPool, slot: int, consumed: int, pending: int) -> None:
    pool.consumed[slot], pool.pending[slot] = consumed, pending


def offered(
    drafter: CopyDrafter, pool: SlotPool, k: int, slots: tuple[int, ...] = (0,)
) -> list[list[int]]:
    """The drafts that the page would put to the target, lane by lane."""
    proposal = drafter.propose(Lanes(pool, slots), Plan(k, 64, drafting="copies"))
    assert (len(slots), k) == tuple(proposal.tokens.shape)
    rows = zip(proposal.tokens.tolist(), proposal.offered.tolist(), strict=True)
    return [row[:count] for row, count in rows]


@pytest.mark.parametrize("k", [1, 4, 7])
@pytest.mark.parametrize("copied", [1, 3, 7])
def test_what_goes_on_is_offered_where_the_round_before_kept_all(copied: int, k: int) -> None:
    drafter, pool = drafter_of()
    assert Offer("context", 7, 4) == drafter.stage(0, 7)
    length = 8 if 4 + copied + 1 >= 8 else 4
    expects = (CONSUMED + copied + 1, STREAM[4 + copied])
    offer = drafter.stage(0, 7, copied)
    drafts = STREAM[5 + copied : 12 + copied]

    assert Offer("context", 7, length, expects=expects) == offer
    stand(pool, 0, *expects)
    assert [drafts[:k]] == offered(drafter, pool, k)


@pytest.mark.parametrize("copied", [1, 3, 7])
def test_a_lane_that_stands_elsewhere_is_offered_none(copied: int) -> None:
    drafter, pool = drafter_of()
    drafter.stage(0, 7)
    consumed, pending = drafter.stage(0, 7, copied).expects or (0, 0)
    elsewhere = [(at, STREAM[at - CONSUMED + 3]) for at in range(CONSUMED, consumed)]
    elsewhere += [(at, pending) for at in (consumed - 1, consumed + 1, 0)]
    elsewhere += [(consumed, token) for token in (pending - 1, pending + 1, 0, 255)]

    for place in elsewhere:
        stand(pool, 0, *place)
        assert [[]] == offered(drafter, pool, 7), place
    stand(pool, 0, consumed, pending)
    assert 7 == len(offered(drafter, pool, 7)[0])


def test_each_lane_answers_for_itself() -> None:
    drafter, pool = drafter_of(slots=4)
    for slot in range(4):
        drafter.stage(slot, 7)
    offers = [drafter.stage(slot, 7, 7 if slot else 0) for slot in range(4)]
    for slot, offer in enumerate(offers[1:], start=1):
        stand(pool, slot, *(offer.expects or (0, 0)))
    pool.pending[2] += 1

    drafts = [STREAM[4:11], STREAM[12:19], [], STREAM[12:19]]
    assert [drafts[slot] for slot in (3, 2, 0, 1)] == offered(drafter, pool, 7, (3, 2, 0, 1))


def test_a_copy_that_was_looked_up_is_offered_wherever_the_lane_stands() -> None:
    drafter, pool = drafter_of()
    drafter.stage(0, 7)
    drafter.stage(0, 7, 7)
    drafter.stage(0, 5)
    for place in ((CONSUMED, PROMPT[-1]), (3, 5), (0, 0)):
        stand(pool, 0, *place)
        assert [STREAM[4:9]] == offered(drafter, pool, 7)


def test_what_goes_on_goes_on_again_once_the_first_is_known_to_have_been_kept() -> None:
    drafter, _ = drafter_of()
    drafter.stage(0, 7)
    second = drafter.stage(0, 7, 7)
    drafter.commit(0, STREAM[4:12])
    third = drafter.stage(0, 7, 7)

    assert (CONSUMED + 8, STREAM[11]) == second.expects
    assert Offer("context", 7, 8, expects=(CONSUMED + 16, STREAM[19])) == third


@pytest.mark.parametrize("kept", range(8))
def test_what_goes_on_from_a_copy_that_broke_off_is_not_staged(kept: int) -> None:
    """The second was launched on the strength of the first, which kept fewer or said another
    token behind them all."""
    drafter, _ = drafter_of()
    drafter.stage(0, 7)
    drafter.stage(0, 7, 7)
    drafter.commit(0, [*STREAM[4 : 4 + kept], 9])

    assert not drafter.awaits(0, 7)
    assert Offer() == drafter.stage(0, 7, 7)


def test_a_copy_is_awaited_unless_it_goes_on_from_the_one_under_way() -> None:
    drafter, _ = drafter_of()
    drafter.stage(0, 7)

    assert drafter.awaits(0)
    assert not drafter.awaits(0, 7)


@pytest.mark.parametrize(("left", "goes_on"), [(0, False), (1, False), (4, False), (5, True)])
def test_a_copy_that_its_stream_soon_ends_is_awaited(left: int, goes_on: bool) -> None:
    """Behind seven drafts and the token that is expected there have to be half as many more."""
    stream = STREAM[: 4 + 7 + left]
    drafter, pool = drafter_of([*stream[:4], 1, 2, 3])
    drafter.commit(0, stream)
    drafter.close(0)
    drafter.open(0, "next", [1, 2, 3, *stream[:4]], restored=0, history=True, mtp=False)
    assert Offer("history", 7, 4, "r0") == drafter.stage(0, 7)

    assert goes_on == (not drafter.awaits(0, 7))
    if goes_on:
        offer = drafter.stage(0, 7, 7)
        stand(pool, 0, *(offer.expects or (0, 0)))
        assert [stream[12:]] == offered(drafter, pool, 7)


def test_a_copy_that_goes_on_is_neither_looked_up_nor_a_hit() -> None:
    drafter, _ = drafter_of()
    drafter.stage(0, 7)
    for start in (4, 12):
        assert drafter.stage(0, 7, 7).expects is not None
        drafter.commit(0, STREAM[start : start + 8])

    assert (HistoryTotals(lookups=1), HistoryTotals(lookups=1, hits4=1)) == drafter.close(0)
