"""The chat screen's part in calls of tools: where the focus goes when one is asked about, and what
becomes of the answer.
"""

from __future__ import annotations

from flarechat.errors import FlarechatError
from flarechat.ui import messages
from flarechat.ui.beat import Beat
from flarechat.ui.screens.windows import Windows
from flarechat.ui.widgets.question import Asked


class Asking(Windows):
    """A screen on which the user is asked about calls."""

    _attended: Asked | None = None

    def attend(self) -> None:
        """Put the focus on a question about a call that has just come, unless something is being
        written; and back on the prompt when it is no longer there.
        """
        question = self.tabs.current.question
        asked = question.asked if question.waits else None
        if asked == self._attended:
            return
        self._attended = asked
        if asked and self.prompt.has_focus and not self.prompt.text:
            question.take_focus()
        elif not asked and (question.has_it or self.focused is None):
            self.prompt.focus()

    def on_call_answered(self, message: messages.CallAnswered) -> None:
        bridge = self.tabs.current.bridge
        try:
            bridge.answer_call(message.call, message.answer, message.text)
        except FlarechatError as error:
            self.tell(error)
        self.show_beat(bridge.take())
        self.dashboard.hurry()

    def show_beat(self, beat: Beat) -> None:
        """Draw changes of the chat shown."""
        self.tabs.current.draw(beat)
        self.attend()
        self.tabs.refresh()
