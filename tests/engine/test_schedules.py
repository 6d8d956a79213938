"""Any schedule of requests, cancels and lanes says what plain decoding says, request by request.

The reference answers each request alone, on a fresh engine without a draft head, one token a
round. Acceptance is by match throughout, so the tokens must be equal, whatever was drafted,
restored or played beside; and what a slot is said to hold in the end must be there, the draft
head's rows with it. Requests with MTP and without follow one another in the same slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flarechat.engine.drafters.blended import BlendedDrafter
from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.engine import Engine
from flarechat.engine.plan import Plan
from flarechat.engine.slot import Lanes
from flarechat.protocol import Finished, Message, Request, Round, Sampling, Speculation
from tests.engine.conftest import Desk

Make = Callable[..., Desk]
PIECES = ("hello", "the", " a", "in", "l", "x y", "hello the", "\n")
SAMPLINGS = (
    Sampling(temperature=0),
    Sampling(temperature=0.9, seed=1, top_k=20, repetition_penalty=1.2),
    Sampling(seed=2, top_p=0.9, presence_penalty=0.3),
)

requests = st.fixed_dictionaries(
    {
        "text": st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join),
        "follows": st.booleans(),
        "sampling": st.sampled_from(SAMPLINGS),
        "max_tokens": st.integers(1, 30),
        "stop": st.sampled_from([(), (), ("e",), ("a", "th")]),
        "speculation": st.builds(
            Speculation,
            draft_tokens=st.integers(0, 7),
            adaptive=st.booleans(),
            history_drafts=st.sampled_from([True, True, False]),
            mtp=st.sampled_from([True, True, False]),
        ),
    }
)
moves = st.lists(
    st.one_of(
        requests,
        st.integers(1, 12),  # so many steps of the engine
        st.just("cancel"),  # the newest request
    ),
    min_size=3,
    max_size=14,
)


def play(desk: Desk, moves: list[object]) -> list[Request]:
    """Play the moves to the end; returns the requests in order."""
    asked: list[Request] = []
    for move in moves:
        if isinstance(move, dict):
            asked.append(request_of(desk, move, asked))
            desk.engine.submit(asked[-1])
        elif move == "cancel" and asked:
            desk.engine.cancel(asked[-1].id)
        elif isinstance(move, int):
            for _ in range(move):
                if desk.engine.busy:
                    desk.engine.step()
    desk.run()
    return asked


def request_of(desk: Desk, move: dict[str, object], asked: list[Request]) -> Request:
    """The request of a move; one that follows goes on with the chat of the one before it."""
    fields = dict(move)
    text, follows = str(fields.pop("text")), fields.pop("follows")
    messages: tuple[Message, ...] = (Message(role="user", content=text),)
    if follows and asked:
        ended = [e for e in desk.of(asked[-1].id) if isinstance(e, Finished) and e.text]
        said = [Message(role="assistant", content=e.text) for e in ended]
        messages = (*asked[-1].messages, *said, *messages)
    return Request(id=f"q{len(asked)}", messages=messages, **fields)  # type: ignore[arg-type]


@pytest.fixture
def desk(learned_desk: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Engines that prefill in small chunks."""
    monkeypatch.setattr("flarechat.engine.engine.PREFILL_CHUNK", 5)
    return learned_desk


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(moves=moves, lanes=st.sampled_from([1, 2, 4]))
def test_every_schedule_says_what_plain_decoding_says(
    desk: Make, moves: list[object], lanes: int
) -> None:
    together = desk(lanes=lanes)
    assert_played_as_alone(together, play(together, moves), desk)


def assert_played_as_alone(together: Desk, asked: Sequence[Request], make: Make) -> None:
    """Requests that were played together said what each says alone, and left what it leaves."""
    for request in asked:
        assert_says_what_plain_decoding_says(together, request, make)
    fresh = make().engine
    for slot in range(together.engine.pool.slots):
        assert_holds(together.engine, slot, fresh)


ALONE: dict[Request, tuple[Finished, list[Round]]] = {}


def alone(make: Make, request: Request) -> tuple[Finished, list[Round]]:
    """What the softened tiny model answers to a request on a fresh engine without drafts and a
    head; it is asked the same question once."""
    asked = Request(
        id="alone",
        messages=request.messages,
        sampling=request.sampling,
        max_tokens=request.max_tokens,
        stop=request.stop,
        speculation=Speculation(draft_tokens=0),
    )
    if asked not in ALONE:
        ALONE[asked] = make(mtp=False).answer(asked)
    return ALONE[asked]


def assert_says_what_plain_decoding_says(together: Desk, request: Request, make: Make) -> None:
    """Text, tokens and totals of a played request, beside its answer alone."""
    by_itself, alone_rounds = alone(make, request)
    finished, rounds = together.finished(request.id), together.rounds(request.id)
    said = list(chain.from_iterable(r.tokens for r in rounds))
    expected = list(chain.from_iterable(r.tokens for r in alone_rounds))
    total, how = finished.speculation, request.speculation

    assert total.emitted == total.accepted + total.rounds - total.clipped == len(said)
    assert len(said) == finished.usage.completion_tokens
    assert expected[: len(said)] == said
    if finished.reason != "cancelled":
        assert (by_itself.text, by_itself.reason) == (finished.text, finished.reason)
        assert by_itself.error == finished.error
    for r in rounds:
        assert r.offered == len(r.draft_sources) <= how.draft_tokens
        assert how.learned or "mtp" not in r.draft_sources
        assert how.copies or {"mtp"} >= set(r.draft_sources)


def assert_holds(engine: Engine, slot: int, fresh: Engine) -> None:
    """The rows a slot is said to hold are those of prefilling the same tokens afresh.

    A draft head's rows that are not kept up are made when a request with MTP takes the slot.
    """
    tokens = engine.residents.held(slot)
    if not tokens:
        return
    text, count = [*tokens, 0], len(tokens)
    fresh.pool.open(0, text, sampling=Sampling(), seed=0, match=True, budget=1, eos=())
    fresh.drafter.open(0, "fresh", text, restored=0, history=False, mtp=True)
    plan = Plan(count - 1, count)
    fresh.executor.prefill(Lanes(fresh.pool, (0,)), torch.tensor([tokens]), plan)
    ours, theirs = learned_of(engine), learned_of(fresh)
    assert_rows(ours.hidden.rows[slot, :count], theirs.hidden.rows[0, :count])
    kept = min(ours.ready[slot], count - 1)
    assert_same_rows(ours.cache.tensors(), slot, theirs.cache.tensors(), kept)
    engine.drafter.open(slot, "next", text, restored=count, history=False, mtp=True)
    assert_same_rows(ours.cache.tensors(), slot, theirs.cache.tensors(), count - 1)
    target, reference = engine.executor.target, fresh.executor.target  # type: ignore[attr-defined]
    assert_same_rows(target.kv.tensors(), slot, reference.kv.tensors(), count)


def learned_of(engine: Engine) -> MtpDrafter:
    assert isinstance(engine.drafter, BlendedDrafter)
    assert isinstance(engine.drafter.learned, MtpDrafter)
    return engine.drafter.learned


def assert_same_rows(
    ours: dict[str, torch.Tensor], slot: int, theirs: dict[str, torch.Tensor], rows: int
) -> None:
    """The first rows of a slot's caches [S, H, rows, D] are those of slot 0 in the other's."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert_rows(tensor[slot, :, :rows], theirs[name][0, :, :rows])


def assert_rows(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3)


def test_mtp_after_a_turn_without_it_drafts_from_rows_that_are_caught_up(desk: Make) -> None:
    off, on = (Speculation(mtp=mtp, history_drafts=False, adaptive=False) for mtp in (False, True))
    made, asked = desk(), Message(role="user", content="hello the")
    first, _ = made.answer(
        Request(id="a", messages=(asked,), sampling=SAMPLINGS[1], speculation=off, max_tokens=20)
    )
    assert min(learned_of(made.engine).ready) == 0
    turn = (asked, Message(role="assistant", content=first.text), asked)
    request = Request(id="b", messages=turn, sampling=SAMPLINGS[0], speculation=on, max_tokens=20)
    second, rounds = made.answer(request)
    cold, cold_rounds = desk().answer(request)

    assert second.usage.restored_tokens > 10 and 0 == cold.usage.restored_tokens
    assert cold.text == second.text
    assert [r.accepted for r in cold_rounds] == [r.accepted for r in rounds]
    assert second.speculation.accepted > 0
    assert_holds(made.engine, 0, desk().engine)
