"""Bridge, late engine and pace, without a screen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from flarechat.config import Settings
from flarechat.errors import ModelError, UsageError
from flarechat.protocol import ErrorInfo, Event, Failed, Finished, Loading, Ready, Request
from flarechat.ui import slash
from flarechat.ui.beat import Pace
from flarechat.ui.bridge import Bridge
from flarechat.ui.opening import LateEngine, Progress
from tests.fakes import ScriptedEngine, words


def started(engine: ScriptedEngine) -> Bridge:
    bridge = Bridge(engine, Settings())
    bridge.start()
    bridge.pump()
    return bridge


def drained(engine: LateEngine, enough: Callable[[list[Event]], bool]) -> list[Event]:
    """The events until `enough` of them came."""
    events: list[Event] = []
    end = time.monotonic() + 10
    while not enough(events):
        assert time.monotonic() < end, events
        events += engine.wait(0.01)
    return events


def test_a_message_sent_before_the_model_is_ready_is_answered_when_it_is() -> None:
    engine = ScriptedEngine([words("late answer")])
    bridge = Bridge(engine, Settings())
    turns = bridge.send("early")
    waiting = list(engine.requests)
    bridge.start()
    for _ in range(5):
        bridge.pump()

    assert ["user", "assistant"] == [turn.role for turn in turns]
    assert [] == waiting
    assert "late answer" == bridge.conversation.turns[-1].text


def test_events_of_a_chat_that_was_left_touch_nothing() -> None:
    bridge = started(ScriptedEngine([words("a b c d e"), words("fresh")]))
    bridge.send("one")
    bridge.pump()
    bridge.new()
    bridge.send("two")
    beat = bridge.pump()

    assert [] == beat.touched
    assert ("PREFILL", None) == (bridge.state, bridge.last)
    while bridge.busy:
        bridge.pump()
    assert ["two", "fresh"] == [turn.text for turn in bridge.conversation.turns]


def test_a_chat_keeps_the_figures_of_its_last_turn_when_resumed() -> None:
    bridge = started(ScriptedEngine([words("one two")]))
    bridge.send("question")
    while bridge.busy:
        bridge.pump()
    name = bridge.conversation.name
    bridge.new()
    emptied = bridge.last
    bridge.resume(name)

    assert emptied is None
    assert bridge.last is not None
    assert 2 == bridge.last.usage.completion_tokens
    assert bridge.used == bridge.last.usage.context


def test_the_pace_slows_after_costly_beats_and_recovers() -> None:
    pace = Pace(0.1)
    slowed = [pace.after(0.2) for _ in range(4)]
    recovered = [pace.after(0.0) for _ in range(3)]

    assert [0.2, 0.4, 0.5, 0.5] == slowed
    assert [0.25, 0.125, 0.1] == recovered


def test_a_late_engine_reports_the_pull_and_hands_requests_on_once_open() -> None:
    inner = ScriptedEngine([words("hello")])

    def opener(progress: Progress) -> ScriptedEngine:
        progress("download", 50, 100)
        inner.start()
        return inner

    engine = LateEngine(opener)
    engine.submit(Request(id="r", messages=()))
    engine.start()
    events = drained(engine, lambda seen: any(isinstance(e, Ready) for e in seen))
    for _ in range(100):
        if inner.requests:
            break
        time.sleep(0.01)
    engine.close()

    assert Loading(stage="download", done=50, total=100) in events
    assert ["r"] == [request.id for request in inner.requests]
    assert inner.closed


@pytest.mark.parametrize("error", [ModelError("No model 'x'.", "Pull it."), OSError("no fork")])
def test_an_opener_that_fails_becomes_an_event_and_may_be_started_again(error: Exception) -> None:
    attempts: list[int] = []

    def opener(progress: Progress) -> ScriptedEngine:
        attempts.append(1)
        if len(attempts) == 1:
            raise error
        inner = ScriptedEngine()
        inner.start()
        return inner

    engine = LateEngine(opener)
    engine.start()
    failed = drained(engine, bool)
    engine.start()
    ready = drained(engine, bool)
    engine.close()

    assert isinstance(failed[0], Failed)
    assert str(error).split(".")[0] in failed[0].error.message
    assert isinstance(ready[0], Ready)


def test_an_engine_closed_while_it_opens_is_closed_when_it_has() -> None:
    inner = ScriptedEngine()

    def opener(progress: Progress) -> ScriptedEngine:
        time.sleep(0.1)
        return inner

    engine = LateEngine(opener)
    engine.start()
    engine.close()
    for _ in range(200):
        if inner.closed:
            break
        time.sleep(0.01)

    assert inner.closed


def test_an_engine_opened_ahead_is_the_one_that_start_finds() -> None:
    opened: list[ScriptedEngine] = []

    def opener(progress: Progress) -> ScriptedEngine:
        opened.append(ScriptedEngine())
        opened[-1].start()
        return opened[-1]

    engine = LateEngine(opener)
    engine.open_ahead()
    engine.start()
    drained(engine, bool)
    once = len(opened)
    engine.start()
    drained(engine, bool)
    engine.close()

    assert [1, 2] == [once, len(opened)]


def test_what_closing_a_chat_had_to_say_is_shown_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bridge = started(ScriptedEngine())
    left = bridge.conversation
    monkeypatch.setattr(left, "close", lambda: left.notices.append("closed unsaved"))
    bridge.new()

    assert ["closed unsaved"] == bridge.pump().remarks


def test_a_request_cancelled_while_the_engine_opens_ends_and_never_reaches_it() -> None:
    inner, may_open = ScriptedEngine(), threading.Event()

    def opener(progress: Progress) -> ScriptedEngine:
        may_open.wait(10)
        inner.start()
        return inner

    engine = LateEngine(opener)
    engine.start()
    engine.submit(Request(id="r", messages=()))
    engine.cancel("r")
    ended = engine.drain()
    may_open.set()
    drained(engine, lambda seen: any(isinstance(e, Ready) for e in seen))
    engine.close()

    assert [("r", "cancelled")] == [(e.request, e.reason) for e in ended if isinstance(e, Finished)]
    assert [] == inner.requests


def test_requests_that_wait_for_an_engine_that_never_opens_end() -> None:
    inner, opened = ScriptedEngine(), threading.Event()
    attempts: list[int] = []

    def opener(progress: Progress) -> ScriptedEngine:
        attempts.append(1)
        if len(attempts) < 3:
            opened.wait(10)
            raise ModelError("No model 'x'.", "Pull it.")
        inner.start()
        return inner

    engine = LateEngine(opener)
    engine.start()
    engine.submit(Request(id="a", messages=()))
    engine.start()
    restarted = engine.drain()
    engine.submit(Request(id="b", messages=()))
    opened.set()
    failed = drained(engine, lambda seen: any(isinstance(e, Finished) for e in seen))
    engine.start()
    drained(engine, lambda seen: any(isinstance(e, Ready) for e in seen))
    engine.close()

    assert [Finished.unplayed("a", "cancelled")] == restarted
    assert Finished.unplayed("b", "cancelled") == failed[-1]
    assert [] == inner.requests


def test_texts_given_back_in_one_look_are_all_given_back() -> None:
    engine = ScriptedEngine()
    bridge = started(engine)
    bridge.send("refused")
    bridge.send("queued")
    request = engine._live.popleft().request.id
    error = ErrorInfo.of(ModelError("Too long.", "Shorten it."))
    engine._events.append(Finished.unplayed(request, "error", error))
    engine._events.append(Failed(error=error))
    beat = bridge.pump()

    assert "refused\n\nqueued" == beat.returned


def test_slash_lines_are_commands_literals_or_refused() -> None:
    assert slash.Invocation("resume", "old chat") == slash.parse("/resume old chat")
    assert slash.Invocation("help") == slash.parse("/?")
    assert slash.Invocation("bye") == slash.parse("/exit")
    assert "/usr" == slash.parse("//usr")
    assert "no / first" == slash.parse("no / first")
    with pytest.raises(UsageError, match=r"/sesions is not a command\. Did you mean /sessions"):
        slash.parse("/sesions")
