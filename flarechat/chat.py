"""One message of one conversation at a time: from the user's text to a saved answer, or to
several answers (a fan) of which the user picks one to go on with.

Owns the order of things: the user's turn is on the disk before the engine hears of it, pieces of
the answers follow at least every second, an end is synced. Knows no screen and no tensor; a disk
that refuses never stops the chat, it becomes a notice and what waits is written later.
"""

from __future__ import annotations

import time
from pathlib import Path

from flarechat.asking import Asked, check_ways
from flarechat.calls import CallingThread
from flarechat.config import Settings
from flarechat.errors import FlarechatError, SessionError
from flarechat.protocol import (
    Called,
    Constraint,
    EngineDoor,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    Loading,
    ModelInfo,
    Ready,
    Started,
)
from flarechat.sessions import store
from flarechat.sessions.keeper import Keeper
from flarechat.sessions.names import new_id
from flarechat.sessions.session import SessionWriter
from flarechat.sessions.turns import Turn
from flarechat.telemetry import RoundTotals

__all__ = ["Conversation", "Turn"]

CHECKPOINT_S = 1.0


class Conversation(CallingThread):
    """One conversation with an engine: what was said, and the answers and calls under way.

    `settings` and `constraint`, which answers are to satisfy, may be replaced between turns; the
    next request follows them. While it is `busy`, call `tend` often.
    """

    def __init__(self, engine: EngineDoor, settings: Settings) -> None:
        super().__init__(settings)
        self._engine = engine
        self.constraint: Constraint | None = None
        self._asked: dict[str, Asked] = {}
        self._checkpoint_at = 0.0

    @classmethod
    def new(
        cls, engine: EngineDoor, settings: Settings, *, name: str | None = None, saves: bool = True
    ) -> Conversation:
        """An empty conversation. Its file is made at the first send, or never without `saves`."""
        if name is not None and store.exists(name):
            raise SessionError(
                f"There is a session {name!r} already.", "Resume it, or choose another name."
            )
        conversation = cls(engine, settings)
        conversation._keeper = Keeper(conversation.notices, name=name) if saves else None
        return conversation

    @classmethod
    def resume(cls, engine: EngineDoor, settings: Settings, name: str) -> Conversation:
        """Take up a saved one by name, id or unique prefix; holds its lock until `close`."""
        return cls._opened(engine, settings, store.find(name))

    @classmethod
    def latest(cls, engine: EngineDoor, settings: Settings) -> Conversation:
        """Take up the one that was changed last."""
        return cls._opened(engine, settings, store.latest())

    @classmethod
    def open(cls, engine: EngineDoor, settings: Settings, name: str) -> Conversation:
        """Take up the session of exactly this name, or begin it."""
        if store.exists(name):
            return cls.resume(engine, settings, name)
        return cls.new(engine, settings, name=name)

    @classmethod
    def _opened(cls, engine: EngineDoor, settings: Settings, path: Path) -> Conversation:
        conversation = cls(engine, settings)
        writer, session = SessionWriter.open(path)
        notices = conversation.notices
        conversation._keeper = Keeper(notices, name=session.name, writer=writer)
        conversation._tree = session.tree
        conversation._take_turns()
        notices += session.notices
        return conversation

    @property
    def totals(self) -> RoundTotals:
        """The rounds of the answer shown, as far as they were played here."""
        asked = self._asked.get(self.shown.id) if self.shown else None
        return asked.totals if asked else RoundTotals()

    def bind(self, model: ModelInfo) -> None:
        """Learn which model answers; a turn sent before this is submitted now."""
        if model == self._model:
            return
        self._model = model
        known = self._tree.model
        if known.get("fingerprint") and known["fingerprint"] != model.fingerprint:
            self.notices.append(
                f"{self.name} was written with {known.get('name')}; {model.name} goes on with it."
            )
        elif known and self._tree.template_digest not in ("", model.template_digest):
            self.notices.append(f"The chat template of {model.name} changed since {self.name}.")
        for asked in list(self._live.values()):
            if not asked.submitted:
                self._submit(asked, model)

    def send(self, text: str) -> Turn:
        """Save the user's turn, then ask for the answer. Returns the answer's turn, streaming."""
        self._say(text)
        return self._answer()

    def edit(self, turn: Turn, text: str) -> Turn:
        """Say something else in place of one of the user's turns and ask for the answer; what was
        said, and all behind it, stays as a branch. Returns the answer's turn, streaming.
        """
        self._step_before(turn)
        return self.send(text)

    def regenerate(self, turn: Turn | None = None) -> Turn:
        """Ask for another answer to the message that `turn` answers, or is; to the last message
        without one. The answers there are stay as branches, and a seed that is set counts up.
        """
        self._step_back("Write a message first.", turn)
        return self._answer()

    def continue_answer(self) -> Turn:
        """Let the model go on with the last answer, which was stopped or cut off: the text, tokens
        and figures are added to its own; or answer, where a tool's result is the last there is.
        Returns its turn, streaming.
        """
        self._require_rest()
        if self.unanswered:
            return self._answer()
        return self._ask([Asked(self._reopen(), continues=True)])[0]

    def _answer(self) -> Turn:
        """Ask for one answer to the last of the turns, which is the user's or a tool's."""
        turn = Turn(id=new_id(), parent=self.turns[-1].id, role="assistant", text="")
        return self._ask([Asked(turn, len(self._tree.siblings(turn)) + 1)])[0]

    def fan_out(self, text: str, ways: int, *, lanes: int | None = None) -> list[Turn]:
        """Ask for several answers at once, to `text`, or without one to the last message again.
        Returns their turns, streaming; one is to be picked before the conversation goes on. A seed
        that is set counts up, on from the answers there are.
        """
        model, settings = self._model, self.settings
        law = settings.sampling(model.recommended) if model else settings
        check_ways(ways, lanes, law.temperature)
        if text.strip():
            self._say(text)
        else:
            self._step_back("Write /fan N and a message.")
        fan, parent = new_id(), self.turns[-1].id
        answers = [
            Turn(id=new_id(), parent=parent, role="assistant", text="", fan=fan, answer=number)
            for number in range(1, ways + 1)
        ]
        there = len(self._tree.siblings(answers[0]))
        self.fan, self.marked = answers, 0
        return self._ask([Asked(turn, there + turn.answer) for turn in answers])

    def pick(self, number: int) -> Turn:
        """Go on with this answer of the fan, from 0. The others are stopped and stay as branches;
        a picked one that is still under way goes on. The calls of one that was asked for here are
        dealt with now.
        """
        picked = super().pick(number)
        for asked in list(self._live.values()):
            if asked.turn is not picked:
                self._stop(asked)
        if picked.id in self._asked:
            self._begin_calls(picked)
        return picked

    def _ask(self, asked: list[Asked]) -> list[Turn]:
        """Ask for these answers to the last message, all at once."""
        self._asked = {answer.turn.id: answer for answer in asked}
        self._live, self._checkpoint_at = dict(self._asked), time.monotonic()
        answers = [answer.turn for answer in asked]
        for turn in answers:
            turn.status = "streaming"
            self._tree.spread(turn)
        if not self.fan:
            self.turns += answers
        if self._model:
            for answer in asked:
                self._submit(answer, self._model)
        return answers

    def apply(self, event: Event) -> Turn | None:
        """Take in one engine event; returns the turn it touched, the first of several."""
        if isinstance(event, Ready):
            self.notices += event.notices
            self.bind(event.model)
        if isinstance(event, Failed):
            failed = list(self._live.values())
            ended = [self._finish(asked, asked.ending("error", event.error)) for asked in failed]
            return ended[0] if ended else None
        if isinstance(event, Loading | Ready):
            return None
        asked = self._live.get(event.request)
        if asked is None:
            return None
        if isinstance(event, Started | Finished):
            self.notices += event.notices
        if isinstance(event, Finished):
            return self._finish(asked, event)
        if isinstance(event, Called) and event.error:
            self.notices.append(f"The model wrote a call that is none: {event.error}")
        asked.take(event)
        self.checkpoint()
        return asked.turn

    def tend(self) -> list[Turn]:
        """Go on with calls of tools, and save; call it while anything is under way. Returns the
        turns that were added: results, and behind them the answer that is then asked for.
        """
        added, all_told = self._go_on_calling()
        if all_told:
            added.append(self._answer())
        self.checkpoint()
        return added

    def checkpoint(self) -> None:
        """Save the answers so far when a second has passed. Call it also while nothing comes."""
        now = time.monotonic()
        if self._live and self._keeper and now - self._checkpoint_at >= CHECKPOINT_S:
            self._checkpoint_at = now
            for turn in self.lives:
                self._keeper.partial(turn)

    def stop(self) -> None:
        """Cancel every answer and every call under way; what they have stays."""
        self.end_calls()
        for asked in list(self._live.values()):
            self._stop(asked)

    def _stop(self, asked: Asked) -> None:
        if asked.submitted:
            self._engine.cancel(asked.turn.id)
        else:
            self._finish(asked, asked.ending("cancelled"))

    def close(self) -> None:
        """Cancel, save what there is of the answer and release the lock. Safe to call twice."""
        self.stop()
        if self._keeper:
            for turn in self.lives:
                self._keeper.partial(turn, durable=True)
            self._keeper.close()
        self._live = {}

    def _submit(self, asked: Asked, model: ModelInfo) -> None:
        """Ask the engine for one answer; an engine that cannot be asked ends it."""
        self._note_model(model, asked.turn.parent)
        same_device = self._tree.device_fingerprint == model.device_fingerprint
        controller = self._tree.controller if same_device else None
        try:
            turns = self._tree.path_to(self._tree.turns.get(asked.turn.parent or ""))
            private = self._keeper is None
            request = asked.request(
                turns, self.system, self.settings, model, controller, private=private,
                tools=self.toolbox.tools, constraint=self.constraint,
            )  # fmt: skip
            self._engine.submit(request)
            asked.submitted = True
        except FlarechatError as error:
            self._finish(asked, asked.ending("error", ErrorInfo.of(error)))

    def _finish(self, asked: Asked, finished: Finished) -> Turn:
        turn = self._live.pop(asked.turn.id).turn
        asked.end(finished)
        device = self._model.device_fingerprint if self._model else ""
        if finished.controller is not None:
            self._tree.controller, self._tree.device_fingerprint = finished.controller, device
        if self._keeper:
            self._keeper.finish(turn, device)
        if not self.fan:
            self._begin_calls(turn)
        if self.fan and not self._live and not any(map(_says, self.fan)):
            self.pick(0)
        return turn


def _says(answer: Turn) -> bool:
    """Whether there is anything in an answer to choose it for."""
    return bool(answer.text or answer.calls)
