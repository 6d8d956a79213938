"""Crowds of requests of every kind, in any order, and things that fail between them.

Slots are few and short, the width of a round is scarce, and prompts are token numbers, so that a
prompt of one token and a full context come up. Log-probabilities, stop strings, fans, cancels and
failures of a copy, a chunk, a launch or a reading meet in one batch. An answer that was not
cancelled and did not fail is what an engine that has seen nothing answers without drafts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import pytest

from flarechat.engine.answer import Answer
from flarechat.protocol import Message, Request, Sampling, Speculation
from tests.engine.captures import captured
from tests.engine.conftest import Desk
from tests.engine.test_flights import late
from tests.engine.test_schedules import assert_holds

Make = Callable[..., Desk]
CONTEXT = 48
SAMPLINGS = (
    Sampling(temperature=0),
    Sampling(temperature=0.9, seed=1, top_k=20, repetition_penalty=1.2),
    Sampling(seed=2, top_p=0.9, presence_penalty=0.3),
)
FAILING = ("copy", "prefill", "play", "take")


def tokens_of(messages: Sequence[Message], thinking: bool = True) -> list[int]:
    return [int(word) for word in messages[0].content.split()]


@pytest.fixture
def desk(learned_desk: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Engines with short slots that prefill in small chunks, asked in token numbers."""
    monkeypatch.setattr("flarechat.engine.engine.PREFILL_CHUNK", 5)

    def make(**boot: object) -> Desk:
        made = learned_desk(context=CONTEXT, **boot)
        made.engine.language = replace(made.engine.language, encode_chat=tokens_of)
        return made

    return make


def drawn(made: Desk, draw: random.Random, asked: list[Request]) -> Request:
    """A prompt of one token, one that fills the context, one asked before, or one that shares a
    beginning with it; any settings."""
    words = asked[-1].messages[0].content.split() if asked else []
    kind = draw.random()
    if kind < 0.5 or not words:
        words = [str(draw.randrange(3, 60)) for _ in range(draw.choice((1, 2, 7, 20, CONTEXT - 1)))]
    elif kind < 0.75:
        words = [*words[: draw.randrange(1, len(words) + 1)], "7", "9"][: CONTEXT - 1]
    sampling = draw.choice(SAMPLINGS)
    if sampling.temperature:
        sampling = replace(sampling, seed=draw.randrange(99))
    return made.request(
        " ".join(words), sampling=sampling, max_tokens=draw.choice((1, 2, 12, 100)),
        stop=draw.choice([(), (), ("e",), ("a", "th")]), logprobs=draw.choice((0, 0, 0, 2)),
        speculation=Speculation(
            draft_tokens=draw.choice((0, 3, 7)), adaptive=draw.random() < 0.5,
            history_drafts=draw.random() < 0.5, mtp=draw.random() < 0.7,
        ),
    )  # fmt: skip


class Trouble:
    """Lets one call of whatever may fail do so, once it is `due`."""

    def __init__(self, made: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due = ""
        executor = made.engine.executor
        for where, name in ((executor, n) for n in FAILING if n != "take"):
            monkeypatch.setattr(where, name, self.failing(name, getattr(where, name)))
        monkeypatch.setattr(Answer, "take", self.failing("take", Answer.take))

    def failing(self, name: str, plain: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            if self.due == name:
                self.due = ""
                raise RuntimeError(f"planted in {name}")
            return plain(*args)

        return call


def crowd(made: Desk, draw: random.Random, trouble: Trouble) -> list[Request]:
    """Requests, fans, cancels, failures and steps, drawn; returns the requests in order."""
    engine, asked = made.engine, list[Request]()
    for _ in range(draw.randint(8, 20)):
        kind = draw.random()
        if kind < 0.4 or not asked:
            asked.append(drawn(made, draw, asked))
            engine.submit(asked[-1])
        elif kind < 0.5:
            for seed in range(draw.randint(1, 3)):
                asked.append(
                    replace(asked[-1], id=f"{asked[-1].id}+", sampling=Sampling(seed=seed))
                )
                engine.submit(asked[-1])
        elif kind < 0.6:
            engine.cancel(draw.choice(asked).id)
        elif kind < 0.7:
            trouble.due = draw.choice(FAILING)
        for _ in range(draw.randint(0, 6)):
            if engine.busy:
                engine.step()
    trouble.due = ""
    made.run()
    return asked


def assert_alone(together: Desk, request: Request, plain: Desk) -> None:
    """A request's answer beside the one given to it alone and without drafts."""
    finished, rounds = together.finished(request.id), together.rounds(request.id)
    expected, alone = plain.answer(
        replace(request, id="alone", speculation=Speculation(draft_tokens=0))
    )
    said, whole = (list(chain.from_iterable(r.tokens for r in each)) for each in (rounds, alone))
    total = finished.speculation

    assert total.emitted == total.accepted + total.rounds - total.clipped == len(said)
    assert len(said) == finished.usage.completion_tokens
    assert whole[: len(said)] == said
    if finished.reason not in ("cancelled", "error"):
        assert (expected.text, expected.reason) == (finished.text, finished.reason)
        assert expected.stop == finished.stop
    if finished.reason == "error":
        assert finished.error is not None and "planted" in finished.error.message
    ours, theirs = (list(chain.from_iterable(r.logprobs for r in each)) for each in (rounds, alone))
    assert (len(said) if request.logprobs else 0) == len(ours)
    for one, other in zip(ours, theirs, strict=False):
        assert one.id == other.id
        assert pytest.approx(other.logprob, abs=1e-3) == one.logprob
        assert [t.id for t in other.top] == [t.id for t in one.top]


KINDS = {"eager": lambda d, n: d, "late": lambda d, n: late(d),
         "captured": lambda d, n: captured(d, capacity=n)}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "seed"),
    [(k, s) for k, n in (("eager", 4), ("late", 14), ("captured", 6)) for s in range(n)],
)
def test_whatever_meets_in_a_batch_is_answered_as_alone(
    desk: Make, monkeypatch: pytest.MonkeyPatch, seed: int, kind: str
) -> None:
    draw = random.Random(seed)
    lanes = draw.choice((2, 4))
    capacity = draw.choice((lanes, lanes + 3, 4 * lanes, 128))
    made = KINDS[kind](desk(lanes=lanes, speculative_token_capacity=capacity), capacity)
    with monkeypatch.context() as patch:
        asked = crowd(made, draw, Trouble(made, patch))
    assert not made.engine.player.flights
    for request in asked:
        assert_alone(made, request, desk(mtp=False))
    for slot in range(lanes):
        assert_holds(made.engine, slot, desk().engine)
