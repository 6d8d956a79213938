"""What the user asks of one chat: to send, edit, answer again, go on, take back, stop, pick.

Owns the messages that wait and the places that undo left. Knows no widget; the screen draws what
has become of the conversation's turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from flarechat.chat import Conversation, Turn
from flarechat.config import Settings
from flarechat.errors import UsageError
from flarechat.protocol import EngineDoor
from flarechat.tools.toolbox import Toolbox
from flarechat.ui.beat import Beat, joined
from flarechat.ui.board import Board, Clock
from flarechat.ui.constraints import NamedConstraint
from flarechat.ui.played import Played
from flarechat.ui.standing import Standing

CALLING = ("ASKING", "TOOL")
_RECENT = 6
ENDINGS = {"cancelled": "STOPPED", "error": "ERROR"}
Left = TypeVar("Left")


class Wishes(Standing):
    """Takes the user's wishes down to the conversation and the engine."""

    def __init__(
        self,
        engine: EngineDoor,
        settings: Settings,
        clock: Clock = time.monotonic,
        board: Board | None = None,
    ) -> None:
        super().__init__(engine, settings, clock, board)
        self._undone: list[Turn] = []
        self.played = Played()

    def start(self) -> Beat:
        """Start the engine, or start it again.

        A turn that the engine before was asked for ends here; its text and the queue are returned.
        """
        self.board.start()
        beat, self._held = self._held, Beat()
        return beat

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

    def edit(self, turn: Turn, text: str) -> None:
        """Say something else in place of one of the user's turns."""
        self._wake()
        self._begin(lambda talk: [talk.edit(turn, text)], text)

    def regenerate(self, turn: Turn) -> None:
        """Ask for another answer to the message that a turn answers, or is."""
        self._wake()
        self._begin(lambda talk: [talk.regenerate(turn)])

    def go_on(self, turn: Turn) -> None:
        """Let the model go on with the last answer, which was stopped or cut off."""
        turns = self.conversation.turns
        if turns and turn is not turns[-1]:
            raise UsageError(
                "Only the last answer goes on.", "Go back to that turn first: b, or /branch N."
            )
        self._wake()
        self._begin(lambda talk: [talk.continue_answer()])

    def undo(self) -> Turn:
        """Take back the last message and its answer; returns the message."""
        return self._leave(Conversation.undo)

    def branch_at(self, turn: Turn) -> None:
        """Go back, or over, to a turn: the next message goes behind it."""
        self._leave(lambda talk: talk.branch_at(turn))

    def branch(self, turn: Turn, step: int) -> bool:
        """Go over to another turn in the place of this one, and to what followed it; whether there
        is one in that direction.
        """
        went = self.conversation.branch(turn, step)
        if went:
            self._rested()
        return went

    def redo(self) -> None:
        """Go to where the chat was before it was last taken back, or gone back in."""
        if not self._undone:
            raise UsageError("There is nothing to bring back.", "/tree shows every branch.")
        self.conversation.branch_at(self._undone[-1])
        self._undone.pop()
        self._rested()

    def _leave(self, go: Callable[[Conversation], Left]) -> Left:
        """Go elsewhere in the conversation, and remember where it was."""
        here = self.conversation.turns[-1:]
        left = go(self.conversation)
        self._undone += here
        self._rested()
        return left

    def _rested(self) -> None:
        """The chat stands elsewhere: its state is that of the last answer there."""
        shown = self.conversation.shown
        self._figures.forget(self.last.usage.context if self.last else 0)
        if self.state != "LOADING" and not self.error:
            self._enter(ENDINGS.get(shown.reason, "IDLE") if shown else "IDLE")

    def _ask(self, text: str, ways: int) -> list[Turn]:
        known = {turn.id for turn in self.conversation.turns}
        if ways == 1:
            self._begin(lambda talk: [talk.send(text)], text)
        else:
            self._begin(lambda talk: talk.fan_out(text, ways, lanes=self.board.lanes), text)
        return [turn for turn in self.conversation.turns if turn.id not in known]

    def _begin(self, ask: Callable[[Conversation], list[Turn]], text: str = "") -> None:
        """Ask for answers; `text` goes back to the prompt if they fail."""
        conversation = self.conversation
        conversation.settings = self.settings
        held = self.constraint
        conversation.constraint = held.constraint if held else None
        # Under a constraint no call could be written, so no tool is shown.
        conversation.toolbox = Toolbox() if held else self.toolbox
        shown = conversation.shown
        answers = ask(conversation)
        self._figures.begin(answers, shown)
        self._asked, self._undone, self._held_to = text, [], held
        if self.state != "LOADING":
            self._enter("PREFILL")

    def stop(self) -> Beat:
        """Stop every answer under way; what was queued is returned.

        A turn that the engine never heard of ends here and now: no event will tell.
        """
        beat, lives, calling = Beat(), self.conversation.lives, not self.conversation.live
        self.conversation.stop()
        if calling and not self.busy and self.state in CALLING:
            self._enter("STOPPED")
        beat.touch(*(turn for turn in lives if turn.status != "streaming"))
        beat.returned = self.take_queue()
        return beat

    def pick(self, number: int) -> Turn:
        """Go on with one answer of the fan, from 0."""
        picked = self.conversation.pick(number)
        if not self.busy and self.state != "LOADING":
            self._enter(ENDINGS.get(picked.reason, "IDLE"))
        return picked

    def constrain(self, constraint: NamedConstraint | None) -> None:
        """Hold the answers from the next on to a constraint, or to none."""
        self.constraint = constraint
        if constraint:
            others = [known for known in self.recent if known != constraint]
            self.recent = [constraint, *others][:_RECENT]

    def equip(self, toolbox: Toolbox, settings: Settings) -> None:
        """Let the model call these tools from the next answer on, as these settings say. What was
        allowed before is forgotten: what a name stands for may be another program now.
        """
        self.conversation.allowed.clear()
        self.toolbox, self.settings = toolbox, settings

    def take_over(self, other: Wishes) -> None:
        """Hold answers to what another chat's are held to, as its settings were taken over."""
        self.constraint, self.recent, self.toolbox = (
            other.constraint, list(other.recent), other.toolbox,
        )  # fmt: skip

    def answer_call(self, call: str, answer: str, text: str = "") -> None:
        """Say yes, always or no to a call that waits, or give its result; of one that no longer
        waits, nothing comes.
        """
        talk = self.conversation
        if talk.waiting is None or talk.waiting.id != call:
            return
        if answer == "result":
            talk.answer_call(text)
        elif answer == "no":
            talk.refuse()
        else:
            talk.allow(always=answer == "always")

    def take_queue(self) -> str:
        """Empty the queue into one text."""
        text, self.queue = joined(*self.queue), []
        return text
