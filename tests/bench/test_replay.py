"""Recorded rounds under other widths: what is walked, what is priced and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarechat.bench.recording import Trace, read_recording
from flarechat.bench.replay import (
    FixedWidth,
    LiveController,
    Prices,
    play,
    replay_recording,
    verdict,
    walk,
)
from flarechat.errors import UsageError
from flarechat.protocol import MAX_DRAFT_TOKENS, Round, encode
from tests.fakes import Play


def recorded(offered: int, accepted: int, ms: float | None = None) -> Round:
    """A round of that many drafts; 10 ms and 1 ms a draft unless said otherwise."""
    pieces = ("x",) * (accepted + 1)
    cost = 10.0 + offered if ms is None else ms
    return Play(pieces, width=offered + 1, source="history", ms=cost).round("r", 0, 100)


PRICES = Prices([recorded(0, 0), recorded(7, 7)])


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


@given(
    st.lists(
        st.integers(0, MAX_DRAFT_TOKENS).flatmap(
            lambda offered: st.tuples(st.just(offered), st.integers(0, offered))
        ),
        min_size=1,
        max_size=20,
    )
)
def test_every_policy_emits_the_recorded_tokens_and_the_recorded_width_is_the_recording(
    shapes: list[tuple[int, int]],
) -> None:
    rounds = [recorded(offered, accepted) for offered, accepted in shapes]
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
