"""Recorded rounds under other widths: what is walked, what is priced and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarechat.bench.recording import Trace, read_recording
from flarechat.bench.replay import (
    FixedWidth,
    LiveController,
    Prices,
    _offer,
    play,
    replay_recording,
    verdict,
    walk,
)
from flarechat.engine.controller import Choice
from flarechat.engine.offer import Offer
from flarechat.errors import UsageError
from flarechat.protocol import MAX_DRAFT_TOKENS, Round, encode
from tests.fakes import Play


def recorded(offered: int, accepted: int, ms: float | None = None, *, learned: int = 0) -> Round:
    """A round of that many drafts, the last `learned` of them the MTP chain's; 10 ms, 1 ms a
    draft and as much again with the chain, unless said otherwise."""
    copied, chain = offered - learned, bool(learned)
    cost = 10.0 + offered * (1 + chain) if ms is None else ms
    made = Play(("x",) * (accepted + 1), width=offered + 1, source="history", ms=cost)
    played = made.round("r", 0, 100)
    if not chain:
        return played
    drafts = ("history",) * copied + ("mtp",) * learned
    return replace(
        played,
        source="+".join(dict.fromkeys(drafts)),
        draft_sources=drafts,
        sources=(*drafts[:accepted], played.sources[-1]),
        match_length=8 if copied else 0,
        origin="turn-0" if copied else "",
    )


PRICES = Prices([recorded(0, 0), recorded(7, 7), recorded(7, 7, learned=7)])


@pytest.mark.parametrize(
    ("offered", "accepted", "draft_tokens", "rounds", "ms"),
    [
        (0, 0, 7, 1, 10.0),
        (7, 7, 7, 1, 17.0),
        (7, 7, 3, 2, 26.0),
        (7, 7, 0, 8, 80.0),
        (7, 7, 2, 3, 35.0),
        (7, 6, 4, 2, 26.0),
        (7, 3, 3, 1, 13.0),
        (7, 3, 2, 2, 24.0),
        (7, 0, 4, 1, 14.0),
        (2, 2, 7, 1, 12.0),
    ],
)
def test_a_stretch_is_walked_in_as_many_rounds_as_the_width_needs(
    offered: int, accepted: int, draft_tokens: int, rounds: int, ms: float
) -> None:
    walked = walk(recorded(offered, accepted), FixedWidth(draft_tokens), PRICES)

    assert (rounds, pytest.approx(ms)) == walked


@pytest.mark.parametrize(
    ("learned", "accepted", "draft_tokens", "rounds", "ms"),
    [
        (7, 7, 7, 1, 24.0),
        (7, 7, 3, 2, 16.0 + 16.0),
        (7, 2, 0, 3, 30.0),
        (2, 7, 7, 1, 24.0),  # five copies, continued by the chain
        (2, 7, 5, 2, 15.0 + 12.0),  # the copies alone, their bonus, then what the chain had left
        (2, 7, 6, 2, 22.0 + 10.0),
        (2, 3, 4, 1, 14.0),
    ],
)
def test_a_round_of_copies_and_chain_is_walked_and_priced_by_what_drafts(
    learned: int, accepted: int, draft_tokens: int, rounds: int, ms: float
) -> None:
    walked = walk(recorded(7, accepted, learned=learned), FixedWidth(draft_tokens), PRICES)

    assert (rounds, pytest.approx(ms)) == walked


def test_no_policy_asks_for_the_chain_where_a_copy_was_recorded() -> None:
    class Watched(LiveController):
        def choose(self, offer: Offer, context: int) -> Choice:
            choice = super().choose(offer, context)
            asked.append((offer.count, choice.drafting))
            return choice

    asked: list[tuple[int, str]] = []
    rounds = [recorded(7, 0), recorded(7, 0, learned=2), recorded(7, 7, learned=7)] * 60
    play("p", Watched(), rounds, PRICES)

    assert {"none", "copies", "both"} >= {drafting for count, drafting in asked if count}
    assert "mtp" in {drafting for count, drafting in asked if not count}


def test_widths_never_recorded_with_the_chain_take_what_they_took_without() -> None:
    prices = Prices([recorded(0, 0), recorded(2, 2, learned=2), recorded(7, 7)])

    assert [10.0, 12.0, 14.0] == [prices.ms(width, chain=True) for width in (1, 2, 3)]
    assert 17.0 == prices.ms(8, chain=True)
    assert pytest.approx(12.0) == prices.ms(3)


@given(
    st.lists(
        st.integers(0, MAX_DRAFT_TOKENS).flatmap(
            lambda offered: st.tuples(
                st.just(offered), st.integers(0, offered), st.integers(0, offered)
            )
        ),
        min_size=1,
        max_size=20,
    )
)
def test_every_policy_emits_the_recorded_tokens_and_the_recorded_width_is_the_recording(
    shapes: list[tuple[int, int, int]],
) -> None:
    rounds = [recorded(offered, accepted, learned=chain) for offered, accepted, chain in shapes]
    narrow, widest, live = (
        play("p", policy, rounds, PRICES)
        for policy in (FixedWidth(0), FixedWidth(MAX_DRAFT_TOKENS), LiveController())
    )

    tokens = sum(played.accepted + 1 for played in rounds)
    assert tokens == narrow.tokens == widest.tokens == live.tokens
    assert tokens == narrow.rounds
    assert len(rounds) == widest.rounds
    assert pytest.approx(sum(played.ms for played in rounds)) == widest.ms
    assert widest.rounds <= live.rounds <= narrow.rounds


def test_the_regret_is_taken_against_the_best_fixed_width() -> None:
    rounds = [recorded(0, 0), *[recorded(7, 1, ms=40.0)] * 9, recorded(1, 1)]

    (replay,) = replay_recording([Trace(label="fixed", rounds=tuple(rounds))])

    best = min(replay.fixed, key=lambda policy: policy.ms)
    assert "width 2" == replay.best_fixed == best.policy
    assert pytest.approx(replay.live.ms / best.ms - 1) == replay.regret
    assert "slower than the best fixed one, width 2." in verdict(replay)[0]


def test_a_round_that_used_up_a_narrow_offer_is_counted_as_hiding_something() -> None:
    rounds = (recorded(0, 0), recorded(2, 2), recorded(2, 1), recorded(7, 7))

    (replay,) = replay_recording([Trace(label="adaptive", rounds=rounds)])

    assert 1 == replay.hidden
    assert verdict(replay)[-1].startswith("1 rounds accepted every draft")


def test_labels_are_replayed_apart_and_those_without_drafts_left_out() -> None:
    plain, drafted = (recorded(0, 0),) * 3, (recorded(3, 2),) * 2
    traces = [
        Trace(label="off", rounds=plain),
        Trace(label="fixed", rounds=drafted),
        Trace(label="fixed", rounds=drafted),
    ]

    (replay,) = replay_recording(traces)

    assert ("fixed", 4) == (replay.label, replay.live.rounds)


@pytest.mark.parametrize(
    ("rounds", "message"),
    [((recorded(0, 0),), "holds no offered draft"), ((recorded(3, 2),), "holds no plain round")],
)
def test_a_recording_that_tells_nothing_is_refused(rounds: tuple[Round, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replay_recording([Trace(label="run", rounds=rounds)])


def test_the_lines_of_a_run_are_read_by_request(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text("".join(encode(recorded(n, n)) + "\n" for n in (0, 3)) + "\n")

    (trace,) = read_recording(file)

    assert ("run", (recorded(0, 0), recorded(3, 3))) == (trace.label, trace.rounds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no round"),
        ("nonsense", "is damaged"),
        ('{"samples": [{}]}', "is damaged"),
        ('{"event": "round"}', "is damaged"),
        ('{"event": "round", "request": "r"}', "is damaged"),
        ("[1]", "is damaged"),
        (json.dumps({"samples": []}), "holds no round"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)

    with pytest.raises(UsageError, match=message):
        read_recording(file)


def test_a_missing_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_recording(tmp_path / "nowhere")


def test_forced_drafts_are_offered_again_before_the_copies_behind_them() -> None:
    forced, copy = ("grammar",) * 2, ("history",) * 3

    assert Offer(count=2, forced=2) == _offer(forced, 0)
    assert Offer("history", 5, 8, forced=2) == _offer(forced + copy, 8)
    assert Offer("history", 4, 8, learned=5, forced=1) == _offer((*forced[1:], *copy, "mtp"), 8)
