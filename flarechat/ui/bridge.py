"""What one chat of the window shows and does, without the screen: conversation, queue, state.

Owns the conversation under way, the messages that wait and the state word. Knows no widget; the
screen calls `pump`, or `take` for every chat behind one `Board.drain`, and reads what changed.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque

from flarechat.chat import Conversation, Turn
from flarechat.config import Settings
from flarechat.errors import FlarechatError
from flarechat.protocol import (
    EngineDoor,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    Loading,
    ModelInfo,
    Progress,
    Ready,
    RequestEvent,
    Round,
    Speculation,
    Started,
)
from flarechat.sessions import names
from flarechat.ui.beat import Beat, joined
from flarechat.ui.board import Board, Clock
from flarechat.ui.meter import Meter, View, why_no_mtp, why_off

ENDINGS = {"cancelled": "STOPPED", "error": "ERROR"}


class Bridge:
    """Moves engine events into one conversation and the user's wishes down to the engine."""

    def __init__(
        self,
        engine: EngineDoor,
        settings: Settings,
        clock: Clock = time.monotonic,
        board: Board | None = None,
    ) -> None:
        self.board = board or Board(engine, settings, clock)
        self.settings, self.clock, self.engine = settings, clock, self.board.engine
        self.box: deque[Event] = deque()
        self.queue: list[str] = []
        self.conversation = Conversation.new(self.engine, settings)
        self.loading = self.board.loading
        self._held = Beat()
        self._asked = ""
        self._forget()
        self.state = "LOADING"
        if self.board.model:
            self.conversation.bind(self.board.model)
            self.state = "ERROR" if self.board.error else "IDLE"
        self._since = clock()
        self.board.chats.append(self)

    def _forget(self) -> None:
        """Begin the figures anew."""
        self._meters: dict[str, Meter] = {}
        self._contexts: dict[str, int] = {}
        self._started: set[str] = set()
        self._idle = Meter(self.clock)
        self._used = 0

    # What the screen reads

    @property
    def model(self) -> ModelInfo | None:
        """The loaded model."""
        return self.board.model

    @property
    def error(self) -> ErrorInfo | None:
        """Why there is no engine."""
        return self.board.error

    @property
    def notices(self) -> tuple[str, ...]:
        """What the engine said when it was ready."""
        return self.board.notices

    @property
    def busy(self) -> bool:
        """A message sent now would have to wait."""
        return self.conversation.live is not None

    @property
    def title(self) -> str:
        """The chat in a few words: how it began."""
        turns = self.conversation.turns
        return names.title(turns[0].text) if turns else self.conversation.name or "new chat"

    @property
    def elapsed(self) -> float:
        """Seconds in the present state."""
        return self.clock() - self._since

    @property
    def used(self) -> int:
        """Tokens of the context in use, as far as known."""
        shown = self.conversation.shown
        return self._contexts.get(shown.id, self._used) if shown else self._used

    @property
    def last(self) -> Finished | None:
        """How the answer shown ended, or the last one before it; None while it is written."""
        shown = self.conversation.shown
        if shown is None or shown.status == "streaming":
            return None
        ended = (turn.finished for turn in (shown, *reversed(self.conversation.turns)))
        return next((finished for finished in ended if finished), None)

    def waits(self, turn: Turn) -> bool:
        """Whether an answer has no lane of the engine yet because all are taken."""
        return turn.status == "streaming" and turn.id not in self._started and self.board.full

    @property
    def off(self) -> str:
        """Why drafting is off in the next turn, "" when it is on."""
        return why_off(self.settings.speculation(), self.mtp_off)

    @property
    def mtp_off(self) -> str:
        """Why no MTP head drafts in the next turn, "" when one does."""
        return self._why_no_mtp(self.settings.speculation())

    def _why_no_mtp(self, speculation: Speculation) -> str:
        wanted, refused = self.board.mtp_wanted, bool(self.notices)
        return why_no_mtp(self.model, speculation, wanted=wanted, refused=refused)

    @property
    def meter(self) -> Meter:
        """The meter of the answer shown."""
        shown = self.conversation.shown
        return self._meters.get(shown.id, self._idle) if shown else self._idle

    def view(self) -> View:
        """The panels' figures of this moment; what is off is so in this turn or in the next."""
        view, off, mtp_off = self.meter.view(self.conversation.totals), "", ""
        if now := self.meter.speculation:
            mtp_off = self._why_no_mtp(now)
            off = why_off(now, mtp_off)
        return dataclasses.replace(view, off=off or self.off, mtp_off=mtp_off or self.mtp_off)

    # The user's wishes

    def start(self) -> Beat:
        """Start the engine, or start it again.

        A turn that the engine before was asked for ends here; its text and the queue are returned.
        """
        self.board.start()
        beat, self._held = self._held, Beat()
        return beat

    def interrupt(self) -> None:
        """The engine starts anew: what the one before was asked ends here."""
        conversation = self.conversation
        if conversation.bound and (lives := conversation.lives):
            for turn in lives:
                ended = Finished.unplayed(turn.id, "cancelled")
                conversation.apply(
                    dataclasses.replace(ended, text=turn.text, thinking=turn.thinking)
                )
            self._held.touch(*lives)
            self._held.returned = joined(self._held.returned, self._asked, self.take_queue())
        self.loading = Loading(stage="starting")
        self._enter("LOADING")

    def send(self, text: str) -> list[Turn]:
        """Send a message, or queue it while busy. Returns the new turns, none when queued."""
        self._wake()
        if self.busy and not self.conversation.fan:
            self.queue.append(text)
            return []
        return self._ask(text, 1)

    def fan(self, text: str, ways: int) -> list[Turn]:
        """Ask for several answers at once, to the last message again without a text. Returns the
        turns that are new in the transcript; the answers wait in the conversation's fan.
        """
        self._wake()
        return self._ask(text, ways)

    def _wake(self) -> None:
        if self.state == "ERROR" and self.error:
            self.start()

    def _ask(self, text: str, ways: int) -> list[Turn]:
        conversation, known = self.conversation, {turn.id for turn in self.conversation.turns}
        conversation.settings = self.settings
        used, plain = self.used, self.meter.plain
        if ways == 1:
            answers = [conversation.send(text)]
        else:
            answers = conversation.fan_out(text, ways, lanes=self.board.lanes)
        self._forget()
        self._used, self._asked = used, text
        self._meters = {turn.id: Meter(self.clock, plain) for turn in answers}
        if self.state != "LOADING":
            self._enter("PREFILL")
        return [turn for turn in conversation.turns if turn.id not in known]

    def stop(self) -> Beat:
        """Stop every answer under way; what was queued is returned.

        A turn that the engine never heard of ends here and now: no event will tell.
        """
        beat, lives = Beat(), self.conversation.lives
        self.conversation.stop()
        beat.touch(*(turn for turn in lives if turn.status != "streaming"))
        beat.returned = self.take_queue()
        return beat

    def pick(self, number: int) -> Turn:
        """Go on with one answer of the fan, from 0."""
        picked = self.conversation.pick(number)
        if not self.busy and self.state != "LOADING":
            self._enter(ENDINGS.get(picked.reason, "IDLE"))
        return picked

    def take_queue(self) -> str:
        """Empty the queue into one text."""
        text, self.queue = joined(*self.queue), []
        return text

    def new(self) -> str:
        """Start another conversation; the present one is saved and closed.

        This and the three below return what was queued, for the prompt.
        """
        return self._change(Conversation.new(self.engine, self.settings))

    def resume(self, name: str) -> str:
        """Open a saved conversation; the present one stays when that fails."""
        return self._change(Conversation.resume(self.engine, self.settings, name))

    def latest(self) -> str:
        """Open the conversation used last."""
        return self._change(Conversation.latest(self.engine, self.settings))

    def open(self, name: str) -> str:
        """Open the conversation of exactly this name, or begin it."""
        return self._change(Conversation.open(self.engine, self.settings, name))

    def close(self) -> None:
        """Stop, save and leave the board."""
        self.conversation.close()
        if self in self.board.chats:
            self.board.chats.remove(self)

    def _change(self, conversation: Conversation) -> str:
        self.conversation.close()
        # What closing had to say, of a chat that could not be saved, is still to be shown.
        conversation.notices[:0] = self.conversation.notices
        self.conversation = conversation
        self._forget()
        self._used = self.last.usage.context if self.last else 0
        if self.model:
            conversation.bind(self.model)
            if self.state != "LOADING":
                self._enter("ERROR" if self.error else "IDLE")
        return self.take_queue()

    # The engine's events

    def pump(self) -> Beat:
        """Take in what the engine said since the last call; send what was waiting."""
        self.board.drain()
        beat = self.take()
        beat.remarks[:0] = self.board.take_news()
        return beat

    def take(self) -> Beat:
        """Take in what the board has put into the box; send what was waiting."""
        beat, self._held = self._held, Beat()
        while self.box:
            self._take(self.box.popleft(), beat)
        if self.queue and not self.busy and not self.error:
            text = self.queue.pop(0)
            try:
                beat.added += self.send(text)
            except FlarechatError as error:
                beat.remarks.append(f"Error: {error}")
                beat.returned = joined(beat.returned, text)
        if self.state in ("PREFILL", "WAITING"):
            waits = all(self.waits(turn) for turn in self.conversation.lives)
            if waits != (self.state == "WAITING"):
                self._enter("WAITING" if waits else "PREFILL")
        self.conversation.checkpoint()
        notices = self.conversation.notices
        beat.remarks += notices
        notices.clear()
        return beat

    def _take(self, event: Event, beat: Beat) -> None:
        if isinstance(event, Loading):
            self.loading = event
        elif isinstance(event, Ready):
            self.conversation.bind(event.model)
            self._enter("PREFILL" if self.conversation.live else "IDLE")
        elif isinstance(event, Failed):
            self._fail(event.error, beat)
        elif any(turn.id == event.request for turn in self.conversation.lives):
            self._take_request(event, beat)

    def _take_request(self, event: RequestEvent, beat: Beat) -> None:
        request = event.request
        if request in self._meters:
            self._meters[request].note(event)
        turn = self.conversation.apply(event)
        if turn is not None:
            beat.touch(turn)
        if isinstance(event, Started):
            self._started.add(request)
            self._contexts[request] = event.prompt_tokens
        elif isinstance(event, Progress) and event.done < event.total:
            self.loading = Loading(stage="prefill", done=event.done, total=event.total)
        elif isinstance(event, Round):
            self._contexts[request] = event.context + event.emitted
            if self.state != "GEN":
                self._enter("GEN")
        elif isinstance(event, Finished):
            self._finish(event, beat)

    def _finish(self, event: Finished, beat: Beat) -> None:
        if event.usage.prompt_tokens:
            self._contexts[event.request] = event.usage.context
        if event.error:
            beat.returned, self._asked = joined(beat.returned, self._asked), ""
        shown = self.conversation.shown
        if self.state != "LOADING" and not self.busy and shown:
            self._enter(ENDINGS.get(shown.reason, "IDLE"))

    def _fail(self, error: ErrorInfo, beat: Beat) -> None:
        """The engine is gone: end what is under way, give the texts back."""
        lives = self.conversation.lives
        self.conversation.apply(Failed(error=error))
        beat.touch(*lives)
        beat.returned = joined(beat.returned, self._asked if lives else "", self.take_queue())
        self._enter("ERROR")

    def _enter(self, state: str) -> None:
        self.state, self._since = state, self.clock()
        if state == "PREFILL":
            self.loading = Loading(stage="prefill")
