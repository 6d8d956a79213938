"""What one chat of the window does, without the screen: conversation, queue, state.

Owns the conversation under way and what the engine's events make of it. Knows no widget; the
screen calls `pump`, or `take` for every chat behind one `Board.drain`, and reads what changed.
"""

from __future__ import annotations

import dataclasses
import time

from flarechat.chat import Conversation, Turn
from flarechat.config import Settings
from flarechat.errors import FlarechatError
from flarechat.protocol import (
    Called,
    Delta,
    EngineDoor,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    Loading,
    Progress,
    Ready,
    RequestEvent,
    Round,
)
from flarechat.ui.beat import Beat, joined
from flarechat.ui.board import Board, Clock
from flarechat.ui.played import Played
from flarechat.ui.prefill import prompt_text
from flarechat.ui.wishes import ENDINGS, Wishes


class Bridge(Wishes):
    """Moves engine events into one conversation and the user's wishes down to the engine."""

    def __init__(
        self,
        engine: EngineDoor,
        settings: Settings,
        clock: Clock = time.monotonic,
        board: Board | None = None,
    ) -> None:
        super().__init__(engine, settings, clock, board)
        self.board.chats.append(self)
        self._written: dict[str, str] = {}

    # Engines and conversations

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
        self.conversation, self._undone, self.played = conversation, [], Played()
        self._held_to = None
        self._figures.forget(self.last.usage.context if self.last else 0)
        if self.model:
            conversation.bind(self.model)
            if self.state != "LOADING":
                self._enter("ERROR" if self.error else "IDLE")
        return self.take_queue()

    # The engine's events

    def prompt_status(self) -> str:
        """How far the prompt of the answer shown is, while nothing of the answer is there."""
        if self.state != "PREFILL":
            return ""
        meter = self.meter
        return prompt_text(meter.prompt, meter.prefill)

    def call_under_way(self, turn: Turn) -> str:
        """As much of a call as the model has written in this answer, "" while it writes none."""
        return self._written.get(turn.id, "")

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
        self._tend(beat)
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
        notices = self.conversation.notices
        beat.remarks += notices
        notices.clear()
        return beat

    def _tend(self, beat: Beat) -> None:
        """Go on with calls of tools: results, and the answer that is then asked for."""
        conversation, shown = self.conversation, self.conversation.shown
        added = conversation.tend()
        beat.added += added
        beat.touch(*(turn for turn in added if turn.status != "streaming"))
        asked = [turn for turn in added if turn.role == "assistant"]
        if self.state == "LOADING":
            return
        if asked:
            self._figures.begin(asked, shown)
            self._enter("PREFILL" if conversation.live else "ERROR")
        now = "ASKING" if conversation.waiting else "TOOL" if conversation.running else self.state
        if now != self.state:
            self._enter(now)

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
        self._figures.note(event)
        self.played.note(next(t for t in self.conversation.lives if t.id == event.request), event)
        if isinstance(event, Delta) and event.channel == "tool":
            self._written[event.request] = self._written.get(event.request, "") + event.text
        elif isinstance(event, Called | Finished):
            self._written.pop(event.request, None)
        turn = self.conversation.apply(event)
        if turn is not None:
            beat.touch(turn)
        if isinstance(event, Progress) and event.done < event.total:
            self.loading = Loading(stage="prefill", done=event.done, total=event.total)
        elif isinstance(event, Round) and self.state != "GEN":
            self._enter("GEN")
        elif isinstance(event, Finished):
            self._finish(event, beat)

    def _finish(self, event: Finished, beat: Beat) -> None:
        if event.error:
            beat.returned, self._asked = joined(beat.returned, self._asked), ""
        shown = self.conversation.shown
        if self.state != "LOADING" and not self.busy and shown:
            self._enter(ENDINGS.get(shown.reason, "IDLE"))

    def _fail(self, error: ErrorInfo, beat: Beat) -> None:
        """The engine is gone: end what is under way, give the texts back."""
        lives = self.conversation.lives
        self.conversation.end_calls()
        self.conversation.apply(Failed(error=error))
        beat.touch(*lives)
        beat.returned = joined(beat.returned, self._asked if lives else "", self.take_queue())
        self._enter("ERROR")
