"""Rounds of copies that are launched before the one they go on from is read.

What an answer will say is known (acceptance is by match), and a text that is planted in the history
says the same up to one place. So a round ahead meets a round before it that kept everything, broke
off anywhere, or said another token behind its copies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from flarechat.engine.accept import RUNNING
from flarechat.engine.answer import Answer, Played
from flarechat.engine.controller import Choice
from flarechat.engine.drafters.blended import BlendedDrafter
from flarechat.engine.drafters.copies import CopyDrafter
from flarechat.engine.frame import LaneRecord
from flarechat.engine.offer import Offer
from flarechat.protocol import Message, Request, Round, Sampling, Speculation
from tests.engine.captures import captured
from tests.engine.conftest import Desk
from tests.engine.test_flights import Late, late, tokens_of
from tests.engine.test_schedules import (
    SAMPLINGS,
    alone,
    assert_holds,
    assert_played_as_alone,
    play,
)

Make = Callable[..., Desk]
# Hot enough that no three tokens of an answer come twice, so that a copy is of one place alone.
WARM = Sampling(temperature=2.5, seed=22)
COPIES = Speculation(mtp=False, adaptive=False)
PLAIN = Speculation(draft_tokens=0)
COUNT = 48
# The first copy is looked up when five tokens were read, as the plain round that brings the fifth
# is launched ahead; so far it and what goes on reach.
FIRST, REACH = 5, 5 + 7 + 1 + 7 + 1
BROKE_OFF = "the copy broke off in the round before"


@pytest.fixture
def desk(learned_desk: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Engines that prefill in small chunks."""
    monkeypatch.setattr("flarechat.engine.engine.PREFILL_CHUNK", 5)
    return learned_desk


def copies_of(made: Desk) -> CopyDrafter:
    drafter = made.engine.drafter
    own = drafter.copies if isinstance(drafter, BlendedDrafter) else drafter
    assert isinstance(own, CopyDrafter)
    return own


def plant(made: Desk, tokens: Sequence[int], name: str = "planted") -> None:
    """Let the history have a response of these tokens."""
    copies_of(made).sources[1].index.append(name, tokens)  # type: ignore[attr-defined]


def wrong(token: int) -> int:
    return 5 + (token + 1) % 200


def truth(make: Make, text: str = "hello", **fields: object) -> list[int]:
    """What is said without drafts."""
    messages = (Message(role="user", content=text),)
    fields = {"sampling": WARM, "max_tokens": COUNT, **fields}
    return tokens_of(alone(make, Request(id="", messages=messages, **fields))[1])  # type: ignore[arg-type]


def assert_adds_up(made: Desk, request: str) -> None:
    """The identities of a request's events, and that only drafts put to the target taught."""
    finished, rounds = made.finished(request), made.rounds(request)
    total = finished.speculation
    assert total.emitted == total.accepted + total.rounds - total.clipped == len(tokens_of(rounds))
    for r in rounds:
        assert r.accepted <= r.offered == len(r.draft_sources) < r.width or r.width == 1
        assert (r.match_length > 0) == bool({"context", "history"} & set(r.draft_sources))
        assert (r.reason != BROKE_OFF) or not r.match_length
    offered = sum(r.offered for r in rounds)
    assert offered == total.offered == sum(d.offered for d in total.by_depth)
    assert offered == sum(s.offered for s in total.by_source.values())
    for source in (total.history, total.context):
        assert source.hits8 + source.hits4 <= source.lookups <= len(rounds) + 1


def taught(made: Desk) -> dict[int, int]:
    """Depth → how many drafts the controller has seen judged there."""
    counts: dict[int, int] = {}
    for means in made.engine.controller.survival.means.values():
        for depth, mean in enumerate(means):
            counts[depth] = counts.get(depth, 0) + mean.count
    return counts


def judged(rounds: Sequence[Round]) -> dict[int, int]:
    """The same from the events: all drafts up to the first that was not kept."""
    counts: dict[int, int] = {}
    for r in rounds:
        for depth in range(min(r.accepted + 1, r.offered)):
            counts[depth] = counts.get(depth, 0) + 1
    return counts


def ahead(made: Desk) -> list[int]:
    """Widths of the rounds with copies that were launched before the one before was read."""
    executor = made.engine.executor
    assert isinstance(executor, Late)
    pairs = zip(executor.plans, executor.before, strict=True)
    return [p.width for p, before in pairs if before and p.drafting in ("copies", "both")]


@pytest.mark.parametrize("mtp", [False, True])
@pytest.mark.parametrize("kind", [late, captured])
def test_copies_that_go_on_are_all_kept(
    desk: Make, kind: Callable[[Desk], Desk], mtp: bool
) -> None:
    expected = truth(desk)
    made = desk() if mtp else desk(mtp=False)
    made = kind(made) if kind is late else captured(made, learned=mtp)
    plant(made, [*expected, *range(9, 30)])
    how = replace(COPIES, mtp=mtp)
    _, rounds = made.ask("hello", sampling=WARM, max_tokens=COUNT, speculation=how)

    assert expected == tokens_of(rounds)
    copied = [r for r in rounds if r.source == "history"]
    # All but the first go on from the one before, and are found by no look-up.
    assert [(8, 7, 7)] * 3 == [(r.width, r.offered, r.accepted) for r in copied[:3]]
    assert [4, 8, 8] == [r.match_length for r in copied[:3]]
    assert {"planted"} == {r.origin for r in copied}
    assert_adds_up(made, "r1")
    assert judged(rounds) == taught(made)
    if kind is late:
        assert [8, 8] <= ahead(made)
        history = made.finished("r1").speculation.history
        assert len(rounds) - len(ahead(made)) == history.lookups
    if mtp:
        assert_holds(made.engine, 0, desk().engine)


@pytest.mark.parametrize("place", range(FIRST, REACH))
def test_a_copy_may_be_wrong_at_any_place(desk: Make, place: int) -> None:
    expected = truth(desk)
    made = late(desk(mtp=False))
    planted = [*expected[:place], wrong(expected[place]), *expected[place + 1 :]]
    plant(made, planted)
    _, rounds = made.ask("hello", sampling=WARM, max_tokens=COUNT, speculation=COPIES)
    first = next(n for n, r in enumerate(rounds) if r.source == "history")

    assert expected == tokens_of(rounds)
    assert ahead(made)
    assert_adds_up(made, "r1")
    assert judged(rounds) == taught(made)
    assert (min(place - FIRST, 7), 7) == (rounds[first].accepted, rounds[first].offered)
    behind = rounds[first + 1]
    if place <= FIRST + 7:  # a draft, or the token behind all of them, is another
        told = (behind.width, behind.offered, behind.accepted, behind.emitted, behind.source)
        assert (8, 0, 0, 1, "none") == told
        assert (BROKE_OFF, 0, "") == (behind.reason, behind.match_length, behind.origin)
    else:
        assert (8, 7) == (behind.width, behind.offered)
        assert place - FIRST - 8 == behind.accepted
        assert (8, "planted") == (behind.match_length, behind.origin)


def test_an_event_counts_what_the_frame_says_was_offered(desk: Make) -> None:
    made = desk(mtp=False)
    answer = Answer(
        made.request("hello"), 0, [1, 2, 3], budget=9, restored=0, match=True, seed=0, eos=(),
        tokenizer=made.engine.language.tokenizer,
    )  # fmt: skip
    record = LaneRecord(0, 0, 1, RUNNING, 3, 1, (50,))
    offer, choice = Offer("history", 7, 8, "planted"), Choice(7, "why", drafting="copies")
    event, _ = answer.take(Played(record, offer, choice, 1.0, 1))

    assert (8, 0, (), "none") == (event.width, event.offered, event.draft_sources, event.source)
    assert (0, "", ("bonus",)) == (event.match_length, event.origin, event.sources)


@pytest.mark.parametrize(
    ("drafting", "k", "copied"),
    [("copies", 7, 3), ("copies", 2, 2), ("both", 3, 3), ("both", 7, 0), ("mtp", 7, 0)],
)
def test_only_drafts_that_all_are_copies_may_go_on(
    desk: Make, monkeypatch: pytest.MonkeyPatch, drafting: str, k: int, copied: int
) -> None:
    made, asked = late(desk()), list[tuple[int, int]]()
    request = made.request("hello", sampling=WARM, max_tokens=COUNT, speculation=COPIES)
    made.engine.submit(request)
    while not made.engine.player.flights:
        made.engine.step()
    player = made.engine.player
    offer = Offer("history", 3, 8, "planted", 7)
    player.flights[0] = replace(
        player.flights[0], offers=(offer,), choice=Choice(k, "why", drafting=drafting)
    )
    monkeypatch.setattr(made.engine.drafter, "awaits", lambda *told: asked.append(told) or True)

    assert [] == player.due(made.engine.playing)
    assert [(0, copied)] == asked


def test_after_a_copy_broke_off_the_next_round_is_not_launched_on_top_of_it(desk: Make) -> None:
    """What was read last may be copied from elsewhere: that waits for the plain round."""
    expected = truth(desk)
    made = late(desk(mtp=False))
    plant(made, [*expected[: FIRST + 3], wrong(expected[FIRST + 3]), *expected[FIRST + 4 :]])
    plant(made, expected[FIRST:], "other")
    _, rounds = made.ask("hello", sampling=WARM, max_tokens=COUNT, speculation=COPIES)
    executor = made.engine.executor
    assert isinstance(executor, Late)
    lost = next(n for n, r in enumerate(rounds) if r.reason == BROKE_OFF)

    assert expected == tokens_of(rounds)
    assert 0 == executor.before[lost + 1]
    assert ("other", 7, 7) == (
        rounds[lost + 1].origin, rounds[lost + 1].offered, rounds[lost + 1].accepted,
    )  # fmt: skip


@pytest.mark.parametrize("length", range(FIRST + 1, REACH + 4))
def test_a_response_that_ends_is_not_gone_past(desk: Make, length: int) -> None:
    expected = truth(desk)
    made = late(desk(mtp=False))
    plant(made, expected[:length])
    plant(made, [7] * 20, "next")
    _, rounds = made.ask("hello", sampling=WARM, max_tokens=COUNT, speculation=COPIES)
    copied = [r for r in rounds if r.origin == "planted"]

    assert expected == tokens_of(rounds)
    assert length - FIRST >= sum(r.offered for r in copied)
    assert all(r.offered == r.accepted for r in copied)
    # Half as many drafts as are under way have to be there behind the next token.
    assert (length >= FIRST + 8 + 4) == bool(ahead(made))
    assert_adds_up(made, "r1")


@pytest.mark.parametrize("place", range(FIRST, REACH + 8))
def test_an_answer_that_ends_inside_a_copy_ends_there(desk: Make, place: int) -> None:
    expected = truth(desk)
    ended = expected.index(expected[place])
    made, alone = late(desk(mtp=False)), desk(mtp=False)
    for each in (made, alone):
        each.engine.language = replace(each.engine.language, eos=(expected[ended],))
    plant(made, [*expected, *range(9, 30)])
    fields = {"sampling": WARM, "max_tokens": COUNT}
    finished, rounds = made.ask("hello", speculation=COPIES, **fields)
    other, _ = alone.ask("hello", speculation=PLAIN, **fields)

    assert expected[: ended + 1] == tokens_of(rounds)
    assert ("stop", other.text) == (finished.reason, finished.text)
    assert_adds_up(made, "r1")
    assert not made.engine.player.flights
    if ended == place:
        assert judged(rounds) == taught(made) or rounds[-1].clipped


@pytest.mark.parametrize("budget", range(FIRST + 1, COUNT, 3))
def test_a_budget_ends_a_run_of_copies(desk: Make, budget: int) -> None:
    expected = truth(desk)
    made = late(desk(mtp=False))
    plant(made, [*expected, *range(9, 30)])
    finished, rounds = made.ask("hello", sampling=WARM, max_tokens=budget, speculation=COPIES)

    assert "length" == finished.reason
    assert expected[:budget] == tokens_of(rounds)
    assert (budget > FIRST + 8 + 7) == bool(ahead(made))
    # Nothing was launched that was not needed.
    assert len(rounds) == len(made.engine.executor.plans)  # type: ignore[attr-defined]
    assert_adds_up(made, "r1")


@pytest.mark.parametrize("steps", range(4, 12))
def test_a_cancel_takes_in_the_copies_under_way(desk: Make, steps: int) -> None:
    expected = truth(desk)
    made = late(desk())
    plant(made, [*expected, *range(9, 30)])
    request = made.request("hello", sampling=WARM, max_tokens=COUNT, speculation=COPIES)
    made.engine.submit(request)
    for _ in range(steps):
        made.engine.step()
    made.engine.cancel(request.id)
    tokens = tokens_of(made.rounds(request.id))

    assert expected[: len(tokens)] == tokens
    assert_adds_up(made, request.id)
    assert not made.engine.busy
    assert_holds(made.engine, 0, desk().engine)


@pytest.mark.parametrize("fields", [{"stop": ("never",)}, {"logprobs": 2}])
def test_what_the_host_judges_goes_on_only_when_it_was_read(
    desk: Make, fields: dict[str, object]
) -> None:
    expected = truth(desk)
    made = late(desk(mtp=False))
    plant(made, [*expected, *range(9, 30)])
    _, rounds = made.ask("hello", sampling=WARM, max_tokens=COUNT, speculation=COPIES, **fields)

    assert expected == tokens_of(rounds)
    assert 1 == made.engine.executor.most  # type: ignore[attr-defined]
    assert sum(r.accepted for r in rounds) > 20


TWO = (("hello", WARM), ("the in", replace(WARM, seed=3)))


def side_by_side(made: Desk, planted: Sequence[Sequence[int]]) -> None:
    """TWO answers in lanes of their own, r1 and r2, each with a text it may copy."""
    for (text, sampling), tokens in zip(TWO, planted, strict=True):
        request = made.request(text, sampling=sampling, max_tokens=COUNT, speculation=COPIES)
        plant(made, tokens, f"for {request.id}")
        made.engine.submit(request)
    made.run()


@pytest.mark.parametrize("kind", ["late", "captured"])
@pytest.mark.parametrize("kept", [0, 3, 6, 7, 40])
def test_of_two_lanes_one_may_break_off(desk: Make, kept: int, kind: str) -> None:
    expected = [truth(desk, text, sampling=sampling) for text, sampling in TWO]
    planted = [[*tokens, *range(9, 30)] for tokens in expected]
    planted[1][FIRST + kept] = wrong(planted[1][FIRST + kept])
    made = desk(lanes=2)
    made = late(made) if kind == "late" else captured(made)
    side_by_side(made, planted)
    rounds = [made.rounds(name) for name in ("r1", "r2")]
    lost = [[r for r in own if r.reason == BROKE_OFF] for own in rounds]

    assert expected == [tokens_of(own) for own in rounds]
    assert [] == lost[0]
    assert [0] * len(lost[1]) == [r.offered for r in lost[1]]
    assert (kept < 8) == bool(lost[1])
    if kind == "late":
        assert ahead(made)
    for n, request in enumerate(("r1", "r2")):
        assert_adds_up(made, request)
        assert_holds(made.engine, n, desk().engine)


FAMILIAR = tuple(
    (text, sampling) for text in ("hello", "the in", "hello the") for sampling in SAMPLINGS
)


def familiar(seed: int) -> list[object]:
    """Requests asked again and again, so that most of what they say was said before; or said up to
    where another seed goes another way."""
    draw = random.Random(seed)
    known = draw.sample(FAMILIAR, 3)
    moves: list[object] = []
    for _ in range(draw.randint(6, 12)):
        text, sampling = draw.choice(known)
        moves.append(
            {
                "text": text, "follows": draw.random() < 0.2,
                "sampling": sampling, "max_tokens": draw.randint(20, 60),
                "stop": draw.choice([(), (), (), (), ("th",)]),
                "speculation": Speculation(
                    draft_tokens=draw.choice((7, 7, 5, 2)), adaptive=draw.random() < 0.5,
                    history_drafts=draw.random() < 0.9, mtp=draw.random() < 0.5,
                ),
            }
        )  # fmt: skip
        moves.append("cancel" if draw.random() < 0.1 else draw.randint(1, 20))
    return moves


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize(
    ("kind", "seed"), [(k, s) for k, n in (("late", 4), ("captured", 2)) for s in range(n)]
)
def test_what_was_said_before_is_copied_ahead_and_says_the_same(
    desk: Make, seed: int, lanes: int, kind: str
) -> None:
    made = desk(lanes=lanes)
    together = late(made) if kind == "late" else captured(made)
    asked = play(together, familiar(seed))
    assert_played_as_alone(together, asked, desk)
    for request in asked:
        for r in together.rounds(request.id):
            assert (r.match_length > 0) == bool({"context", "history"} & set(r.draft_sources))
    if kind == "late" and lanes == 1:
        assert ahead(together)
