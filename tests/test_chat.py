"""A conversation: what is on the disk when, and what the engine is asked."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flarechat import chat, paths
from flarechat.chat import Conversation, Turn
from flarechat.config import Settings
from flarechat.errors import EngineError, PromptTooLongError, SessionError, UsageError
from flarechat.protocol import (
    Delta,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    Message,
    ModelInfo,
    Request,
    Sampling,
    Started,
)
from flarechat.sessions import store
from flarechat.sessions.session import Session
from tests.fakes import MODEL, ScriptedEngine, words

OTHER = dataclasses.replace(MODEL, name="other-2m", fingerprint="0" * 64)


def bound(
    engine: ScriptedEngine,
    settings: Settings | None = None,
    *,
    model: ModelInfo = MODEL,
    **kw: Any,
) -> Conversation:
    conversation = Conversation.new(engine, settings or Settings(), **kw)
    conversation.bind(model)
    return conversation


def resumed(
    engine: ScriptedEngine, name: str, settings: Settings | None = None, model: ModelInfo = MODEL
) -> Conversation:
    conversation = Conversation.resume(engine, settings or Settings(), name)
    conversation.bind(model)
    return conversation


def play(conversation: Conversation, engine: ScriptedEngine, text: str) -> Turn:
    turn = conversation.send(text)
    while conversation.live:
        for event in engine.drain():
            conversation.apply(event)
    return turn


def lines(name: str) -> list[dict[str, Any]]:
    path = paths.sessions_dir() / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def kinds(name: str) -> list[str]:
    return [line["type"] for line in lines(name)[1:]]


def test_an_answer_streams_into_the_live_turn() -> None:
    engine = ScriptedEngine([words("Hello there.")])
    conversation = bound(engine)

    live = conversation.send("Hi")
    assert (live, "streaming", "") == (conversation.live, live.status, live.text)
    for event in [*engine.drain(), *engine.drain()]:
        assert live is conversation.apply(event)

    assert "Hello" == live.text
    assert 1 == conversation.totals.rounds
    while conversation.live:
        for event in engine.drain():
            conversation.apply(event)
    assert ("Hello there.", "complete", "stop") == (live.text, live.status, live.reason)
    assert live.finished is not None
    assert ["user", "assistant"] == [turn.role for turn in conversation.turns]
    assert conversation.turns[0].id == live.parent
    conversation.close()


def test_the_users_turn_is_on_the_disk_before_the_engine_is_asked() -> None:
    seen: list[list[str]] = []

    class Watching(ScriptedEngine):
        def submit(self, request: Request) -> None:
            seen.append(kinds("hi"))
            super().submit(request)

    engine = Watching()
    conversation = bound(engine)
    conversation.send("Hi")
    conversation.close()

    assert [["user"]] == seen


def test_nothing_is_made_before_the_first_message() -> None:
    conversation = bound(ScriptedEngine())
    assert "" == conversation.name
    conversation.close()

    assert [] == os.listdir(paths.sessions_dir())


def test_without_saving_no_file_is_made() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine, saves=False)

    play(conversation, engine, "Hi")
    conversation.close()

    assert ("", False) == (conversation.name, conversation.unsaved)
    assert [] == os.listdir(paths.sessions_dir())


def test_the_first_line_says_what_began() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine, Settings(system="Be brief.", top_k=3))
    play(conversation, engine, "Hi")
    conversation.close()

    header = lines("hi")[0]

    assert ("flarechat-session", 1, "hi") == (header["format"], header["version"], header["name"])
    assert {"name": MODEL.name, "fingerprint": MODEL.fingerprint, "recipe": "llama"} == header[
        "model"
    ]
    assert MODEL.template_digest == header["template_digest"]
    assert (3, 0.2, 7) == (
        header["sampling"]["top_k"],
        header["sampling"]["temperature"],
        header["speculation"]["draft_tokens"],
    )
    assert "Be brief." == header["system"]


def test_the_end_of_a_turn_is_saved_with_its_figures() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine)
    turn = play(conversation, engine, "Hi")
    conversation.close()

    record = lines("hi")[-1]

    assert turn.finished is not None
    assert ("assistant", turn.id, turn.parent, "Hello there.") == (
        record["type"],
        record["id"],
        record["parent"],
        record["text"],
    )
    assert {"scripted": True} == record["controller"]
    assert MODEL.device_fingerprint == record["device_fingerprint"]
    assert turn.finished.usage.completion_tokens == record["usage"]["completion_tokens"]
    assert turn.finished.speculation.rounds == record["speculation"]["rounds"]
    assert "request" not in record


def test_the_end_of_a_turn_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    engine = ScriptedEngine()
    conversation = bound(engine)

    conversation.send("Hi")
    assert 0 == len(synced)
    while conversation.live:
        for event in engine.drain():
            conversation.apply(event)

    assert 1 == len(synced)
    conversation.close()


def test_pieces_are_saved_at_most_a_second_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(chat.time, "monotonic", lambda: now[0])
    engine = ScriptedEngine([words("one two three four")])
    conversation = bound(engine)
    conversation.send("Hi")
    for _ in range(3):
        for event in engine.drain():
            conversation.apply(event)
    assert ["user"] == kinds("hi")

    now[0] += 1.0
    conversation.checkpoint()
    conversation.checkpoint()
    for event in engine.drain():
        conversation.apply(event)
    assert ["user", "partial"] == kinds("hi")
    now[0] += 1.0
    conversation.checkpoint()

    assert ["user", "partial", "partial"] == kinds("hi")
    assert [(0, "one two"), (7, " three")] == [
        (line["offset"], line["text"]) for line in lines("hi")[2:]
    ]
    conversation.close()


def test_a_crash_in_the_middle_leaves_the_answer_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "CHECKPOINT_S", 0.0)
    engine = ScriptedEngine([words("one two three")])
    conversation = bound(engine)
    conversation.send("Hi")
    for _ in range(3):
        for event in engine.drain():
            conversation.apply(event)

    turns = Session(store.find("hi")).tree.path()

    assert [("Hi", "complete"), ("one two", "partial")] == [(t.text, t.status) for t in turns]
    conversation.close()


def test_closing_cancels_saves_the_piece_and_lets_go() -> None:
    engine = ScriptedEngine([words("one two three")])
    conversation = bound(engine)
    live = conversation.send("Hi")
    for _ in range(2):
        for event in engine.drain():
            conversation.apply(event)

    conversation.close()
    conversation.close()

    assert [live.id] == engine.cancelled
    again = resumed(ScriptedEngine(), "hi")
    assert [("Hi", "complete"), ("one", "partial")] == [(t.text, t.status) for t in again.turns]
    again.close()


def test_a_stopped_answer_stays_and_is_sent_again() -> None:
    engine = ScriptedEngine([words("one two three"), words("ok")])
    conversation = bound(engine)
    turn = conversation.send("Hi")
    for _ in range(2):
        for event in engine.drain():
            conversation.apply(event)
    conversation.stop()
    while conversation.live:
        for event in engine.drain():
            conversation.apply(event)

    play(conversation, engine, "Go on")
    conversation.close()

    assert ("stopped", "one") == (turn.status, turn.text)
    assert [("user", "Hi"), ("assistant", "one"), ("user", "Go on")] == [
        (message.role, message.content) for message in engine.requests[1].messages
    ]


def test_an_empty_answer_is_not_sent_and_its_neighbours_become_one_message() -> None:
    engine = ScriptedEngine([words("never"), words("ok")])
    conversation = bound(engine, Settings(system="Be brief."))
    conversation.send("Hi")
    conversation.stop()
    while conversation.live:
        for event in engine.drain():
            conversation.apply(event)

    play(conversation, engine, "Hello?")
    conversation.close()

    assert (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Hi\n\nHello?"),
    ) == engine.requests[1].messages


def test_a_message_that_did_not_fit_is_left_out_from_then_on_and_stays_in_the_file() -> None:
    engine = ScriptedEngine([words("Fine.")])
    conversation = bound(engine, name="long")
    live = conversation.send("far too long")
    error = ErrorInfo.of(PromptTooLongError("The conversation has 9 tokens too many."))
    conversation.apply(Finished.unplayed(live.id, "error", error))
    play(conversation, engine, "short")
    conversation.close()
    again = resumed(engine, "long")
    play(again, engine, "more")

    short = Message(role="user", content="short")
    more = Message(role="user", content="more")
    said = again.turns[3]
    fine = Message(
        role="assistant", content="Fine.", tokens=tuple(said.tokens), model=MODEL.fingerprint
    )
    assert (short,) == engine.requests[1].messages
    assert (short, fine, more) == engine.requests[2].messages
    assert "far too long" == lines("long")[1]["text"]


def test_a_request_carries_the_settings_over_the_models_recommendation() -> None:
    engine = ScriptedEngine()
    settings = Settings(top_k=3, seed=1, max_tokens=9, stop=("#",), logprobs=2, mtp_draft_tokens=2)
    conversation = bound(engine, settings)
    turn = conversation.send("Hi")
    conversation.close()

    [request] = engine.requests

    assert turn.id == request.id
    assert dataclasses.replace(MODEL.recommended, top_k=3, seed=1) == request.sampling
    assert (9, ("#",), 2, 2) == (
        request.max_tokens,
        request.stop,
        request.logprobs,
        request.speculation.draft_tokens,
    )


def test_settings_changed_between_turns_hold_for_the_next() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine)
    play(conversation, engine, "Hi")

    conversation.settings = Settings(max_tokens=5, system="New.")
    play(conversation, engine, "Again")
    conversation.close()

    assert (1024, 5) == (engine.requests[0].max_tokens, engine.requests[1].max_tokens)
    assert "New." == engine.requests[1].messages[0].content


def test_the_controllers_state_goes_on_with_the_next_turn_and_the_next_day() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine)
    play(conversation, engine, "Hi")
    play(conversation, engine, "Again")
    conversation.close()
    tomorrow = ScriptedEngine()
    conversation = resumed(tomorrow, "hi")
    play(conversation, tomorrow, "Good morning")
    conversation.close()

    states = [request.controller for request in (*engine.requests, *tomorrow.requests)]

    assert [None, {"scripted": True}, {"scripted": True}] == states


def test_the_controllers_state_of_another_device_is_not_used() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine)
    play(conversation, engine, "Hi")
    conversation.close()
    elsewhere = dataclasses.replace(MODEL, device_fingerprint="another-gpu")

    engine = ScriptedEngine()
    conversation = resumed(engine, "hi", model=elsewhere)
    play(conversation, engine, "Again")
    conversation.close()

    assert [None] == [request.controller for request in engine.requests]


def test_a_message_before_the_model_is_ready_is_saved_and_asked_later() -> None:
    engine = ScriptedEngine()
    conversation = Conversation.new(engine, Settings())

    live = conversation.send("Hi")
    assert ["user"] == kinds("hi")
    assert [] == engine.requests

    engine.start()
    for event in engine.drain():
        conversation.apply(event)
    assert [live.id] == [request.id for request in engine.requests]
    assert MODEL.recommended == engine.requests[0].sampling
    while conversation.live:
        for event in engine.drain():
            conversation.apply(event)
    conversation.close()

    assert ["user", "model", "assistant"] == kinds("hi")
    assert MODEL.name == Session(store.find("hi")).tree.model["name"]


def test_a_message_stopped_before_the_model_is_ready_is_never_asked() -> None:
    engine = ScriptedEngine()
    conversation = Conversation.new(engine, Settings())
    live = conversation.send("Hi")

    conversation.stop()
    conversation.bind(MODEL)
    conversation.close()

    assert ("stopped", []) == (live.status, engine.requests)


def test_another_model_goes_on_with_a_notice_and_a_line() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine)
    play(conversation, engine, "Hi")
    conversation.close()

    conversation = resumed(engine, "hi", model=OTHER)
    conversation.bind(OTHER)
    assert ["hi was written with scripted-1m; other-2m goes on with it."] == conversation.notices
    play(conversation, engine, "Again")
    conversation.close()
    again = resumed(engine, "hi", model=OTHER)

    assert [] == again.notices
    assert 1 == kinds("hi").count("model")
    again.close()


def test_another_template_is_a_notice() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine)
    play(conversation, engine, "Hi")
    conversation.close()

    other = dataclasses.replace(MODEL, template_digest="1" * 16)
    conversation = resumed(engine, "hi", model=other)
    conversation.close()

    assert ["The chat template of scripted-1m changed since hi."] == conversation.notices


def test_the_sessions_system_prompt_holds_until_another_is_set() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine, Settings(system="Old."))
    play(conversation, engine, "Hi")
    conversation.close()

    same = resumed(engine, "hi")
    same.close()
    new = resumed(engine, "hi", Settings(system="New."))
    new.close()

    assert ("Old.", "New.") == (same.system, new.system)


def test_a_system_prompt_changed_during_a_chat_is_saved_once_and_can_be_cleared() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine, Settings(system="Old."))
    for system in ("Old.", "New.", "New.", None):
        conversation.settings = Settings(system=system)
        play(conversation, engine, "Hi")
    conversation.close()
    same = resumed(engine, "hi")
    before = same.system
    same.settings = Settings(system="")
    play(same, engine, "Hi")
    same.close()
    cleared = resumed(engine, "hi")
    cleared.close()

    turn = ["user", "assistant"]
    saved = [line["system"] for line in lines("hi") if "system" in line]
    roles = [request.messages[0].role for request in engine.requests]
    assert ["Old.", "New.", ""] == saved
    assert [*turn, "system", *turn, *turn, *turn, "system", *turn] == kinds("hi")
    assert ("New.", "") == (before, cleared.system)
    assert ["system"] * 4 + ["user"] == roles


def test_a_resumed_conversation_goes_on_where_it_ended() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine)
    play(conversation, engine, "Hi")
    conversation.close()

    conversation = Conversation.latest(engine, Settings())
    conversation.bind(MODEL)
    play(conversation, engine, "Again")
    conversation.close()

    assert ["Hi", "Hello there.", "Again"] == [m.content for m in engine.requests[1].messages]
    assert ["user", "assistant", "user", "assistant"] == kinds("hi")
    assert 4 == len(Session(store.find("hi")).tree.path())


def test_a_conversation_open_elsewhere_is_refused() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine)
    play(conversation, engine, "Hi")

    with pytest.raises(SessionError, match="is open in process"):
        Conversation.resume(engine, Settings(), "hi")

    conversation.close()


def test_open_takes_up_a_name_or_begins_it() -> None:
    engine = ScriptedEngine()
    for text in ("one", "two"):
        conversation = Conversation.open(engine, Settings(), "trip")
        conversation.bind(MODEL)
        play(conversation, engine, text)
        conversation.close()

    assert ["one", "Hello there.", "two"] == [m.content for m in engine.requests[1].messages]


def test_a_new_conversation_refuses_a_name_that_is_taken() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine, name="trip")
    play(conversation, engine, "Hi")
    conversation.close()

    with pytest.raises(SessionError, match="There is a session 'trip' already"):
        Conversation.new(engine, Settings(), name="trip")


def test_one_answer_at_a_time() -> None:
    conversation = bound(ScriptedEngine())
    conversation.send("Hi")

    with pytest.raises(UsageError, match="still under way"):
        conversation.send("Again")
    conversation.close()


def test_events_of_another_request_touch_nothing() -> None:
    conversation = bound(ScriptedEngine())
    live = conversation.send("Hi")

    assert None is conversation.apply(Delta(request="other", text="x"))
    assert "" == live.text
    conversation.close()


def test_a_failing_engine_ends_the_turn_and_keeps_its_text() -> None:
    engine = ScriptedEngine([words("one two")])
    conversation = bound(engine)
    live = conversation.send("Hi")
    for _ in range(2):
        for event in engine.drain():
            conversation.apply(event)

    touched = conversation.apply(Failed(error=ErrorInfo(kind="EngineError", message="It died.")))
    conversation.close()

    assert live is touched
    assert ("error", "one") == (live.status, live.text)
    assert "It died." == lines("hi")[-1]["error"]["message"]


def test_an_engine_that_cannot_be_asked_ends_the_turn() -> None:
    class Deaf(ScriptedEngine):
        def submit(self, request: Request) -> None:
            raise EngineError("The engine was not started.")

    conversation = bound(Deaf())
    live = conversation.send("Hi")
    conversation.close()

    assert ("error", None) == (live.status, conversation.live)


def test_a_message_whose_answer_failed_is_asked_once_when_it_is_sent_again() -> None:
    engine = ScriptedEngine([words("Fine."), words("one two"), words("ok")])
    conversation = bound(engine)
    play(conversation, engine, "Hi")
    conversation.send("Go on")
    for _ in range(2):
        for event in engine.drain():
            conversation.apply(event)
    conversation.apply(Failed(error=ErrorInfo(kind="EngineError", message="It died.")))
    engine.start()

    play(conversation, engine, "Go on")
    conversation.close()

    assert ["Hi", "Fine.", "Go on"] == [m.content for m in engine.requests[-1].messages]
    assert ["Hi", "Go on", "Go on"] == [
        line["text"] for line in lines("hi") if line.get("type") == "user"
    ]


def test_no_lone_surrogate_reaches_the_engine_from_a_flag_or_a_file() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine, Settings(system="x\udcff"))
    play(conversation, engine, "Hi")
    conversation.turns[1].text = "y\ud800"

    play(conversation, engine, "Again")
    conversation.close()

    assert ["x?", "Hi", "y?", "Again"] == [m.content for m in engine.requests[1].messages]


def test_a_lone_surrogate_is_replaced_before_anyone_sees_it() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine)
    play(conversation, engine, "a\udc80b")
    conversation.close()

    assert "a?b" == engine.requests[0].messages[0].content


def full_disk(full: list[bool]) -> Callable[[int, bytes], int]:
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    return write


def test_a_full_disk_is_a_notice_and_everything_is_written_when_it_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = [True]
    monkeypatch.setattr(os, "write", full_disk(full))
    engine = ScriptedEngine()
    conversation = bound(engine)

    turn = play(conversation, engine, "Hi")
    play(conversation, engine, "Again")
    assert "Hello there." == turn.text
    assert 1 == len(conversation.notices)
    assert "There is no space left" in conversation.notices[0]
    assert conversation.unsaved

    full[0] = False
    play(conversation, engine, "Thanks")
    conversation.close()

    assert not conversation.unsaved
    assert "hi is saved again; nothing is missing." == conversation.notices[-1]
    assert ["user", "assistant"] * 3 == kinds("hi")
    assert ["Hi", "Again", "Thanks"] == [
        turn.text for turn in Session(store.find("hi")).tree.path() if turn.role == "user"
    ]


def test_a_folder_that_takes_no_file_is_a_notice_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even the session's file can be made at first."""
    real, refuse = os.open, [True]

    def opened(path: str, flags: int, mode: int = 0o777, **kw: Any) -> int:
        if refuse[0] and str(path).endswith(".jsonl"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, mode, **kw)

    monkeypatch.setattr(os, "open", opened)
    engine = ScriptedEngine()
    conversation = bound(engine)
    play(conversation, engine, "Hi")
    assert conversation.unsaved
    assert [] == [name for name in os.listdir(paths.sessions_dir()) if name.endswith("lock")]

    refuse[0] = False
    conversation.close()

    assert not conversation.unsaved
    assert ["user", "assistant"] == kinds("hi")


def test_what_could_not_be_written_until_the_end_is_admitted(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr(os, "write", full_disk([True]))
    engine = ScriptedEngine()
    conversation = bound(engine)

    play(conversation, engine, "Hi")
    conversation.notices.clear()
    conversation.close()
    conversation.close()

    assert conversation.unsaved
    assert ["hi was closed unsaved: part of it is not on the disk."] == conversation.notices
    assert [] == [name for name in os.listdir(paths.sessions_dir()) if name.endswith(".jsonl")]


def test_the_recommendation_of_an_unknown_model_is_not_made_up() -> None:
    conversation = Conversation.new(ScriptedEngine(), Settings(top_k=4))
    conversation.send("Hi")
    conversation.close()

    expected = dataclasses.asdict(Sampling(top_k=4))

    assert expected == lines("hi")[0]["sampling"]


FULL = ("Prefixes cannot be kept on disk for now: The disk is full.",)


class Remembering(ScriptedEngine):
    """One with a vault, whose first answer finds something damaged in it and cannot be kept."""

    snapshot = "5a" * 32

    def drain(self) -> list[Event]:
        told = ("A kept prefix could not be used (it is old); it is computed anew.",)
        events = [
            dataclasses.replace(
                event, snapshot=self.snapshot, notices=FULL if len(self.requests) == 1 else ()
            )
            if isinstance(event, Finished)
            else dataclasses.replace(event, notices=told if len(self.requests) == 1 else ())
            if isinstance(event, Started)
            else event
            for event in super().drain()
        ]
        return events


def test_an_answer_is_saved_with_the_snapshot_of_its_end_and_the_vault_is_heard() -> None:
    engine = Remembering([words("one"), words("two")])
    conversation = bound(engine, name="kept")
    turn = play(conversation, engine, "first")
    play(conversation, engine, "second")
    notices = list(conversation.notices)
    conversation.close()

    assert Remembering.snapshot == turn.snapshot
    assert notices[0].startswith("A kept prefix could not be used")
    assert list(FULL) == notices[1:]
    assert "Prefixes" not in store.find("kept").read_text()
    kept = Session(store.find("kept")).tree.path()
    assert ["", Remembering.snapshot] * 2 == [turn.snapshot for turn in kept]
    assert [False, False] == [request.private for request in engine.requests]


@pytest.mark.parametrize("odd", ["../../etc", "5A" * 32, "5a" * 31, 7, None, ["5a" * 32]])
def test_a_snapshot_that_is_no_digest_is_none(odd: object) -> None:
    engine = Remembering()
    conversation = bound(engine, name="odd")
    play(conversation, engine, "first")
    conversation.close()
    path = store.find("odd")
    path.write_text(path.read_text().replace(json.dumps("5a" * 32), json.dumps(odd)))

    (_, answer) = Session(path).tree.path()
    assert ("Hello there.", "") == (answer.text, answer.snapshot)


def test_a_chat_that_is_not_saved_is_private() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine, saves=False)
    play(conversation, engine, "first")

    assert [True] == [request.private for request in engine.requests]
