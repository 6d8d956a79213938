"""One turn of the conversation as one widget, and the tail of the turn being written.

Owns how a turn looks: its role as a word, its number and time, its state as a word, its blocks,
and whether what the model thought is folded to one line. Reads chat.Turn and never changes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.content import Content
from textual.style import Style

from flarechat.chat import Turn
from flarechat.textsafe import strip_controls
from flarechat.ui import answers, jsontext, markdown, messages
from flarechat.ui.format import Glyphs, clock_time, spread
from flarechat.ui.markdown import Block, Prose
from flarechat.ui.widgets.page import Page

ROLES = {"user": "You", "assistant": "Model", "system": "System", "tool": "Tool"}
STATES = {
    "stopped": "stopped",
    "error": "error",
    "partial": "cut short",
    "streaming": "writing",
}
WAITING = "All lanes of the engine are taken; --concurrency says how many there are."
Place = Callable[[Turn], tuple[int, int]]
_DIM = "$foreground 60%"
_THOUGHTS_SHOWN = 6
# Characters from which on laying JSON out takes tens of milliseconds, 5 µs a character, and ten
# times what one takes.
_LONG_JSON, _REST_S = 4096, 5e-5


def state_word(turn: Turn, *, waits: bool = False) -> str:
    """The state of a turn in words; "" when it ended by itself."""
    if turn.status == "streaming" and waits:
        return "waiting for a free lane"
    if turn.role == "tool":
        return answers.OUTCOMES.get(turn.reason, strip_controls(turn.reason))
    if turn.reason in ("length", "context") and turn.status == "complete":
        return f"cut by {turn.reason} limit"
    return STATES.get(turn.status, "")


class TurnView(Page):
    """A turn: its head line and, once finished, all of its text."""

    def __init__(
        self, turn: Turn, number: int, marks: Glyphs, place: Place = lambda turn: (1, 1)
    ) -> None:
        super().__init__(classes=f"turn -{turn.role}")
        self.turn, self.number, self.marks = turn, number, marks
        self.waits = False
        self._place = place
        self._taken = 0
        self._folded = True
        if turn.status != "streaming":
            self.parts = self._finished()

    def head(self, width: int) -> Content:
        role = ROLES.get(self.turn.role, self.turn.role)
        if self.turn.role == "tool":
            role = f"{role} {strip_controls(self.turn.name)}"
        state = state_word(self.turn, waits=self.waits)
        place, right = self._siblings(), f"#{self.number}  {clock_time(self.turn.started_at)}"
        left = f"{role}  {state}" if state else role
        line = Content(spread(left, place + right, width, self.marks))
        line = line.stylize(_DIM).stylize("bold $foreground", 0, len(role))
        if place:
            line = self._arrows(line, len(line) - len(place + right), place)
        if state and self.turn.status != "streaming":
            line = line.stylize("bold $text-warning", len(role) + 2, len(left))
        return line

    def _siblings(self) -> str:
        """Which of the turns in the same place this is, between arrows; "" where it is alone."""
        at, of = self._place(self.turn)
        return f"{self.marks.before} {at}/{of} {self.marks.after}  " if of > 1 else ""

    def _arrows(self, line: Content, at: int, place: str) -> Content:
        """The head line with the arrows from `at` on as buttons."""
        middle, end = at + place.index("/"), at + len(place.rstrip())
        for step, first, last in ((-1, at, middle), (1, middle, end)):
            line = line.stylize(Style.from_meta({"@click": f"sibling({step})"}), first, last)
        return line.stylize("bold $text-accent", at, end)

    def action_sibling(self, step: int) -> None:
        self.post_message(messages.BranchAsked(self.turn, step))

    def take_finished(self) -> str:
        """Move blocks that will not change from the tail to this widget; return the tail."""
        text = strip_controls(self.turn.text)
        if text and not self.parts:
            self.show(self._thoughts())
        if not self._taken and jsontext.begins(text):
            return text
        cut = self._taken + markdown.split_finished(text[self._taken :])
        if cut > self._taken:
            fresh = markdown.blocks(text[self._taken : cut], self.marks)
            self._taken = cut
            self.show([*self.parts, *fresh])
        return text[self._taken :]

    def wait(self, waits: bool) -> None:
        """Say in the head line that the turn waits for a lane of the engine, or no longer does."""
        if waits != self.waits:
            self.waits = waits
            self.show(list(self.parts))

    def finish(self) -> None:
        """The turn ended: show its whole text, parsed as one."""
        self.show(self._finished())

    def fold(self) -> bool:
        """Show all of what the model thought, or of a tool's result, or fold it again; whether
        there is any to show.
        """
        if self.turn.role == "tool":
            self._folded = not self._folded
            self.finish()
            return self.turn.text.count("\n") >= answers.SHOWN_LINES
        if not (self.turn.thinking and self.parts):
            return False
        self._folded = not self._folded
        self.show([*self._thoughts(), *self.parts[1:]])
        return True

    def _thoughts(self) -> list[Block]:
        """At most one block: what the model thought, or how much."""
        thinking = strip_controls(self.turn.thinking)
        if not thinking:
            return []
        said = f"Thought, {len(thinking):,} characters" if self._folded else thinking
        return [Prose(Content.styled(said, _DIM))]

    def _finished(self) -> list[Block]:
        text = strip_controls(self.turn.text)
        if self.turn.role == "tool":
            return answers.result_blocks(text, folded=self._folded)
        if self.turn.role != "assistant":
            return markdown.plain(text)
        drawn = answers.json_blocks if answers.is_json(self.turn, text) else markdown.blocks
        parts = [*self._thoughts(), *drawn(text, self.marks)]
        parts += [*answers.held_blocks(self.turn), *answers.call_blocks(self.turn.calls)]
        error = self.turn.finished.error if self.turn.finished else None
        if error:
            said = f"Error: {error.exception()}"
            parts.append(Prose(Content.styled(strip_controls(said), "$text-error")))
        return parts


class TailView(Page):
    """The unfinished end of the turn under way, drawn without colours that may still change."""

    def __init__(self, marks: Glyphs) -> None:
        super().__init__(widget_id="tail")
        self.marks = marks
        self._next_layout = 0.0

    def feed(self, text: str, *, below: bool, call: str = "") -> None:
        """Show the tail, and behind it a `call` that is being written; `below` leaves a blank line
        to the finished blocks above.
        """
        if jsontext.begins(text) and not below and not call:
            self._lay_out(text)
            return
        parts = markdown.blocks(text, self.marks, colour=False) if text.strip() else []
        if call:
            lines = strip_controls(call).strip().splitlines()[-_THOUGHTS_SHOWN:]
            said = "\n".join(["Writing a call", *lines])
            parts.append(Prose(Content.styled(said, _DIM)))
        self._show(parts, below=below)

    def _lay_out(self, text: str) -> None:
        """Show JSON over lines. All of it is laid out anew as it grows, and of a long text so
        seldom that this takes a tenth of the time or so.
        """
        now = time.monotonic()
        if len(text) <= _LONG_JSON or now >= self._next_layout:
            self._show(answers.json_blocks(text, self.marks, live=True), below=False)
            self._next_layout = now + _REST_S * len(text)

    def think(self, thinking: str) -> None:
        """Show the end of what the model thinks, before it has said anything."""
        lines = strip_controls(thinking).splitlines()[-_THOUGHTS_SHOWN:]
        self._show([Prose(Content.styled("\n".join(["Thinking", *lines]), _DIM))], below=False)

    def say(self, text: str) -> None:
        """Show a remark in the place of the text that is to come."""
        self._show([Prose(Content.styled(text, _DIM))], below=False)

    def _show(self, parts: list[Block], *, below: bool) -> None:
        if parts and below:
            parts.insert(0, Prose(Content("")))
            parts[1].gap = False
        self.show(parts)


def draw(
    view: TurnView, tail: TailView, *, waits: bool = False, status: str = "", call: str = ""
) -> None:
    """Bring a turn's widget and the tail behind it up to what the turn has become; `status` is
    said while nothing else is, and `call` is shown behind the text.
    """
    turn = view.turn
    view.wait(waits)
    if turn.status != "streaming":
        tail.show([])
        view.remove_class("-live")
        view.finish()
        return
    text = view.take_finished()
    if waits:
        tail.say(WAITING)
    elif call.strip():
        tail.feed(text, below=bool(view.parts), call=call)
    elif turn.thinking and not turn.text:
        tail.think(turn.thinking)
    elif status and not turn.text:
        tail.say(status)
    else:
        tail.feed(text, below=bool(view.parts))
    view.set_class(bool(tail.parts), "-live")


class NoteView(Page):
    """A local remark between turns: what a command printed; never sent to the model."""

    def __init__(self, text: str, warning: bool) -> None:
        super().__init__(classes="note -warning" if warning else "note")
        self.parts = markdown.plain(strip_controls(text))
