"""Edit, regenerate, continue, undo, branch: what is asked, what is shown, what is on the disk."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flarechat.chat import Conversation, Turn
from flarechat.config import Settings
from flarechat.errors import EngineError, UsageError
from flarechat.protocol import ErrorInfo, Event, Failed, Finished, Started
from flarechat.sessions import store
from flarechat.sessions.session import Session
from flarechat.sessions.turns import TurnTree
from tests.fakes import MODEL, Play, ScriptedEngine, words
from tests.test_chat import OTHER, bound, full_disk, kinds, lines, play, resumed

DRAFTED = (
    Play(("one",)),
    Play((" two", " three"), width=3, source="history"),
    Play((" four", " five", " six"), width=3, source="context+mtp"),
)


def finish(conversation: Conversation, engine: ScriptedEngine, events: int | None = None) -> None:
    while conversation.live and events != 0:
        for event in engine.drain():
            conversation.apply(event)
        events = None if events is None else events - 1


def texts(conversation: Conversation) -> list[str]:
    return [turn.text for turn in conversation.turns]


def contents(engine: ScriptedEngine) -> list[str]:
    return [message.content for message in engine.requests[-1].messages]


def test_an_edited_message_is_asked_in_its_place_and_what_was_said_stays() -> None:
    engine = ScriptedEngine([words(text) for text in ("A1", "A2", "A3")])
    conversation = bound(engine, name="edit")
    play(conversation, engine, "Q1")
    second = conversation.turns[-1]
    play(conversation, engine, "Q2")
    conversation.edit(conversation.turns[2], "Q2, really")
    finish(conversation, engine)

    assert ["Q1", "A1", "Q2, really", "A3"] == texts(conversation)
    assert ["Q1", "A1", "Q2, really"] == contents(engine)
    assert second.id == conversation.turns[2].parent
    assert (2, 2) == conversation.place(conversation.turns[2])
    assert conversation.branch(conversation.turns[2], -1)
    assert ["Q1", "A1", "Q2", "A2"] == texts(conversation)
    conversation.close()
    assert ["Q1", "A1", "Q2", "A2"] == [t.text for t in Session(store.find("edit")).tree.path()]


def test_the_first_message_can_be_edited_and_undone() -> None:
    engine = ScriptedEngine([words("A1"), words("A2"), words("A3")])
    conversation = bound(engine, name="first")
    play(conversation, engine, "Q1")
    conversation.edit(conversation.turns[0], "Q2")
    finish(conversation, engine)
    assert ["Q2", "A2"] == texts(conversation)

    assert "Q2" == conversation.undo().text
    assert [] == conversation.turns
    conversation.close()
    again = resumed(engine, "first")
    assert [] == again.turns
    play(again, engine, "Q3")
    again.close()

    assert ["Q3"] == contents(engine)
    tree = Session(store.find("first")).tree
    assert ["Q3", "A3"] == [turn.text for turn in tree.path()]
    assert ["Q1", "Q2", "Q3"] == [turn.text for turn in tree.siblings(tree.path()[0])]
    assert None is next(line["parent"] for line in lines("first") if line.get("type") == "head")


def test_only_a_message_of_this_conversation_is_edited() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine)
    play(conversation, engine, "Hi")
    stranger = Turn(id="t", parent=None, role="user", text="x")

    with pytest.raises(UsageError, match="Only a message can be edited"):
        conversation.edit(conversation.turns[1], "x")
    for refused in (
        lambda: conversation.edit(stranger, "x"),
        lambda: conversation.branch_at(stranger),
    ):
        with pytest.raises(UsageError, match="another conversation"):
            refused()
    conversation.close()


def test_every_answer_to_a_message_is_drawn_by_the_next_seed() -> None:
    engine = ScriptedEngine([words(text) for text in ("A1", "A2", "A3", "A4")])
    conversation = bound(engine, Settings(seed=7), name="again")
    play(conversation, engine, "Q1")
    for _ in range(2):
        conversation.regenerate()
        finish(conversation, engine)
    first = conversation.turns[1]
    conversation.settings = Settings()
    conversation.regenerate(first)
    finish(conversation, engine)
    conversation.close()

    assert [7, 8, 9, None] == [request.sampling.seed for request in engine.requests]
    assert ["Q1"] == contents(engine)
    assert ["Q1", "A4"] == texts(conversation)
    assert (4, 4) == conversation.place(conversation.turns[1])
    assert ["user", *["assistant"] * 4] == kinds("again")
    assert "A4" == Session(store.find("again")).tree.path()[-1].text


def test_regenerating_an_earlier_answer_leaves_out_what_came_after_it() -> None:
    engine = ScriptedEngine([words(text) for text in ("A1", "A2", "A3")])
    conversation = bound(engine)
    first = play(conversation, engine, "Q1")
    play(conversation, engine, "Q2")
    conversation.regenerate(first)
    finish(conversation, engine)

    assert ["Q1", "A3"] == texts(conversation)
    assert conversation.branch(conversation.turns[1], -1)
    assert ["Q1", "A1", "Q2", "A2"] == texts(conversation)
    conversation.close()


def test_a_message_that_no_answer_was_saved_for_is_answered() -> None:
    """After a crash right behind it."""
    engine = ScriptedEngine()
    conversation = bound(engine, name="lone")
    conversation.send("Hi")
    conversation.close()
    path = store.find("lone")
    path.write_text("\n".join(path.read_text().splitlines()[:2]) + "\n")
    again = resumed(engine, "lone")
    again.regenerate()
    finish(again, engine)
    again.close()

    assert ["Hi", "Hello there."] == texts(again)


@pytest.mark.parametrize("reload", [False, True])
def test_a_stopped_answer_goes_on_in_its_own_turn(reload: bool) -> None:
    engine = ScriptedEngine([DRAFTED, words(" and on"), words("bye")])
    conversation = bound(engine, Settings(seed=3, system="Brief."), name="on")
    turn = conversation.send("Hi")
    finish(conversation, engine, 3)
    conversation.stop()
    finish(conversation, engine)
    assert ("stopped", "one two three") == (turn.status, turn.text)
    said, sources = list(turn.tokens), turn.sources
    if reload:
        conversation.close()
        conversation = resumed(engine, "on", Settings(seed=4, temperature=1.5))
    again = conversation.continue_answer()
    finish(conversation, engine)
    play(conversation, engine, "Thanks")
    conversation.close()
    request = engine.requests[1]
    tree = Session(store.find("on")).tree

    assert turn.id == again.id == request.id
    assert [("system", "Brief."), ("user", "Hi"), ("assistant", "one two three")] == [
        (message.role, message.content) for message in request.messages
    ]
    assert (tuple(said), MODEL.fingerprint) == (
        request.messages[-1].tokens,
        request.messages[-1].model,
    )
    assert engine.requests[0].sampling == request.sampling
    assert ("one two three and on", "complete", "stop") == (again.text, again.status, again.reason)
    assert said == again.tokens[: len(said)]
    assert sources + "++" == again.sources
    assert len(again.tokens) == len(again.sources) == 5
    assert ["Hi", "one two three and on", "Thanks", "bye"] == [t.text for t in tree.path()]
    assert ["user", "assistant", "continue", "assistant", "user", "assistant"] == kinds("on")
    assert state(tree) == state(conversation._tree)


class Drawing(ScriptedEngine):
    """Draws a seed for a request without one, as the engine does: 100, 101 and so on."""

    def drain(self) -> list[Event]:
        return [self._seeded(e) if isinstance(e, Started) else e for e in super().drain()]

    def _seeded(self, started: Started) -> Started:
        if started.sampling.seed is not None:
            return started
        law = dataclasses.replace(started.sampling, seed=99 + len(self.requests))
        return dataclasses.replace(started, sampling=law)


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize(
    ("acceptance", "asked", "seed"),
    [("match", [None, 100, 100], 100), ("ratio", [None] * 3, 102), ("auto", [None] * 3, 102)],
)
def test_an_answer_goes_on_by_match_with_the_seed_that_was_drawn_for_it(
    acceptance: str, asked: list[int | None], seed: int, reload: bool
) -> None:
    engine, settings = Drawing([words("one two")], reason="length"), Settings(acceptance=acceptance)
    conversation = bound(engine, settings, name="drawn")
    play(conversation, engine, "Hi")
    law = conversation.turns[-1].sampling
    for _ in range(2):
        if reload:
            conversation.close()
            conversation = resumed(engine, "drawn", settings)
        conversation.continue_answer()
        finish(conversation, engine)
    conversation.close()
    saved = Session(store.find("drawn")).tree.path()[-1]

    assert asked == [request.sampling.seed for request in engine.requests]
    assert [acceptance] * 3 == [request.speculation.acceptance for request in engine.requests]
    assert (law, seed) == (saved.sampling, saved.seed)


def test_the_figures_of_an_answer_that_went_on_are_of_all_of_it() -> None:
    engine = ScriptedEngine([DRAFTED, DRAFTED], reason="length")
    conversation = bound(engine)
    turn = play(conversation, engine, "Hi")
    first = turn.finished
    conversation.continue_answer()
    finish(conversation, engine)
    conversation.close()
    both = turn.finished

    assert first and both
    assert 2 * first.usage.completion_tokens == both.usage.completion_tokens == len(turn.tokens)
    assert first.usage.prompt_tokens == both.usage.prompt_tokens
    assert 2 * first.speculation.rounds == both.speculation.rounds
    assert 2 * first.timings.decode_ms == both.timings.decode_ms
    totals = both.speculation
    assert totals.emitted == totals.accepted + totals.rounds - totals.clipped
    assert totals.emitted == sum(source.emitted for source in totals.by_source.values())
    assert totals.accepted == sum(depth.accepted for depth in totals.by_depth)
    assert totals.rounds == sum(totals.acceptance_histogram)
    assert totals.mean_acceptance_length == totals.emitted / totals.rounds


def test_an_answer_that_ended_by_itself_has_nothing_to_continue() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine, name="done")
    with pytest.raises(UsageError, match="There is no answer to continue"):
        conversation.continue_answer()
    play(conversation, engine, "Hi")
    with pytest.raises(UsageError, match="ended by itself"):
        conversation.continue_answer()
    conversation.close()

    assert ["user", "assistant"] == kinds("done")


@pytest.mark.parametrize("unplayed", [False, True])
def test_an_answer_whose_continuation_fails_keeps_what_it_had(unplayed: bool) -> None:
    engine = ScriptedEngine([words("one two"), words(" three four"), words("ok")], reason="length")
    conversation = bound(engine, name="fails")
    turn = play(conversation, engine, "Hi")
    conversation.continue_answer()
    error = ErrorInfo.of(EngineError("It died."))
    if unplayed:
        conversation.apply(Finished.unplayed(turn.id, "error", error))
        engine._live.clear()
    else:
        finish(conversation, engine, 2)
        conversation.apply(Failed(error=error))
        engine._live.clear()
    said = "one two" if unplayed else "one two three"

    assert (said, "complete", "length") == (turn.text, turn.status, turn.reason)
    assert turn.finished is not None and turn.finished.error == error
    play(conversation, engine, "More")
    conversation.close()
    assert ["Hi", said, "More"] == contents(engine)
    assert said == Session(store.find("fails")).tree.path()[1].text


def test_another_model_goes_on_with_an_answer_by_its_text() -> None:
    engine = ScriptedEngine([words("one two"), words(" three")], reason="length")
    conversation = bound(engine, Settings(seed=1), name="other")
    play(conversation, engine, "Hi")
    conversation.close()
    conversation = resumed(engine, "other", Settings(seed=2), OTHER)
    conversation.continue_answer()
    finish(conversation, engine)
    conversation.close()

    assert 2 == engine.requests[1].sampling.seed
    assert MODEL.fingerprint == engine.requests[1].messages[-1].model
    assert OTHER.fingerprint == conversation.turns[-1].model_fingerprint


def test_undo_and_branch_at_go_where_they_say_and_nothing_is_deleted() -> None:
    engine = ScriptedEngine([words(text) for text in ("A1", "A2", "A3")])
    conversation = bound(engine, name="undo")
    first = play(conversation, engine, "Q1")
    last = play(conversation, engine, "Q2")

    assert "Q2" == conversation.undo().text
    assert ["Q1", "A1"] == texts(conversation)
    conversation.branch_at(last)
    assert ["Q1", "A1", "Q2", "A2"] == texts(conversation)
    conversation.branch_at(first)
    play(conversation, engine, "Q3")
    conversation.close()

    assert ["Q1", "A1", "Q3"] == contents(engine)
    assert 6 == len(Session(store.find("undo")).tree.turns)
    with pytest.raises(UsageError, match="nothing to undo"):
        bound(engine).undo()


def test_verbs_on_a_full_disk_are_written_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = [False]
    monkeypatch.setattr(os, "write", full_disk(full))
    monkeypatch.setattr("flarechat.chat.CHECKPOINT_S", 0.0)
    engine = ScriptedEngine([words("A1"), DRAFTED, words(" more"), words("A3")], reason="length")
    conversation = bound(engine, name="full")
    play(conversation, engine, "Q1")
    full[0] = True
    conversation.edit(conversation.turns[0], "Q2")
    finish(conversation, engine)
    conversation.continue_answer()
    finish(conversation, engine)
    conversation.undo()
    play(conversation, engine, "Q3")
    assert conversation.unsaved
    assert 1 == len(conversation.notices)
    full[0] = False
    conversation.branch(conversation.turns[0], -1)
    conversation.close()

    assert not conversation.unsaved
    tree = Session(store.find("full")).tree
    assert ["Q2", "one two three four five six more"] == [turn.text for turn in tree.path()]
    assert state(tree) == state(conversation._tree)


def test_no_verb_while_an_answer_is_under_way() -> None:
    engine = ScriptedEngine()
    conversation = bound(engine)
    play(conversation, engine, "Hi")
    turn = conversation.send("More")

    for refused in (
        conversation.undo,
        conversation.regenerate,
        conversation.continue_answer,
        lambda: conversation.branch_at(turn),
        lambda: conversation.edit(conversation.turns[0], "x"),
    ):
        with pytest.raises(UsageError, match="still under way"):
            refused()
    conversation.close()


def test_tokens_say_where_they_came_from_and_by_what_law() -> None:
    engine = ScriptedEngine([DRAFTED])
    conversation = bound(engine, Settings(seed=9), name="from")
    turn = play(conversation, engine, "Hi")
    conversation.close()
    record = lines("from")[-1]

    assert "+h-cm+" == turn.sources
    assert [(1, 1, "turn-0"), (3, 1, "")] == turn.copied
    assert (9, engine.prompt_tokens, MODEL.fingerprint) == (
        turn.seed,
        turn.draw,
        turn.model_fingerprint,
    )
    assert (turn.tokens, turn.sources, [[1, 1, "turn-0"], [3, 1, ""]]) == (
        record["tokens"],
        record["sources"],
        record["copied"],
    )
    assert dataclasses.asdict(dataclasses.replace(MODEL.recommended, seed=9)) == record["sampling"]
    assert (9, engine.prompt_tokens, MODEL.fingerprint) == (
        record["seed"],
        record["draw"],
        record["model_fingerprint"],
    )


def state(tree: TurnTree) -> dict[str, Any]:
    """All that a tree knows at rest."""
    turns = {
        turn.id: (
            *(turn.parent, turn.role, turn.text, turn.thinking, turn.status, turn.reason),
            *(turn.tokens, turn.sources, turn.copied, turn.sampling, turn.seed, turn.draw),
            *(turn.model_fingerprint, turn.finished),
        )
        for turn in tree.turns.values()
    }
    return {
        "turns": turns,
        "head": tree.head,
        "ends": {i: tree.end_of(t).id for i, t in tree.turns.items()},
    }


class Talking(ScriptedEngine):
    """Says something else in every answer, drafted in every way; every third one is cut off."""

    def submit(self, request: Any) -> None:
        number = len(self.requests)
        pieces = [f" {number}{letter}" for letter in "abcdef"]
        self.reason = "length" if number % 3 == 2 else "stop"
        self.answers = [
            (
                Play((pieces[0],)),
                Play(tuple(pieces[1:3]), width=3, source="history"),
                Play(tuple(pieces[3:6]), width=4, source="context+mtp"),
            )
        ]
        super().submit(request)


class Verbs(RuleBasedStateMachine):
    """The verbs against a plain tree: parents, roles and texts, and a path through them."""

    numbers = st.integers(0, 2**16)

    @initialize()
    def begin(self) -> None:
        self.engine = Talking()
        for path in [info.path for info in store.listed()]:
            store.remove(path)
        self.chat = bound(self.engine, Settings(seed=5), name="machine")
        self.parents: dict[str, str | None] = {}
        self.roles: dict[str, str] = {}
        self.said: dict[str, str] = {}
        self.onward: dict[str | None, str] = {}
        self.head: str | None = None

    def teardown(self) -> None:
        if hasattr(self, "chat"):
            self.chat.close()

    def note(self, turn: Turn) -> None:
        self.parents[turn.id], self.roles[turn.id] = turn.parent, turn.role
        self.said[turn.id] = turn.text

    def go(self, turn: str | None) -> None:
        self.head = turn
        while turn:
            self.onward[self.parents[turn]] = turn
            turn = self.parents[turn]

    def path(self, end: str | None) -> list[str]:
        found: list[str] = []
        while end:
            found.insert(0, end)
            end = self.parents[end]
        return found

    def end_of(self, turn: str) -> str:
        while turn in self.onward:
            turn = self.onward[turn]
        return turn

    def hear(self, answer: Turn, events: int) -> None:
        """The answer's message and the answer, played to its end or stopped after some events."""
        before = self.said.get(answer.id, "")
        finish(self.chat, self.engine, events)
        self.chat.stop()
        finish(self.chat, self.engine)
        number = len(self.engine.requests) - 1
        rounds = ["", f" {number}a", f" {number}b {number}c", f" {number}d {number}e {number}f"]
        expected = before + "".join(rounds[: max(min(events, 4), 1)])
        assert expected == answer.text
        self.note(answer)
        self.go(answer.id)
        told = [m for m in self.engine.requests[-1].messages if m.role == "user"]
        asked = [t for t in self.path(answer.id) if self.roles[t] == "user"]
        assert "".join(self.said[t] for t in asked) == "".join(
            m.content.replace("\n\n", "") for m in told
        )

    def some(self, number: int, role: str = "") -> Turn | None:
        known = [t for t in self.parents if role in ("", self.roles[t])]
        return self.chat._tree.turns[known[number % len(known)]] if known else None

    @rule(events=st.integers(0, 6))
    def send(self, events: int) -> None:
        answer = self.chat.send(f"q{len(self.parents)}")
        self.note(self.chat.turns[-2])
        assert self.head == self.chat.turns[-2].parent
        self.hear(answer, events)

    @rule(number=numbers, events=st.integers(0, 6))
    def edit(self, number: int, events: int) -> None:
        if turn := self.some(number, "user"):
            answer = self.chat.edit(turn, f"e{len(self.parents)}")
            self.note(self.chat.turns[-2])
            assert turn.parent == self.chat.turns[-2].parent
            self.hear(answer, events)

    @rule(number=numbers, events=st.integers(0, 6))
    def regenerate(self, number: int, events: int) -> None:
        if turn := self.some(number):
            answer = self.chat.regenerate(turn)
            assert answer.parent == (turn.id if turn.role == "user" else turn.parent)
            kin = [
                t
                for t in self.parents
                if (self.parents[t], self.roles[t]) == (answer.parent, "assistant")
            ]
            assert 5 + len(kin) == self.engine.requests[-1].sampling.seed
            self.hear(answer, events)

    @rule(events=st.integers(0, 6))
    def go_on(self, events: int) -> None:
        last = self.chat.turns[-1] if self.chat.turns else None
        if last is None or last.role == "user" or last.reason == "stop":
            with pytest.raises(UsageError):
                self.chat.continue_answer()
            return
        before = list(last.tokens)
        self.hear(self.chat.continue_answer(), events)
        assert before == last.tokens[: len(before)]

    @rule()
    def undo(self) -> None:
        asked = [t for t in self.path(self.head) if self.roles[t] == "user"]
        if asked:
            assert asked[-1] == self.chat.undo().id
            self.go(self.parents[asked[-1]])

    @rule(number=numbers)
    def branch_at(self, number: int) -> None:
        if turn := self.some(number):
            self.chat.branch_at(turn)
            self.go(turn.id)

    @rule(number=numbers, step=st.sampled_from([-1, 1]))
    def branch(self, number: int, step: int) -> None:
        if turn := self.some(number):
            kin = [
                t
                for t in self.parents
                if (self.parents[t], self.roles[t]) == (turn.parent, turn.role)
            ]
            at = kin.index(turn.id) + step
            assert self.chat.branch(turn, step) == (0 <= at < len(kin))
            if 0 <= at < len(kin):
                self.go(self.end_of(kin[at]))

    @precondition(lambda self: self.parents)
    @rule()
    def reload(self) -> None:
        self.chat.close()
        self.chat = resumed(self.engine, "machine", Settings(seed=5))

    @invariant()
    def the_chat_is_the_model_and_the_file_is_the_chat(self) -> None:
        if not hasattr(self, "chat"):
            return
        path = self.path(self.head)
        assert path == [turn.id for turn in self.chat.turns]
        assert [self.said[t] for t in path] == texts(self.chat)
        for turn in self.chat._tree.turns.values():
            assert self.end_of(turn.id) == self.chat._tree.end_of(turn).id
            assert len(turn.tokens) == len(turn.sources)
            copied = [i for first, count, _ in turn.copied for i in range(first, first + count)]
            assert copied == [i for i, letter in enumerate(turn.sources) if letter in "hc"]
        if self.parents:
            assert state(self.chat._tree) == state(Session(store.find("machine")).tree)


TestVerbs = Verbs.TestCase
TestVerbs.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
