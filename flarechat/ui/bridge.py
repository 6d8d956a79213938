"""What the screen shows and does, without the screen: engine door, conversation, queue, state.

Owns the conversation under way, the messages that wait and the state word. Knows no widget; the
screen calls `pump` on a timer and reads what changed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field

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
    Round,
    Speculation,
    Started,
)
from flarechat.ui.meter import Meter, View, why_no_mtp, why_off

Clock = Callable[[], float]


@dataclass(slots=True)
class Beat:
    """What one pump changed: turns that grew or ended, turns that are new, remarks, texts."""

    touched: list[Turn] = field(default_factory=list)
    added: list[Turn] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    returned: str = ""


def joined(*texts: str) -> str:
    """The texts that are not empty as one, a blank line between."""
    return "\n\n".join(text for text in texts if text)


class Pace:
    """How often to look: slower after an expensive look, faster again when looks are cheap."""

    BUDGET, SLOWEST = 0.05, 0.5

    def __init__(self, base: float) -> None:
        self.base = self.interval = base

    def after(self, spent: float) -> float:
        """The interval to the next look, given what the last one cost."""
        if spent > self.BUDGET:
            self.interval = min(self.interval * 2, self.SLOWEST)
        elif spent < self.BUDGET / 2:
            self.interval = max(self.interval / 2, self.base)
        return self.interval


class Bridge:
    """Moves engine events into the conversation and the user's wishes down to the engine."""

    def __init__(
        self, engine: EngineDoor, settings: Settings, clock: Clock = time.monotonic
    ) -> None:
        self.engine, self.settings, self.clock = engine, settings, clock
        self.model: ModelInfo | None = None
        self.error: ErrorInfo | None = None
        self.state = "LOADING"
        self.loading = Loading(stage="starting")
        self.queue: list[str] = []
        self.last: Finished | None = None
        self.notices: tuple[str, ...] = ()
        self._mtp_wanted = settings.mtp
        self.meter = Meter(clock)
        self.conversation = Conversation.new(engine, settings)
        self._asked = ""
        self._used = 0
        self._since = clock()

    @property
    def busy(self) -> bool:
        """A message sent now would have to wait."""
        return self.conversation.live is not None

    @property
    def elapsed(self) -> float:
        """Seconds in the present state."""
        return self.clock() - self._since

    @property
    def used(self) -> int:
        """Tokens of the context in use, as far as known."""
        return self._used

    @property
    def off(self) -> str:
        """Why drafting is off in the next turn, "" when it is on."""
        return why_off(self.settings.speculation(), self.mtp_off)

    @property
    def mtp_off(self) -> str:
        """Why no MTP head drafts in the next turn, "" when one does."""
        return self._why_no_mtp(self.settings.speculation())

    def _why_no_mtp(self, speculation: Speculation) -> str:
        refused = bool(self.notices)
        return why_no_mtp(self.model, speculation, wanted=self._mtp_wanted, refused=refused)

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
        beat, turn = Beat(), self.conversation.live
        if turn is not None and self.conversation.bound:
            ended = Finished.unplayed(turn.id, "cancelled")
            self.conversation.apply(
                dataclasses.replace(ended, text=turn.text, thinking=turn.thinking)
            )
            beat.touched.append(turn)
            beat.returned = joined(self._asked, self.take_queue())
            self.last = turn.finished
        self.error = None
        self.loading = Loading(stage="starting")
        self._enter("LOADING")
        self.engine.start()
        return beat

    def send(self, text: str) -> list[Turn]:
        """Send a message, or queue it while busy. Returns the new turns, none when queued."""
        if self.state == "ERROR" and self.error:
            self.start()
        if self.busy:
            self.queue.append(text)
            return []
        before = len(self.conversation.turns)
        self.conversation.settings = self.settings
        self._asked = text
        self.meter.begin()
        self.conversation.send(text)
        self.last = None
        if self.state != "LOADING":
            self._enter("PREFILL")
        return self.conversation.turns[before:]

    def stop(self) -> Beat:
        """Stop the answer under way; what was queued is returned.

        A turn that the engine never heard of ends here and now: no event will tell.
        """
        beat, turn = Beat(), self.conversation.live
        if turn is not None:
            self.conversation.stop()
            if self.conversation.live is None:
                beat.touched.append(turn)
                self.last = turn.finished
        beat.returned = self.take_queue()
        return beat

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

    def _change(self, conversation: Conversation) -> str:
        self.conversation.close()
        # What closing had to say, of a chat that could not be saved, is still to be shown.
        conversation.notices[:0] = self.conversation.notices
        self.conversation = conversation
        self.meter = Meter(self.clock)
        ended = [turn.finished for turn in conversation.turns if turn.finished]
        self.last = ended[-1] if ended else None
        self._used = self.last.usage.context if self.last else 0
        if self.model:
            conversation.bind(self.model)
            if self.state != "LOADING":
                self._enter("ERROR" if self.error else "IDLE")
        return self.take_queue()

    # The engine's events

    def pump(self) -> Beat:
        """Take in what the engine said since the last call; send what was waiting."""
        beat = Beat()
        for event in self.engine.drain():
            self._take(event, beat)
        if self.queue and not self.busy and not self.error:
            text = self.queue.pop(0)
            try:
                beat.added += self.send(text)
            except FlarechatError as error:
                beat.remarks.append(f"Error: {error}")
                beat.returned = joined(beat.returned, text)
        self.conversation.checkpoint()
        notices = self.conversation.notices
        beat.remarks += notices
        notices.clear()
        return beat

    def _take(self, event: Event, beat: Beat) -> None:
        if isinstance(event, Loading):
            self.loading = event
        elif isinstance(event, Ready):
            self.model, self.error = event.model, None
            self.conversation.notices += [n for n in event.notices if n not in self.notices]
            self.notices = event.notices
            self.conversation.bind(event.model)
            self._enter("PREFILL" if self.conversation.live else "IDLE")
        elif isinstance(event, Failed):
            self._fail(event.error, beat)
        elif self.conversation.live and event.request == self.conversation.live.id:
            self._take_request(event, beat)

    def _take_request(self, event: Event, beat: Beat) -> None:
        self.meter.note(event)
        turn = self.conversation.apply(event)
        if turn is not None and turn not in beat.touched:
            beat.touched.append(turn)
        if isinstance(event, Started):
            self._used = event.prompt_tokens
        elif isinstance(event, Progress) and event.done < event.total:
            self.loading = Loading(stage="prefill", done=event.done, total=event.total)
        elif isinstance(event, Round):
            self._used = event.context + event.emitted
            if self.state != "GEN":
                self._enter("GEN")
        elif isinstance(event, Finished):
            self._finish(event, beat)

    def _finish(self, event: Finished, beat: Beat) -> None:
        self.last = event
        if event.usage.prompt_tokens:
            self._used = event.usage.context
        if event.error:
            beat.returned = joined(beat.returned, self._asked)
        words = {"cancelled": "STOPPED", "error": "ERROR"}
        if self.state != "LOADING":
            self._enter(words.get(event.reason, "IDLE"))

    def _fail(self, error: ErrorInfo, beat: Beat) -> None:
        """The engine is gone: end the turn, give the texts back, say why."""
        self.error = error
        turn = self.conversation.apply(Failed(error=error))
        if turn:
            beat.touched.append(turn)
        else:
            beat.remarks.append(f"Error: {error.exception()}")
        beat.returned = joined(beat.returned, self._asked if turn else "", self.take_queue())
        self._enter("ERROR")

    def _enter(self, state: str) -> None:
        self.state, self._since = state, self.clock()
        if state == "PREFILL":
            self.loading = Loading(stage="prefill")
