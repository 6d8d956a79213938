"""One turn of one conversation at a time: from the user's text to a saved answer.

Owns the order of things: the user's turn is on the disk before the engine hears of it, pieces of
the answer follow at least every second, the end is synced. Knows no screen and no tensor; a disk
that refuses never stops the chat, it becomes a notice and what waits is written later.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from flarechat.config import Settings
from flarechat.errors import FlarechatError, SessionError, UsageError
from flarechat.protocol import (
    Delta,
    EngineDoor,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    Loading,
    MemoryInfo,
    Message,
    ModelInfo,
    Ready,
    Request,
    Round,
    Sampling,
    Timings,
    Usage,
)
from flarechat.sessions import store
from flarechat.sessions.keeper import Keeper
from flarechat.sessions.names import new_id
from flarechat.sessions.session import SessionWriter, new_header
from flarechat.sessions.turns import Turn, TurnTree, model_fields
from flarechat.telemetry import RoundTotals
from flarechat.textsafe import well_formed

__all__ = ["Conversation", "Turn"]

CHECKPOINT_S = 1.0


class Conversation:
    """One conversation: its turns, its session file and the turn under way.

    `settings` may be replaced between turns; the next request follows them.
    """

    def __init__(self, engine: EngineDoor, settings: Settings) -> None:
        self.turns: list[Turn] = []
        self.live: Turn | None = None
        self.totals = RoundTotals()
        self.notices: list[str] = []
        self.settings = settings
        self._engine = engine
        self._keeper: Keeper | None = None
        self._tree = TurnTree()
        self._model: ModelInfo | None = None
        self._submitted = False
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
        conversation._tree, conversation.turns = session.tree, session.tree.path()
        notices += session.notices
        return conversation

    @property
    def name(self) -> str:
        """The session's name; empty until it has one."""
        return self._keeper.name if self._keeper else ""

    @property
    def system(self) -> str | None:
        """The system prompt: the one set now ("" sets none), else the one saved last."""
        now = self.settings.system
        return self._tree.system if now is None else now

    @property
    def memory(self) -> MemoryInfo | None:
        """The loaded model's memory, priced and allocated."""
        return self._model.memory if self._model else None

    @property
    def bound(self) -> bool:
        """Whether the model that answers is known."""
        return self._model is not None

    @property
    def unsaved(self) -> bool:
        """Whether the disk refused something that has not been written since."""
        return self._keeper is not None and self._keeper.unsaved

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
        if self.live and not self._submitted:
            self._submit(model)

    def send(self, text: str) -> Turn:
        """Save the user's turn, then ask for the answer. Returns the answer's turn, streaming."""
        if self.live:
            raise UsageError("An answer is still under way.", "Stop it first.")
        user = Turn(id=new_id(), parent=self._tree.head, role="user", text=well_formed(text))
        if self._keeper:
            if not self._keeper.begun:
                self._keeper.begin(self._header(), user.text)
            elif (self.system or "") != (self._tree.system or ""):
                self._keeper.system(self.system or "", self._tree.head)
            self._keeper.user(user)
        self._tree.system = self.system
        self._add(user)
        live = Turn(id=new_id(), parent=user.id, role="assistant", text="", status="streaming")
        self._add(live)
        self.live, self.totals = live, RoundTotals()
        self._submitted, self._checkpoint_at = False, time.monotonic()
        if self._model:
            self._submit(self._model)
        return live

    def apply(self, event: Event) -> Turn | None:
        """Take in one engine event; returns the turn it touched."""
        if isinstance(event, Ready):
            self.notices += event.notices
            self.bind(event.model)
        if isinstance(event, Failed) and self.live:
            return self._finish(self._ending("error", event.error))
        if isinstance(event, Loading | Ready | Failed):
            return None
        if self.live is None or event.request != self.live.id:
            return None
        if isinstance(event, Finished):
            return self._finish(event)
        if isinstance(event, Round):
            self.totals.add(event)
        if isinstance(event, Delta) and event.channel == "answer":
            self.live.text += event.text
        elif isinstance(event, Delta) and event.channel == "thinking":
            self.live.thinking += event.text
        self.checkpoint()
        return self.live

    def checkpoint(self) -> None:
        """Save the answer so far when a second has passed. Call it also while nothing comes."""
        now = time.monotonic()
        if self.live and self._keeper and now - self._checkpoint_at >= CHECKPOINT_S:
            self._checkpoint_at = now
            self._keeper.partial(self.live)

    def stop(self) -> None:
        """Cancel the answer under way; what it has stays."""
        if self.live and self._submitted:
            self._engine.cancel(self.live.id)
        elif self.live:
            self._finish(self._ending("cancelled"))

    def close(self) -> None:
        """Cancel, save what there is of the answer and release the lock. Safe to call twice."""
        self.stop()
        if self._keeper:
            if self.live:
                self._keeper.partial(self.live, durable=True)
            self._keeper.close()
        self.live = None

    def _add(self, turn: Turn) -> None:
        self._tree.add(turn)
        self.turns.append(turn)

    def _submit(self, model: ModelInfo) -> None:
        """Ask the engine for the live turn; an engine that cannot be asked ends it."""
        assert self.live is not None, "only a live turn is submitted"
        self._note_model(model, self.live.parent)
        same_device = self._tree.device_fingerprint == model.device_fingerprint
        settings = self.settings
        try:
            request = Request(
                id=self.live.id,
                messages=self._messages(),
                sampling=settings.sampling(model.recommended),
                speculation=settings.speculation(),
                max_tokens=settings.max_tokens,
                stop=settings.stop,
                logprobs=settings.logprobs,
                thinking=settings.thinking,
                controller=self._tree.controller if same_device else None,
            )
            self._engine.submit(request)
            self._submitted = True
        except FlarechatError as error:
            self._finish(self._ending("error", ErrorInfo.of(error)))

    def _note_model(self, model: ModelInfo, head: str | None) -> None:
        """Write down which model answers from here on, where the file does not say so yet."""
        known = (self._tree.model.get("fingerprint"), self._tree.template_digest)
        if self._keeper and known != (model.fingerprint, model.template_digest):
            self._keeper.model(model, head)
            self._tree.model = model_fields(model)
            self._tree.template_digest = model.template_digest

    def _messages(self) -> tuple[Message, ...]:
        """What the model is given: no empty turn, neighbours of one role as one message, and
        nothing of what it thought.

        A message whose answer failed is left out with it: it is sent again, or never fits.
        """
        system = self.system
        messages = [Message(role="system", content=well_formed(system))] if system else []
        for turn, reply in zip(self.turns, [*self.turns[1:], None], strict=True):
            failed = turn.status == "error" or (reply is not None and reply.status == "error")
            if failed or not turn.text.strip():
                continue
            text = well_formed(turn.text)
            if messages and messages[-1].role == turn.role:
                text = f"{messages.pop().content}\n\n{text}"
            messages.append(Message(role=turn.role, content=text))
        return tuple(messages)

    def _finish(self, finished: Finished) -> Turn:
        turn, self.live = self.live, None
        assert turn is not None, "only a live turn ends"
        turn.finish(finished)
        device = self._model.device_fingerprint if self._model else ""
        if finished.controller is not None:
            self._tree.controller, self._tree.device_fingerprint = finished.controller, device
        if self._keeper:
            self._keeper.finish(turn, device)
        return turn

    def _ending(self, reason: str, error: ErrorInfo | None = None) -> Finished:
        """The finish record of a turn that the engine could not end itself."""
        assert self.live is not None
        totals = self.totals
        usage = Usage(
            prompt_tokens=0, restored_tokens=0, completion_tokens=totals.emitted, context=0
        )
        return Finished(
            request=self.live.id,
            reason=reason,
            text=self.live.text,
            usage=usage,
            timings=Timings(
                prefill_ms=0.0,
                decode_ms=totals.decode_ms,
                first_token_ms=0.0,
                tokens_per_second=totals.tokens_per_second(),
            ),
            speculation=totals.summary(),
            error=error,
            thinking=self.live.thinking,
        )

    def _header(self) -> dict[str, Any]:
        """The first line of a new session, from what is known by now."""
        model = self._model
        if model:
            self._tree.model = model_fields(model)
            self._tree.template_digest = model.template_digest
        return new_header(
            model=model,
            model_name=self.settings.model,
            sampling=self.settings.sampling(model.recommended if model else Sampling()),
            speculation=self.settings.speculation(),
            system=self.system,
        )
