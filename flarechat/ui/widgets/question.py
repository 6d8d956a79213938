"""The call of a tool that waits for the user, or that runs, between the transcript and the prompt.

Owns how the question is asked and that it is answered on purpose: a letter marks the answer and
Enter right behind it gives it. No key counts before the question has had the focus for a while, and
any other key goes to the prompt, as somebody types. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from flarechat.protocol import ToolCall
from flarechat.textsafe import spelt_out, strip_controls
from flarechat.ui import messages
from flarechat.ui.answers import arguments_text
from flarechat.ui.format import Glyphs, fit
from flarechat.ui.widgets.prompt import Prompt

QUIET_S = 0.5
KEYS = {"y": "yes", "a": "always", "n": "no"}
_MARKED = {
    "y": "enter: yes, run it",
    "a": "enter: always in this chat",
    "n": "enter: no, do not run it",
}
_ARGUMENT_LINES = 4
_LOW = 18


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that the user is asked about, or with `running` is told of. `command` is what would
    be run, "" for a function of flarechat's own; `by_hand` asks for the result itself.
    """

    call: ToolCall
    command: str = ""
    by_hand: bool = False
    running: bool = False


class Question(Vertical, can_focus=True):
    """Asks about one call at a time. Not there while nothing is asked and nothing runs."""

    def __init__(self, marks: Glyphs, clock: Callable[[], float]) -> None:
        super().__init__(classes="question")
        self.marks, self._clock = marks, clock
        self.asked: Asked | None = None
        self._quiet_since = float("-inf")
        self._marked = ""

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)
        yield Prompt()

    def on_mount(self) -> None:
        self.display = self._field.display = False
        self._field.border_title = "Result: enter gives it to the model, esc stops the turn"

    @property
    def _field(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def waits(self) -> bool:
        """Whether the user is asked something."""
        return self.asked is not None and not self.asked.running

    def show(self, asked: Asked | None) -> None:
        """Ask this, or nothing."""
        if asked == self.asked:
            return
        self.asked, self._marked = asked, ""
        self.hush()
        self.display = asked is not None
        self._field.display = asked is not None and asked.by_hand and not asked.running
        self._field.empty()
        self.set_class(self.waits, "-asks")
        self._draw()

    def hush(self) -> None:
        """Let a while pass before a key counts, as somebody types."""
        self._quiet_since = self._clock()

    def _told(self, asked: Asked) -> Content:
        """What is asked, in few lines: the transcript has the arguments laid out."""
        width = max(self.size.width, 20)
        name = spelt_out(asked.call.name)
        if asked.running:
            return Content.assemble("Running ", (name, "bold"), "  esc stops it")
        ask = "asks you for the result of" if asked.by_hand else "wants to call"
        lines = [Content.assemble(f"The model {ask} ", (name, "bold"))]
        lines += self._arguments(asked.call, width)
        if asked.command:
            lines.append(Content(fit(f"runs: {spelt_out(asked.command)}", width, self.marks)))
        if not self._field.has_focus:
            lines.append(Content.styled(self._keys(asked, width), "bold $text-accent"))
        return Content("\n").join(lines)

    def _keys(self, asked: Asked, width: int) -> str:
        """What to press."""
        if self._marked:
            said = _MARKED[self._marked]
            more = said + "   any other key takes it back"
            return more if len(more) <= width else said
        where = "" if self.has_focus else "shift+tab, then "
        if asked.by_hand:
            return where + "enter: write the result"
        keys = where + "y yes   a always in this chat   n no, then enter   esc stop the turn"
        return keys if len(keys) <= width else where + "y yes  a always  n no, then enter"

    def _arguments(self, call: ToolCall, width: int) -> list[Content]:
        """The beginning of the arguments; in a low terminal, as much as one line holds."""
        given = arguments_text(call)
        if self.app.size.height < _LOW:
            return [Content(fit(given, width, self.marks))]
        lines = Content(given).wrap(width)
        if len(lines) <= _ARGUMENT_LINES:
            return lines
        more = Content(f"({len(lines) - _ARGUMENT_LINES} more lines: all is above)")
        return [*lines[:_ARGUMENT_LINES], more]

    def _draw(self) -> None:
        if self.asked is not None:
            self.query_one(Static).update(self._told(self.asked))

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self._marked = ""
        self.hush()
        self._draw()

    def on_descendant_focus(self) -> None:
        self._draw()

    def on_descendant_blur(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def take_focus(self) -> None:
        """Put the focus on the question. The field of a result never takes it by itself, as what
        somebody writes for the prompt would be the result.
        """
        self.focus()

    @property
    def has_it(self) -> bool:
        """Whether the focus is in here."""
        return self.has_focus or self._field.has_focus

    def on_key(self, event: events.Key) -> None:
        if not self.has_focus:
            return
        text = event.character if event.is_printable and event.character else ""
        soon, self._quiet_since = self._clock() - self._quiet_since < QUIET_S, self._clock()
        marked, self._marked = self._marked, ""
        if text or event.key in ("tab", "enter"):
            event.stop()
        if event.key == "enter" and self.waits and marked:
            self._answer(marked)
        elif event.key == "enter" and self._field.display and not soon:
            self._field.focus()
        elif self.waits and not self._field.display and text in KEYS and not soon and not marked:
            self._marked = text
        elif text or event.key in ("tab", "enter"):
            self.post_message(messages.PromptWanted(marked + text))
        self._draw()

    def on_paste(self, event: events.Paste) -> None:
        if self.has_focus:
            event.stop()
            typed, self._marked = self._marked + strip_controls(event.text), ""
            self.post_message(messages.PromptWanted(typed))

    def _answer(self, marked: str) -> None:
        if self.asked:
            self.post_message(messages.CallAnswered(self.asked.call.id, KEYS[marked]))

    def on_prompt_submitted(self, message: messages.PromptSubmitted) -> None:
        message.stop()
        if self.waits and self.asked:
            self.post_message(messages.CallAnswered(self.asked.call.id, "result", message.text))

    def on_leave_asked(self, message: messages.LeaveAsked) -> None:
        message.stop()
