"""A chat that was interrupted and taken up says what it would have said: by match, to the token."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flarechat.chat import Conversation
from flarechat.config import Settings
from flarechat.protocol import Event, ModelInfo, Ready, Request, Speculation
from flarechat.sessions import store
from flarechat.sessions.session import Session
from tests.engine.conftest import Desk

Make = Callable[..., Desk]
SETTINGS = Settings(seed=21, temperature=0.9, top_k=40, presence_penalty=0.4, max_tokens=14)


class Door:
    """An engine in this process behind the door's verbs; `limit` rounds, and it stands still."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.limit = desk, 10_000
        self._read = len(desk.events)
        self.requests: list[Request] = []

    def start(self) -> None: ...

    def submit(self, request: Request) -> None:
        self.requests.append(request)
        self.desk.engine.submit(request)

    def cancel(self, request: str) -> None:
        self.desk.engine.cancel(request)

    def drain(self) -> list[Event]:
        if self.desk.engine.busy and self.limit:
            self.desk.engine.step()
            self.limit -= 1
        events, self._read = self.desk.events[self._read :], len(self.desk.events)
        return events

    def wait(self, timeout: float | None = None) -> list[Event]:
        return self.drain()

    def close(self) -> None: ...


def model(desk: Desk) -> ModelInfo:
    return next(event.model for event in desk.events if isinstance(event, Ready))


def opened(door: Door, name: str, settings: Settings = SETTINGS) -> Conversation:
    conversation = Conversation.open(door, settings, name)
    conversation.bind(model(door.desk))
    return conversation


def hear(conversation: Conversation, door: Door, rounds: int = 10_000) -> None:
    door.limit = rounds
    while conversation.live and door.limit:
        for event in door.drain():
            conversation.apply(event)


def said(conversation: Conversation) -> list[tuple[str, list[int]]]:
    return [(turn.text, turn.tokens) for turn in conversation.turns]


def uninterrupted(desk: Make) -> list[tuple[str, list[int]]]:
    door = Door(desk())
    conversation = opened(door, "whole")
    for text in ("hello the", "in a hello"):
        conversation.send(text)
        hear(conversation, door)
    conversation.close()
    return said(conversation)


def test_a_chat_resumed_between_turns_goes_on_as_if_it_had_not_been_left(desk: Make) -> None:
    for text in ("hello the", "in a hello"):
        door = Door(desk())
        conversation = opened(door, "resumed")
        conversation.send(text)
        hear(conversation, door)
        conversation.close()

    assert uninterrupted(desk) == said(conversation)
    assert 2 == len({tuple(tokens) for _, tokens in said(conversation) if tokens})


@pytest.mark.parametrize("rounds", [2, 5, 9])
@pytest.mark.parametrize("crash", [True, False])
def test_an_answer_resumed_in_its_middle_goes_on_as_if_it_had_not_been_left(
    desk: Make, monkeypatch: pytest.MonkeyPatch, rounds: int, crash: bool
) -> None:
    """Stopped and closed, or left as a crash leaves it; with drafts of another width after it."""
    monkeypatch.setattr("flarechat.chat.CHECKPOINT_S", 0.0)
    door = Door(desk())
    conversation = opened(door, "cut")
    conversation.send("hello the")
    hear(conversation, door)
    conversation.send("in a hello")
    hear(conversation, door, rounds)
    if not crash:
        conversation.stop()
        hear(conversation, door)
    conversation.close()
    part = list(conversation.turns[-1].tokens)
    assert 0 < len(part) < SETTINGS.max_tokens
    settings = Settings(max_tokens=SETTINGS.max_tokens - len(part), seed=99, mtp_draft_tokens=2)
    door = Door(desk())
    conversation = opened(door, "cut", settings)
    assert ("partial" if crash else "stopped") == conversation.turns[-1].status
    conversation.continue_answer()
    hear(conversation, door)
    conversation.close()
    tree = Session(store.find("cut")).tree

    assert uninterrupted(desk) == said(conversation)
    assert said(conversation) == [(turn.text, turn.tokens) for turn in tree.path()]
    assert part == list(door.requests[0].messages[-1].tokens)


def test_what_was_copied_says_which_turn_it_is_from(desk: Make) -> None:
    """A second chat says the same again: its tokens are copied from the first one's answer."""
    door = Door(desk())
    settings = Settings(temperature=0.0, max_tokens=30, mtp_adaptive_verification=False)
    answers = []
    for name in ("first", "second"):
        conversation = opened(door, name, settings)
        answers.append(conversation.send("hello the"))
        hear(conversation, door)
        conversation.close()
    first, second = answers

    assert first.tokens == second.tokens
    assert first.id in {turn for _, _, turn in second.copied}
    assert second.id not in {turn for _, _, turn in second.copied}
    assert settings.speculation() == Speculation(adaptive=False)
    for start, count, turn in second.copied:
        letters = set(second.sources[start : start + count])
        assert letters == ({"h"} if turn else {"c"})
        if turn:
            run = second.tokens[start : start + count]
            assert run in [first.tokens[at : at + count] for at in range(len(first.tokens))]
