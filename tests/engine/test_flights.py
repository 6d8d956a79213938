"""Two rounds under way: a round launched before the one before it is read changes no text.

The executor here plays at once, as the eager one does, and says that two may be under way: its
frames are read a round later than they could be. What the device has then done already, as a GPU
would have by the time the host looks, is what the host must not rely on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import pytest
from torch import Tensor

from flarechat.engine.contracts import Executor
from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.frame import Frame, LaneRecord
from flarechat.engine.plan import Plan
from flarechat.engine.slot import Lanes
from flarechat.protocol import Event, Finished, Round, Sampling, Speculation, Started
from tests.engine.conftest import Desk
from tests.engine.test_schedules import (
    PIECES,
    SAMPLINGS,
    assert_holds,
    assert_played_as_alone,
    play,
)

Make = Callable[..., Desk]
MTP = Speculation(history_drafts=False)
FIXED = Speculation(history_drafts=False, adaptive=False, draft_tokens=3)
GREEDY = Sampling(temperature=0)


class Late:
    """An eager executor whose frames are read late; it keeps the plans it was asked for, and how
    many rounds were under way before each."""

    name, depth = "late", 2

    def __init__(self, eager: EagerExecutor) -> None:
        self.eager, self.target, self.drafter = eager, eager.target, eager.drafter
        self.plans: list[Plan] = []
        self.before: list[int] = []
        self.out: Callable[[], int] = lambda: 0

    @property
    def most(self) -> int:
        return 1 + max(self.before)

    def play(self, lanes: Lanes, plan: Plan) -> Frame:
        self.plans.append(plan)
        self.before.append(self.out())
        return self.eager.play(lanes, plan)

    def prefill(self, *args: object) -> None:
        self.eager.prefill(*args)  # type: ignore[arg-type]

    def copy(self, source: int, target: int, rows: int) -> None:
        self.eager.copy(source, target, rows)

    def heard(self, lanes: int) -> tuple[Tensor, Tensor]:
        return self.eager.heard(lanes)

    def recall(self, lanes: Lanes, plan: Plan, hidden: Tensor, logits: Tensor) -> Frame:
        return self.eager.recall(lanes, plan, hidden, logits)

    def redraw(self, slot: int, row: int, legal: bytes) -> int:
        return self.eager.redraw(slot, row, legal)

    def amend(self, slot: int, kept: int, token: int | None = None) -> LaneRecord:
        return self.eager.amend(slot, kept, token)

    def wait(self) -> None:
        self.eager.wait()


def late(desk: Desk) -> Desk:
    """The same desk, with two rounds under way."""
    own = desk.engine.executor
    assert isinstance(own, EagerExecutor)
    executor: Executor = Late(own)
    executor.out = lambda: len(desk.engine.player.flights)  # type: ignore[attr-defined]
    engine = desk.engine
    engine.executor = engine.player.executor = engine.bookings.executor = executor
    return desk


@pytest.fixture
def desk(learned_desk: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Engines that prefill in small chunks."""
    monkeypatch.setattr("flarechat.engine.engine.PREFILL_CHUNK", 5)
    return learned_desk


def tokens_of(rounds: Sequence[Round]) -> list[int]:
    return list(chain.from_iterable(r.tokens for r in rounds))


def schedule(seed: int) -> list[object]:
    """Requests, steps and cancels, drawn."""
    draw = random.Random(seed)
    moves: list[object] = []
    for _ in range(draw.randint(4, 12)):
        kind = draw.random()
        if kind < 0.5:
            moves.append(
                {
                    "text": "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 8))),
                    "follows": draw.random() < 0.5,
                    "sampling": draw.choice(SAMPLINGS),
                    "max_tokens": draw.randint(1, 30),
                    "stop": draw.choice([(), (), (), ("e",), ("a", "th")]),
                    "speculation": Speculation(
                        draft_tokens=draw.randint(0, 7),
                        adaptive=draw.random() < 0.5,
                        history_drafts=draw.random() < 0.5,
                        mtp=draw.random() < 0.8,
                    ),
                }
            )
        else:
            moves.append("cancel" if kind < 0.6 else draw.randint(1, 9))
    return moves


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("seed", range(8))
def test_any_schedule_says_with_two_rounds_under_way_what_plain_decoding_says(
    desk: Make, seed: int, lanes: int
) -> None:
    together = late(desk(lanes=lanes))
    assert_played_as_alone(together, play(together, schedule(seed)), desk)


def test_rounds_are_launched_ahead_and_never_more_than_two(desk: Make) -> None:
    made = late(desk())
    finished, rounds = made.ask("hello", sampling=GREEDY, max_tokens=40, speculation=FIXED)
    plain, _ = desk().ask("hello", sampling=GREEDY, max_tokens=40, speculation=FIXED)
    executor = made.engine.executor
    assert isinstance(executor, Late)

    assert plain.text == finished.text
    assert 2 == executor.most
    # The budget ends the answer, and no round was launched that was not needed.
    assert len(rounds) == len(executor.plans)
    assert not made.engine.player.flights


@pytest.mark.parametrize("fields", [{"stop": ("never",)}, {"logprobs": 2}])
def test_what_the_host_judges_is_read_before_the_next_round(
    desk: Make, fields: dict[str, object]
) -> None:
    made = late(desk())
    made.ask("hello", sampling=GREEDY, max_tokens=30, speculation=MTP, **fields)

    assert 1 == made.engine.executor.most  # type: ignore[attr-defined]


def test_copies_are_looked_up_from_tokens_that_were_read(desk: Make) -> None:
    on = Speculation(adaptive=False)
    slow, quick = desk(), late(desk())
    for made in (slow, quick):
        for _ in range(2):
            made.ask("hello hello", sampling=GREEDY, max_tokens=60, speculation=on)
    executor = quick.engine.executor
    assert isinstance(executor, Late)
    out = {plan.drafting: set[int]() for plan in executor.plans}
    for plan, before in zip(executor.plans, executor.before, strict=True):
        out[plan.drafting].add(before)

    assert tokens_of(slow.rounds("r2")) == tokens_of(quick.rounds("r2"))
    # Copies that go on from copies are known ahead; with a chain behind them, none was.
    assert {"mtp": {0, 1}, "copies": {0, 1}, "both": {0}} == out
    assert 2 == executor.most
    assert sum(r.accepted for r in quick.rounds("r2")) > 40


def test_a_slot_is_given_away_only_when_every_round_that_names_it_was_read(desk: Make) -> None:
    texts, fields = ("hello", "the"), {"sampling": GREEDY, "max_tokens": 60, "speculation": FIXED}
    eos = (tokens_of(desk().ask("hello", **fields)[1])[7],)

    def ending(made: Desk) -> Desk:
        made.engine.language = replace(made.engine.language, eos=eos)
        return made

    made = late(ending(desk(lanes=1)))
    first, second = (made.request(text, **fields) for text in texts)
    made.engine.submit(first)
    made.engine.submit(second)
    named: list[set[str]] = []

    def told(event: Event) -> None:
        if isinstance(event, (Started, Finished)):
            flights = made.engine.player.flights
            named.append({a.request.id for flight in flights for a in flight.answers})
        made.events.append(event)

    made.engine.emit = told
    made.run()
    alone = [ending(desk()).ask(text, **fields)[0].text for text in texts]

    assert "stop" == made.finished(first.id).reason
    assert [set(), {first.id}, set()] == named[:3]
    assert alone == [made.finished(r.id).text for r in (first, second)]


def test_a_round_sees_as_many_rows_as_those_under_way_may_have_written(
    desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flarechat.engine.plan.EXTENT_STEP", 2)
    made = late(desk())
    finished, rounds = made.ask("hello", sampling=GREEDY, max_tokens=60, speculation=FIXED)
    plain, _ = desk().ask("hello", sampling=GREEDY, max_tokens=60, speculation=FIXED)
    executor = made.engine.executor
    assert isinstance(executor, Late)

    assert plain.text == finished.text
    for r, plan in zip(rounds, executor.plans, strict=False):
        assert r.context + r.width <= plan.extent


def test_a_lane_that_ended_in_the_round_before_leaves_its_slot_untouched(desk: Make) -> None:
    made = late(desk(lanes=2))
    requests = [
        made.request(text, sampling=GREEDY, max_tokens=n, speculation=FIXED)
        for text, n in (("hello", 6), ("the", 30))
    ]
    for request in requests:
        made.engine.submit(request)
    made.run()
    executor = made.engine.executor
    assert isinstance(executor, Late)

    assert 2 == executor.most
    for slot in range(2):
        assert_holds(made.engine, slot, desk().engine)
    for request in requests:
        alone, _ = desk().ask(
            request.messages[0].content, sampling=GREEDY, max_tokens=request.max_tokens,
            speculation=FIXED,
        )  # fmt: skip
        assert alone.text == made.finished(request.id).text


def test_a_cancel_takes_in_the_rounds_under_way_and_ends_within_them(desk: Make) -> None:
    made = late(desk())
    request = made.request("hello", sampling=GREEDY, max_tokens=200, speculation=FIXED)
    made.engine.submit(request)
    for _ in range(8):
        made.engine.step()
    out = len(made.engine.player.flights)
    rounds = len(made.rounds(request.id))
    made.engine.cancel(request.id)
    finished = made.finished(request.id)

    assert 1 == out
    assert "cancelled" == finished.reason
    assert rounds + out == len(made.rounds(request.id)) == finished.speculation.rounds
    assert not made.engine.busy
    assert_holds(made.engine, 0, desk().engine)


def test_a_launch_that_fails_ends_its_requests_after_the_round_before_is_read(
    desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = late(desk())
    request = made.request("hello", sampling=GREEDY, max_tokens=200, speculation=FIXED)
    made.engine.submit(request)
    for _ in range(8):
        made.engine.step()
    rounds = len(made.rounds(request.id))

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(made.engine.executor, "play", fail)
        made.engine.step()

    assert "error" == made.finished(request.id).reason
    assert rounds + 1 == len(made.rounds(request.id))
    assert not made.engine.busy
    assert "length" == made.ask("hello", sampling=GREEDY, max_tokens=9)[0].reason


def test_a_frame_that_fails_ends_its_requests_and_the_next_round_is_not_theirs(
    desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = late(desk(lanes=2))
    request = made.request("hello", sampling=GREEDY, max_tokens=200, speculation=FIXED)
    made.engine.submit(request)
    for _ in range(8):
        made.engine.step()
    rounds = len(made.rounds(request.id))
    broken = made.engine.player.flights[0].frame

    def failing(frame: Frame) -> object:
        if frame is broken:
            raise RuntimeError("illegal address")
        return original(frame)

    from flarechat.engine import player

    original = player.read
    monkeypatch.setattr(player, "read", failing)
    other = made.request("the", sampling=GREEDY, max_tokens=9, speculation=FIXED)
    made.engine.submit(other)
    made.run()

    assert "error" == made.finished(request.id).reason
    assert rounds == len(made.rounds(request.id))
    assert desk().ask("the", sampling=GREEDY, max_tokens=9)[0].text == made.finished(other.id).text


def test_times_of_rounds_that_overlap_add_up_to_the_clock(desk: Make) -> None:
    from time import perf_counter

    made = late(desk())
    request = made.request("hello", sampling=GREEDY, max_tokens=60, speculation=FIXED)
    began = perf_counter()
    finished, rounds = made.answer(request)
    elapsed = 1e3 * (perf_counter() - began)

    assert sum(r.ms for r in rounds) <= elapsed
    assert finished.timings.decode_ms <= elapsed


def test_a_rounds_time_is_its_own_though_a_prompt_comes_between(
    desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, now = late(desk(lanes=2)), [0.0]

    def tick() -> float:
        now[0] += 1e-3
        return now[0]

    monkeypatch.setattr("flarechat.engine.player.time", SimpleNamespace(perf_counter=tick))
    executor = made.engine.executor
    encode, prefill = made.engine.language.encode_chat, executor.prefill

    def slow(plain: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            now[0] += 100.0
            return plain(*args)

        return call

    language = replace(made.engine.language, encode_chat=slow(encode))
    monkeypatch.setattr(made.engine, "language", language)
    monkeypatch.setattr(executor, "prefill", slow(prefill))
    first = made.request("hello", sampling=GREEDY, max_tokens=60, speculation=FIXED)
    made.engine.submit(first)
    for _ in range(8):
        made.engine.step()
    second = made.request("hello the in the", sampling=GREEDY, max_tokens=9, speculation=FIXED)
    assert 1 == len(made.engine.player.flights)
    made.engine.submit(second)
    made.run()

    assert 2 == executor.most  # type: ignore[attr-defined]
    assert 2 == max(r.lanes for r in made.rounds(first.id))
    assert max(r.ms for request in (first, second) for r in made.rounds(request.id)) < 1e3


def test_a_lane_that_cannot_be_read_ends_and_those_beside_it_go_on(
    desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = late(desk(lanes=2))
    texts = ("hello", "the")
    asked = [made.request(t, sampling=GREEDY, max_tokens=30, speculation=FIXED) for t in texts]
    for request in asked:
        made.engine.submit(request)
    while len(made.engine.playing) < 2:
        made.engine.step()
    assert made.engine.player.flights
    (broken,) = [a for a in made.engine.playing if a.request.id == asked[0].id]

    def fail(*_: object) -> None:
        raise ValueError("torn")

    monkeypatch.setattr(broken, "take", fail)
    made.run()

    assert ["error", "length"] == [made.finished(request.id).reason for request in asked]
    alone, _ = desk().answer(replace(asked[1], id="alone"))
    assert alone.text == made.finished(asked[1].id).text
    for slot in range(2):
        assert_holds(made.engine, slot, desk().engine)
