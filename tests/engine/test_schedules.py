"""Any schedule of requests, cancels and lanes says what plain decoding says, request by request.

The reference answers each request alone, on a fresh engine, one token a round. Acceptance is by
match throughout, so the tokens must be equal, whatever was drafted, restored or played beside;
and what a slot is said to hold in the end must be there.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flarechat.engine.engine import Engine
from flarechat.engine.plan import Plan
from flarechat.engine.slot import Lanes
from flarechat.protocol import Finished, Message, Request, Sampling, Speculation
from tests.engine.conftest import Desk

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


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(moves=moves, lanes=st.sampled_from([1, 2, 4]))
def test_every_schedule_says_what_plain_decoding_says(
    desk: Callable[..., Desk], moves: list[object], lanes: int
) -> None:
    together = desk(lanes=lanes)
    for request in play(together, moves):
        plain = Request(
            id="alone",
            messages=request.messages,
            sampling=request.sampling,
            max_tokens=request.max_tokens,
            stop=request.stop,
            speculation=Speculation(draft_tokens=0),
        )
        alone, alone_rounds = desk().answer(plain)
        finished = together.finished(request.id)
        said = list(chain.from_iterable(r.tokens for r in together.rounds(request.id)))
        expected = list(chain.from_iterable(r.tokens for r in alone_rounds))
        total = finished.speculation

        assert total.emitted == total.accepted + total.rounds - total.clipped == len(said)
        assert len(said) == finished.usage.completion_tokens or finished.error is not None
        assert expected[: len(said)] == said
        if finished.reason != "cancelled":
            assert (alone.text, alone.reason) == (finished.text, finished.reason)
    for slot in range(lanes):
        assert_holds(together.engine, slot, desk().engine)


def assert_holds(engine: Engine, slot: int, fresh: Engine) -> None:
    """The rows a slot is said to hold are those of prefilling the same tokens afresh."""
    tokens = engine.residents.held(slot)
    if not tokens:
        return
    fresh.pool.open(0, [*tokens, 0], sampling=Sampling(), seed=0, match=True, budget=1, eos=())
    plan = Plan(len(tokens) - 1, len(tokens))
    fresh.executor.prefill(Lanes(fresh.pool, (0,)), torch.tensor([tokens]), plan)
    theirs = fresh.executor.target.kv.tensors()  # type: ignore[attr-defined]
    for name, ours in engine.executor.target.kv.tensors().items():  # type: ignore[attr-defined]
        held = slice(None, len(tokens))
        torch.testing.assert_close(
            ours[slot, :, held], theirs[name][0, :, held], atol=2e-4, rtol=1e-3
        )
