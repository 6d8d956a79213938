"""The vocabulary on the wire: what goes out comes back, and a newer peer is understood."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarechat.errors import EngineError, FlarechatError, PromptTooLongError, SettingsError
from flarechat.protocol import (
    Boot,
    Cancel,
    Constraint,
    ConstraintResult,
    Delta,
    ErrorInfo,
    Failed,
    Finished,
    Loading,
    Message,
    Progress,
    Ready,
    Request,
    Round,
    Sampling,
    Shutdown,
    Speculation,
    Spell,
    Spelled,
    Started,
    Submit,
    TokenLogprob,
    decode,
    encode,
    to_dict,
)
from tests.fakes import MODEL, Play, ScriptedEngine, words

REQUEST = Request(
    id="r1",
    messages=(Message(role="system", content="Be brief."), Message(role="user", content="Hi é")),
    sampling=Sampling(seed=3, temperature=0.0),
    speculation=Speculation(draft_tokens=3, acceptance="match"),
    stop=("###",),
    logprobs=2,
    controller={"means": [1.0, 2.0], "plan": {"k": 3}},
)


def played() -> list[Any]:
    engine = ScriptedEngine([[Play(("a", "b"), width=3, source="history"), *words("c d")]])
    engine.start()
    engine.submit(REQUEST)
    return [event for _ in range(6) for event in engine.drain()]


def logprobs(text: str) -> TokenLogprob:
    other = TokenLogprob(id=2, token="x", logprob=-3.0)
    return TokenLogprob(id=1, token=text, logprob=-0.5, top=(other,))


messages = st.one_of(
    st.builds(Boot, model=st.text(), cache=st.text(), context=st.none() | st.integers()),
    st.builds(Cancel, request=st.text()),
    st.builds(Delta, request=st.text(), text=st.text(), channel=st.text()),
    st.builds(Progress, request=st.text(), done=st.integers(), total=st.integers()),
    st.builds(Loading, stage=st.text(), done=st.integers(), total=st.integers()),
    st.builds(
        Failed, error=st.builds(ErrorInfo, kind=st.text(), message=st.text(), hint=st.text())
    ),
    st.builds(Spell, tokens=st.lists(st.integers()).map(tuple)),
    st.builds(
        Spelled, tokens=st.lists(st.integers()).map(tuple), texts=st.lists(st.text()).map(tuple)
    ),
    st.just(Shutdown()),
    st.just(Ready(model=MODEL, lanes=2, load_ms=1.5)),
    st.just(Submit(request=REQUEST)),
)


@given(messages)
def test_a_message_survives_the_wire(message: Any) -> None:
    line = encode(message)

    assert message == decode(line)
    assert "\n" not in line
    assert line.isascii()


def test_every_event_of_a_turn_survives_the_wire() -> None:
    events = played()

    assert {"Ready", "Started", "Progress", "Round", "Delta", "Finished"} == {
        type(event).__name__ for event in events
    }
    assert events == [decode(encode(event)) for event in events]


def test_nested_log_probabilities_survive_the_wire() -> None:
    played_round = next(event for event in played() if isinstance(event, Round))
    fields = {**to_dict(played_round), "logprobs": [to_dict(logprobs("é"))]}

    got = decode(json.dumps(fields))

    assert (logprobs("é"),) == got.logprobs


def test_fields_of_a_newer_peer_are_ignored() -> None:
    line = json.dumps({"event": "delta", "request": "r", "text": "x", "mood": "good"})

    assert Delta(request="r", text="x") == decode(line)


def test_messages_of_an_older_peer_are_understood() -> None:
    """Without what answers save of their tokens."""
    [started] = [event for event in played() if isinstance(event, Started)]
    before = to_dict(started)
    for name in ("continued", "said", "thought"):
        del before[name]
    asked = to_dict(Submit(request=REQUEST))
    for message in asked["request"]["messages"]:
        del message["tokens"], message["model"]

    assert started == decode(json.dumps(before))
    assert Submit(request=REQUEST) == decode(json.dumps(asked))


def test_the_tokens_of_a_message_survive_the_wire() -> None:
    said = Message(role="assistant", content="é", tokens=(5, 2**31, 0), model="f" * 64)
    sent = Submit(request=dataclasses.replace(REQUEST, messages=(*REQUEST.messages, said)))

    assert sent == decode(encode(sent))


def test_a_constraint_and_what_became_of_it_survive_the_wire() -> None:
    constraint = Constraint(kind="regex", text=r"é\d+")
    sent = Submit(request=dataclasses.replace(REQUEST, constraint=constraint))
    result = ConstraintResult(kind="regex", satisfied=False, forced=3, error="It was cut off.")
    ended = dataclasses.replace(Finished.unplayed("r1", "length"), constraint=result)

    assert (sent, ended) == (decode(encode(sent)), decode(encode(ended)))


def test_an_unknown_message_is_refused_by_name() -> None:
    with pytest.raises(FlarechatError, match="unknown message 'song'"):
        decode('{"event":"song"}')


def test_an_error_crosses_as_its_own_class() -> None:
    error = PromptTooLongError("Too long.", "Shorten it.")

    back = ErrorInfo.of(error).exception()

    assert (PromptTooLongError, "Too long.", "Shorten it.") == (
        type(back),
        back.message,
        back.hint,
    )
    assert FlarechatError is type(ErrorInfo(kind="Elsewhere", message="?").exception())
    assert isinstance(EngineError("x"), FlarechatError)


def test_a_request_refuses_what_no_engine_could_do() -> None:
    with pytest.raises(SettingsError, match="--max-tokens 0"):
        Request(id="r", messages=(), max_tokens=0)
    with pytest.raises(SettingsError, match="--stop"):
        Request(id="r", messages=(), stop=("",))


def test_a_range_is_told_with_all_its_digits() -> None:
    with pytest.raises(SettingsError) as caught:
        Sampling(top_k=3_000_000_000)

    assert "--top-k 3000000000 is out of range." == caught.value.message
    assert "Give a value in [0, 2147483647]." == caught.value.hint


def test_the_finish_record_agrees_with_its_rounds() -> None:
    events = played()
    rounds = [event for event in events if isinstance(event, Round)]
    [finished] = [event for event in events if isinstance(event, Finished)]
    totals = finished.speculation

    assert sum(r.emitted for r in rounds) == totals.emitted == finished.usage.completion_tokens
    assert totals.emitted == totals.accepted + totals.rounds - totals.clipped
    assert totals.offered == sum(s.offered for s in totals.by_source.values())
    assert totals.emitted == sum(s.emitted for s in totals.by_source.values())
    assert totals.accepted == sum(d.accepted for d in totals.by_depth)
