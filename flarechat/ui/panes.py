"""One chat of the window with its own widgets: transcript, fan of answers, prompt.

Owns drawing what a beat changed, or keeping it while the chat is hidden. Moves no focus and knows
no other chat.
"""

from __future__ import annotations

import shlex

from textual.containers import Vertical

from flarechat.chat import Turn
from flarechat.ui.beat import Beat
from flarechat.ui.bridge import Bridge
from flarechat.ui.format import Glyphs
from flarechat.ui.widgets.fan import FanView
from flarechat.ui.widgets.prompt import Prompt
from flarechat.ui.widgets.question import Asked, Question
from flarechat.ui.widgets.tabbar import TabState
from flarechat.ui.widgets.transcript import Transcript

WORDS = {
    "GEN": "writing",
    "PREFILL": "writing",
    "TOOL": "writing",
    "WAITING": "waiting",
    "ASKING": "asks",
    "ERROR": "error",
}


class Pane:
    """A chat and its widgets. While it is hidden nothing is drawn: `pending` keeps what came."""

    def __init__(self, bridge: Bridge, marks: Glyphs) -> None:
        self.bridge = bridge
        self.transcript = Transcript(marks, self._place)
        self.fan = FanView(marks, bridge.waits)
        self.question = Question(marks, bridge.clock)
        self.box = Vertical(self.transcript, self.fan, self.question, classes="pane")
        self.prompt = Prompt()
        self.pending = Beat()
        self.unread = False
        self.editing: Turn | None = None
        self._draft = ""
        self._remembered: set[str] = set()

    def _place(self, turn: Turn) -> tuple[int, int]:
        return self.bridge.conversation.place(turn)

    @property
    def state(self) -> TabState:
        """What the row of tabs says of this chat."""
        bridge = self.bridge
        word = WORDS.get(bridge.state, "")
        if bridge.state == "LOADING" and bridge.busy:
            word = "waiting"
        elif not bridge.busy and bridge.conversation.fan:
            word = "choose"
        elif not bridge.busy and self.unread and word != "error":
            word = "new"
        return TabState(bridge.title, word)

    @property
    def untouched(self) -> bool:
        """Whether nothing was said here yet, so that another chat may take the place."""
        conversation = self.bridge.conversation
        return not conversation.turns and not conversation.fan

    def keep(self, beat: Beat) -> None:
        """Take in a beat while hidden."""
        self.pending.add(beat)
        self.unread |= any(turn.status != "streaming" for turn in beat.touched)

    def draw(self, beat: Beat) -> None:
        """Draw a beat, behind what was kept while hidden."""
        beat, self.pending = _joined(self.pending, beat), Beat()
        conversation, transcript = self.bridge.conversation, self.transcript
        transcript.catch_up(conversation.turns)
        if conversation.fan != self.fan.turns:
            self.show_fan()
        for turn in beat.touched:
            call = self.bridge.call_under_way(turn)
            transcript.touch(turn, status=self.bridge.prompt_status(), call=call)
        if self.fan.display:
            self.fan.touch(beat.touched)
        elif self.bridge.state == "WAITING" and conversation.live:
            transcript.touch(conversation.live, waits=True)
        for remark in beat.remarks:
            transcript.note(remark, warning=True)
        self.question.show(self._asked())
        if beat.returned:
            self.prompt.put_back(beat.returned)
        if beat.added or beat.returned:
            transcript.show_queue(self.bridge.queue)

    def _asked(self) -> Asked | None:
        """What the user is asked, or told, about a call."""
        talk = self.bridge.conversation
        call = talk.waiting or talk.running
        if call is None:
            return None
        definition = talk.toolbox.find(call.name)
        command = shlex.join(definition.command) if definition else ""
        return Asked(call, command, talk.by_hand, talk.waiting is None)

    def show_fan(self) -> None:
        """Show the answers to choose from, if there are any."""
        conversation = self.bridge.conversation
        self.fan.show(conversation.fan, conversation.marked)
        self.box.set_class(self.fan.display, "-fan")

    def edit(self, turn: Turn) -> None:
        """Put a message into the prompt, to be said otherwise; a draft there comes back after."""
        if self.editing is None:
            self._draft = self.prompt.text
        self.editing = turn
        self.prompt.put(f"/{turn.text}" if turn.text.startswith("/") else turn.text)
        self.prompt.border_title = "Edit: enter sends it in place of the old one, esc leaves it"
        self.prompt.focus()

    def leave_edit(self) -> None:
        """Edit no message any more; the draft is back."""
        self.editing, self.prompt.border_title = None, "Message"
        self.prompt.put(self._draft)

    async def show_conversation(self) -> None:
        """Draw the conversation, and leave the editing of a message that is not of it."""
        conversation = self.bridge.conversation
        if self.editing and not any(turn is self.editing for turn in conversation.turns):
            self.leave_edit()
        await self.transcript.show(conversation.turns)
        self.show_fan()
        self.transcript.show_queue(self.bridge.queue)
        for turn in conversation.turns:
            if turn.role == "user" and turn.id not in self._remembered:
                self._remembered.add(turn.id)
                self.prompt.remember(turn.text)

    def focus(self) -> None:
        """Put the focus where the user goes on: on the answers to choose from, on what is asked
        about a call unless a message is being written, or on the prompt.
        """
        if self.question.waits and not self.prompt.text:
            self.question.take_focus()
        else:
            (self.fan if self.fan.display else self.prompt).focus()


def _joined(first: Beat, second: Beat) -> Beat:
    first.add(second)
    return first
