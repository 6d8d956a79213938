"""How one chat stands: its conversation, its state word, its figures; all that the screen reads.

Owns these and changes nothing by itself: the bridge does, on events and on the user's wishes.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque

from flarechat.chat import Conversation, Turn
from flarechat.config import Settings
from flarechat.models.sidecars import is_refusal
from flarechat.protocol import (
    EngineDoor,
    ErrorInfo,
    Event,
    Finished,
    Loading,
    ModelInfo,
    Speculation,
)
from flarechat.sessions import names
from flarechat.tools.toolbox import Toolbox
from flarechat.ui.beat import Beat
from flarechat.ui.board import Board, Clock
from flarechat.ui.constraints import NamedConstraint
from flarechat.ui.figures import Figures
from flarechat.ui.held import CALLS_SEEN, Held, held_to, held_to_calls
from flarechat.ui.meter import Meter, View, why_no_mtp, why_off

_READ = 400


class Standing:
    """How one chat of the window stands."""

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
        self._figures = Figures(clock)
        self.constraint: NamedConstraint | None = None
        self.recent: list[NamedConstraint] = []
        self.toolbox = Toolbox()
        self._held_to: NamedConstraint | None = None
        if self.board.model:
            self.conversation.bind(self.board.model)
        self.state = "ERROR" if self.board.error else "IDLE" if self.board.ready else "LOADING"
        self._since = clock()

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
        return self.conversation.busy

    @property
    def title(self) -> str:
        """The chat in a few words: what it is called, or how it began."""
        turns = self.conversation.turns
        if given := self.conversation.tree.title:
            return given
        begun = turns[0].text[:_READ] if turns else ""
        return names.title(begun) if begun else self.conversation.name or "new chat"

    @property
    def elapsed(self) -> float:
        """Seconds in the present state."""
        return self.clock() - self._since

    @property
    def used(self) -> int:
        """Tokens of the context in use, as far as known."""
        return self._figures.used(self.conversation.shown)

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
        live = turn.status == "streaming"
        return live and not self._figures.has_lane(turn) and self.board.full

    @property
    def off(self) -> str:
        """Why drafting is off in the next turn, "" when it is on."""
        return why_off(self.settings.speculation(), self.mtp_off)

    @property
    def mtp_off(self) -> str:
        """Why no MTP head drafts in the next turn, "" when one does."""
        return self._why_no_mtp(self.settings.speculation())

    def _why_no_mtp(self, speculation: Speculation) -> str:
        wanted, refused = self.board.mtp_wanted, any(map(is_refusal, self.notices))
        return why_no_mtp(self.model, speculation, wanted=wanted, refused=refused)

    @property
    def meter(self) -> Meter:
        """The meter of the answer shown."""
        return self._figures.meter(self.conversation.shown)

    def view(self) -> View:
        """The panels' figures of this moment; what is off is so in this turn or in the next."""
        view, off, mtp_off = self.meter.view(self.conversation.totals), "", ""
        if now := self.meter.speculation:
            mtp_off = self._why_no_mtp(now)
            off = why_off(now, mtp_off)
        return dataclasses.replace(
            view, off=off or self.off, mtp_off=mtp_off or self.mtp_off,
            held=self._held_view(),
        )  # fmt: skip

    @property
    def held(self) -> str:
        """What the next answer is held to, in a few words, "" for nothing."""
        if self.constraint:
            return self.constraint.label
        names = [tool.name for tool in self.toolbox.tools]
        if not names or self.settings.tool_choice == "none":
            return ""
        return f"tools {len(names)}" if len(names) > 1 else f"tool {names[0]}"

    def _held_view(self) -> Held | None:
        """What the answer shown is held to, and how that went; None where it is to nothing."""
        conversation, shown = self.conversation, self.conversation.shown
        if self._held_to or (self.constraint and not conversation.busy):
            constraint = self._held_to or self.constraint
            asked = shown if self._held_to else None
            return held_to(constraint, asked, self.meter) if constraint else None
        if not self.held:
            return None
        calls = conversation.turns[-CALLS_SEEN:]
        return held_to_calls(self.held, self.state, calls, self.meter)

    def _enter(self, state: str) -> None:
        self.state, self._since = state, self.clock()
        if state == "PREFILL":
            self.loading = Loading(stage="prefill")
