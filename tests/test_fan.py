"""Several answers to one message: what is asked, what is on the disk, and going on with one."""

from __future__ import annotations

import dataclasses
import json

import pytest

from flarechat import chat, paths
from flarechat.asking import law_of
from flarechat.chat import Conversation
from flarechat.config import Settings
from flarechat.errors import EngineError, UsageError
from flarechat.protocol import ErrorInfo, Failed, Finished, Sampling
from flarechat.sessions import store
from flarechat.sessions.session import Session
from tests.fakes import ScriptedEngine, words
from tests.test_chat import bound, kinds, lines, play, resumed

ANSWERS = [words("one red"), words("two green leaves"), words("three")]


def scripted(lanes: int = 4) -> ScriptedEngine:
    return ScriptedEngine(ANSWERS, lanes=lanes)


def beat(conversation: Conversation, engine: ScriptedEngine, times: int = 1) -> None:
    for _ in range(times):
        for event in engine.drain():
            conversation.apply(event)


def finish(conversation: Conversation, engine: ScriptedEngine) -> None:
    while conversation.live:
        beat(conversation, engine)


def test_one_message_is_asked_as_often_as_wished_and_every_answer_streams() -> None:
    engine = scripted()
    conversation = bound(engine)
    fan = conversation.fan_out("Say something.", 3, lanes=4)
    beat(conversation, engine, 2)

    assert ["Say something."] * 3 == [r.messages[-1].content for r in engine.requests]
    assert [turn.id for turn in fan] == [request.id for request in engine.requests]
    assert ["one", "two", "three"] == [turn.text for turn in fan]
    assert ["user"] == [turn.role for turn in conversation.turns]
    assert fan == conversation.lives
    conversation.close()


def test_a_given_seed_counts_up_and_without_one_the_engine_draws() -> None:
    seeded, free = scripted(), scripted()
    bound(seeded, Settings(seed=2**63 - 2), saves=False).fan_out("Go", 3)
    bound(free, saves=False).fan_out("Go", 3)

    assert [2**63 - 2, 2**63 - 1, 0] == [r.sampling.seed for r in seeded.requests]
    assert [None] * 3 == [r.sampling.seed for r in free.requests]
    assert 7 == law_of(Sampling(seed=7), 0).seed


def test_a_fan_behind_answers_that_are_there_goes_on_with_the_seeds_behind_theirs() -> None:
    engine = scripted()
    conversation = bound(engine, Settings(seed=7), saves=False)
    play(conversation, engine, "Go")
    for _ in range(2):
        conversation.fan_out("", 2)
        finish(conversation, engine)
        conversation.pick(1)
    conversation.regenerate()
    finish(conversation, engine)
    conversation.fan_out("Another", 2)

    assert [7, 8, 9, 10, 11, 12, 7, 8] == [r.sampling.seed for r in engine.requests]


@pytest.mark.parametrize(
    ("ways", "lanes", "settings", "said"),
    [
        (1, 4, Settings(), "A fan has 2 to 4 answers, not 1."),
        (5, 4, Settings(), "A fan has 2 to 4 answers, not 5."),
        (2, 1, Settings(), "one answer at a time; a fan of 2 needs 2. Start flarechat with --conc"),
        (3, 2, Settings(), "2 answers at a time; a fan of 3 needs 3. Start flarechat with --conc"),
        (2, 4, Settings(temperature=0.0), "At temperature 0 all 2 answers would be the same."),
    ],
)
def test_a_fan_that_cannot_be_is_refused_before_anything_is_written(
    ways: int, lanes: int, settings: Settings, said: str
) -> None:
    engine = scripted()
    conversation = bound(engine, settings)
    with pytest.raises(UsageError) as refused:
        conversation.fan_out("Go", ways, lanes=lanes)

    assert said in str(refused.value)
    assert ([], [], []) == (conversation.turns, engine.requests, store.listed())


def test_until_one_is_picked_nothing_else_is_sent() -> None:
    engine = scripted()
    conversation = bound(engine)
    conversation.fan_out("Go", 3)
    finish(conversation, engine)
    with pytest.raises(UsageError, match="3 answers to choose from"):
        conversation.send("More")
    with pytest.raises(UsageError, match="There is no answer 4 to pick"):
        conversation.pick(3)

    assert 3 == len(engine.requests)
    conversation.close()


def test_the_picked_answer_is_gone_on_with_and_the_others_stay_as_branches() -> None:
    engine = scripted()
    conversation = bound(engine, name="fan")
    conversation.fan_out("Go", 3)
    finish(conversation, engine)
    picked = conversation.pick(1)
    play(conversation, engine, "More")
    conversation.close()
    session = Session(store.find("fan"))

    assert ["Go", "two green leaves", "More"] == [m.content for m in engine.requests[-1].messages]
    assert (2, 3) == conversation.place(picked)
    assert "two green leaves" == session.tree.path()[1].text
    alternatives = session.tree.siblings(session.tree.path()[1])
    assert ["one red", "two green leaves", "three"] == [turn.text for turn in alternatives]
    assert ["user", "assistant", "assistant", "assistant", "head", "user", "assistant"] == (
        kinds("fan")
    )


def test_picking_early_stops_the_others_and_saves_what_they_had() -> None:
    engine = scripted()
    conversation = bound(engine, name="early")
    fan = conversation.fan_out("Go", 3)
    beat(conversation, engine, 2)
    conversation.pick(1)
    finish(conversation, engine)
    conversation.close()
    session = Session(store.find("early"))

    assert [fan[0].id, fan[2].id] == engine.cancelled
    assert ["stopped", "complete", "stopped"] == [turn.status for turn in fan]
    assert ["Go", "two green leaves"] == [turn.text for turn in session.tree.path()]
    assert ["one", "two green leaves", "three"] == [
        session.tree.turns[turn.id].text for turn in fan
    ]


def test_what_the_others_say_after_the_pick_does_not_move_the_chat() -> None:
    engine = scripted()
    conversation = bound(engine, name="late")
    conversation.fan_out("Go", 3)
    beat(conversation, engine, 3)
    picked = conversation.pick(2)
    ended = picked.status
    finish(conversation, engine)
    conversation.close()

    assert "complete" == ended
    assert ["Go", "three"] == [turn.text for turn in Session(store.find("late")).tree.path()]


def test_before_the_pick_the_first_answer_stands_for_all_whoever_ended_last() -> None:
    engine = scripted()
    conversation = bound(engine, name="first")
    conversation.fan_out("Go", 3)
    finish(conversation, engine)
    conversation.close()
    ends = [line["answer"] for line in lines("first") if line.get("reason")]

    assert [3, 1, 2] == ends
    assert "one red" == Session(store.find("first")).tree.path()[-1].text


def test_stopping_stops_all_and_leaves_the_choice() -> None:
    engine = scripted()
    conversation = bound(engine)
    fan = conversation.fan_out("Go", 3)
    beat(conversation, engine, 2)
    conversation.stop()
    finish(conversation, engine)

    assert [turn.id for turn in fan] == engine.cancelled
    assert ["stopped"] * 3 == [turn.status for turn in fan]
    assert fan == conversation.fan
    conversation.close()


def test_stopped_before_a_word_there_is_nothing_to_choose() -> None:
    engine = scripted()
    conversation = bound(engine)
    conversation.fan_out("Go", 3)
    conversation.stop()
    finish(conversation, engine)

    assert [] == conversation.fan
    assert ["Go", ""] == [turn.text for turn in conversation.turns]
    conversation.close()


def test_an_engine_that_dies_ends_every_answer_and_keeps_their_texts() -> None:
    engine = scripted()
    conversation = bound(engine)
    fan = conversation.fan_out("Go", 3)
    beat(conversation, engine, 2)
    conversation.apply(Failed(error=ErrorInfo.of(EngineError("It died."))))

    assert ["error"] * 3 == [turn.status for turn in fan]
    assert ["one", "two", "three"] == [turn.text for turn in fan]
    conversation.close()


def test_a_crash_in_the_middle_leaves_every_answer_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(chat.time, "monotonic", lambda: now[0])
    engine = scripted()
    conversation = bound(engine, name="crash")
    conversation.fan_out("Go", 3)
    beat(conversation, engine, 2)
    now[0] += chat.CHECKPOINT_S
    conversation.checkpoint()
    found = Session(store.find("crash")).tree

    assert ["one", "two", "three"] == [turn.text for turn in found.open_fan()]
    assert ["partial"] * 3 == [turn.status for turn in found.open_fan()]
    beat(conversation, engine, 1)
    now[0] += chat.CHECKPOINT_S
    conversation.checkpoint()
    assert [0, 0, 0, 3, 3] == [line["offset"] for line in lines("crash") if "offset" in line]
    conversation.close()


def test_a_fan_left_open_is_offered_again_and_a_picked_one_is_shown() -> None:
    engine = scripted()
    conversation = bound(engine, name="left")
    conversation.fan_out("Go", 3)
    finish(conversation, engine)
    conversation.close()
    again = resumed(engine, "left")

    assert ["one red", "two green leaves", "three"] == [turn.text for turn in again.fan]
    assert ["Go"] == [turn.text for turn in again.turns]
    again.pick(2)
    again.close()
    third = resumed(engine, "left")
    assert [] == third.fan
    assert ["Go", "three"] == [turn.text for turn in third.turns]
    third.close()


def test_a_torn_pick_offers_the_choice_again() -> None:
    engine = scripted()
    conversation = bound(engine, name="torn")
    conversation.fan_out("Go", 2)
    finish(conversation, engine)
    conversation.pick(1)
    conversation.close()
    path = paths.sessions_dir() / "torn.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    again = resumed(engine, "torn")

    assert ["one red", "two green leaves"] == [turn.text for turn in again.fan]
    assert ["The last line of torn (line 5) was cut off and is left out."] == again.notices
    again.pick(0)
    again.close()
    assert "one red" == Session(path).tree.path()[-1].text


def test_a_torn_answer_leaves_the_others() -> None:
    engine = scripted()
    conversation = bound(engine, name="lost")
    conversation.fan_out("Go", 3)
    finish(conversation, engine)
    conversation.close()
    path = paths.sessions_dir() / "lost.jsonl"
    raw = path.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(raw) if json.loads(line).get("answer") == 1)
    path.write_bytes(b"".join([*raw[:at], b'{"type":"assi\n', *raw[at + 1 :]]))
    again = resumed(engine, "lost")

    assert [2, 3] == [turn.answer for turn in again.fan]
    assert "Go" == again.turns[-1].text
    again.close()


def test_the_last_message_is_asked_again_and_its_answer_becomes_a_branch() -> None:
    engine = scripted()
    conversation = bound(engine, name="again")
    before = play(conversation, engine, "Go")
    fan = conversation.fan_out("", 2)
    finish(conversation, engine)
    conversation.pick(1)
    went_back = conversation.branch(fan[1], -1) and conversation.branch(fan[0], -1)
    conversation.close()

    assert ["Go"] == [m.content for m in engine.requests[-1].messages]
    assert [(1, 3), (2, 3), (3, 3)] == [conversation.place(t) for t in (before, *fan)]
    assert went_back and before is conversation.turns[-1]
    assert "one red" == Session(store.find("again")).tree.path()[-1].text


def test_going_over_to_another_answer_takes_what_followed_it() -> None:
    engine = scripted()
    conversation = bound(engine, name="over")
    fan = conversation.fan_out("Go", 2)
    finish(conversation, engine)
    conversation.pick(0)
    play(conversation, engine, "after the first")
    conversation.branch(fan[0], 1)
    play(conversation, engine, "after the second")
    conversation.branch(fan[1], -1)
    conversation.close()

    assert not conversation.branch(fan[0], -1)
    assert ["Go", "one red", "after the first", "three"] == [t.text for t in conversation.turns]
    path = Session(store.find("over")).tree.path()
    assert ["Go", "one red", "after the first", "three"] == [turn.text for turn in path]


def test_coming_back_to_a_branch_finds_the_answers_that_were_picked_in_it() -> None:
    engine = scripted()
    conversation = bound(engine, name="nested")
    outer = conversation.fan_out("Go", 2)
    finish(conversation, engine)
    conversation.pick(0)
    conversation.fan_out("On", 2)
    finish(conversation, engine)
    inner = conversation.pick(1)
    conversation.branch(outer[0], 1)
    conversation.branch(outer[1], -1)
    here = conversation.turns[-1]
    conversation.branch(outer[0], 1)
    conversation.close()
    again = resumed(engine, "nested")
    again.branch(again.turns[-1], -1)

    assert inner is here
    assert inner.id == again.turns[-1].id
    again.close()


def test_there_is_nothing_to_answer_again_in_an_empty_chat() -> None:
    with pytest.raises(UsageError, match="There is no message to answer again"):
        bound(scripted()).fan_out(" ", 2)


def test_a_fan_asked_before_the_model_is_ready_is_submitted_whole_when_it_is() -> None:
    engine = scripted()
    conversation = Conversation.new(engine, Settings(), saves=False)
    conversation.fan_out("Go", 2)
    waiting = list(engine.requests)
    conversation.bind(engine.model)

    assert ([], 2) == (waiting, len(engine.requests))
    turn = conversation.fan[0]
    ended = dataclasses.replace(Finished.unplayed(turn.id, "stop"), text="late")
    conversation.apply(ended)
    assert ("late", "complete") == (turn.text, turn.status)
