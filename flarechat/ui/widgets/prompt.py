"""The message box: sends on enter, grows, remembers, and keeps large pastes folded.

Owns the text being written, its history and its paste chips. Sends nothing itself: it posts what
was submitted.
"""

from __future__ import annotations

import re
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.document._document import EditResult, Location
from textual.widgets import TextArea

from flarechat.textsafe import strip_controls
from flarechat.ui import messages
from flarechat.ui.format import size
from flarechat.ui.slash import completions

CHIP_CHARACTERS = 2000
CHIP_LINES = 40
BURST_GAP = 0.012
BURST_SETTLE = 0.08
CHIP = re.compile(r"\[paste \d+: [^\]]*\]")


class Prompt(TextArea):
    """Where the user writes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Send", id="prompt.send", show=False),
        Binding("ctrl+j,shift+enter,shift+\\r", "newline", "New line", id="prompt.newline"),
        Binding("up", "older", "Cursor up or older prompt", id="prompt.older", show=False),
        Binding("down", "newer", "Cursor down or newer prompt", id="prompt.newer", show=False),
        Binding("pageup", "screen.page(-1)", "Scroll up", id="chat.pageup", show=False),
        Binding("pagedown", "screen.page(1)", "Scroll down", id="chat.pagedown", show=False),
        Binding("end,ctrl+e", "end", "End of line, then follow", id="prompt.end", show=False),
        Binding("tab", "complete", "Complete a command", id="prompt.complete", show=False),
        Binding("ctrl+d", "delete_or_leave", "Close the tab when empty, quit the last",
                id="prompt.quit", show=False),
    ]  # fmt: skip

    def __init__(self) -> None:
        super().__init__(
            show_line_numbers=False,
            highlight_cursor_line=False,
            tab_behavior="focus",
            soft_wrap=True,
        )
        self.past: list[str] = []
        self.burst_gap, self.burst_settle = BURST_GAP, BURST_SETTLE
        self._at = 0
        self._draft = ""
        self._chips: dict[str, str] = {}
        self._pastes = 0
        self._last_key = float("-inf")
        self._burst_keys = self._burst_lines = 0

    def on_mount(self) -> None:
        self.border_title = "Message"

    # What was written

    @property
    def whole(self) -> str:
        """The text with every chip spelled out."""
        return CHIP.sub(lambda found: self._chips.get(found[0], found[0]), self.text)

    def put(self, text: str) -> None:
        """Replace the text and go to its end."""
        self.text = strip_controls(text)
        self.move_cursor(self.document.end)

    def put_back(self, text: str) -> None:
        """Give a text back to the user, in front of what is being written."""
        self.put(f"{text}\n\n{self.text}" if self.text.strip() else text)

    def empty(self) -> None:
        """Forget the text; what was pasted stays known, for a draft that comes back."""
        self.text = ""

    def remember(self, text: str) -> None:
        """Add a prompt to the history."""
        if text and (not self.past or self.past[-1] != text):
            self.past.append(text)
        self._at = len(self.past)

    # Keys

    def on_key(self, event: events.Key) -> None:
        gap = event.time - self._last_key
        self._last_key = event.time
        if gap >= self.burst_gap:
            self._burst_keys = self._burst_lines = 0
        self._burst_keys += 1
        if event.key == "enter":
            # A binding would run after bubbling, when later keys are already in the text.
            event.prevent_default()
            event.stop()
            self.action_submit()

    def action_submit(self) -> None:
        chip = self._chip_at_cursor()
        if chip:
            self._expand(chip)
        elif self._burst_keys > 2:
            self._burst_lines += 1
            self.insert("\n")
            key = self._last_key
            self.set_timer(self.burst_settle, lambda: self._settle(key))
        else:
            self._submit()

    def _settle(self, key: float) -> None:
        """A burst of keys ended with enter: one line was typed by a program, more were pasted."""
        if self._last_key == key and self._burst_lines == 1:
            self._submit()

    def _submit(self) -> None:
        text = strip_controls(self.whole).strip()
        if text:
            self.remember(text)
            self.empty()
            self._chips.clear()
            self.post_message(messages.PromptSubmitted(text))

    def action_newline(self) -> None:
        self.insert("\n")

    def action_older(self) -> None:
        first = self.wrapped_document.location_to_offset(self.cursor_location).y == 0
        if first and self._at > 0:
            self._recall(self._at - 1)
        else:
            self.action_cursor_up()

    def action_newer(self) -> None:
        here = self.wrapped_document.location_to_offset(self.cursor_location).y
        if here >= self.wrapped_document.height - 1 and self._at < len(self.past):
            self._recall(self._at + 1)
        else:
            self.action_cursor_down()

    def _recall(self, at: int) -> None:
        if self._at == len(self.past):
            self._draft = self.text
        self._at = at
        self.put(self.past[at] if at < len(self.past) else self._draft)

    def action_end(self) -> None:
        if self.cursor_at_end_of_text:
            self.post_message(messages.FollowAsked())
        self.action_cursor_line_end()

    def action_complete(self) -> None:
        names = completions(self.text)
        if len(names) == 1:
            self.put(names[0] + " ")
        elif names:
            self.post_message(messages.Remarked("  ".join(names)))
        elif not self.text.startswith("/"):
            self.screen.focus_next()

    def action_delete_or_leave(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(messages.LeaveAsked())

    # Paste

    def on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        text = strip_controls(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        lines = text.count("\n") + 1
        if len(text) > CHIP_CHARACTERS or lines > CHIP_LINES:
            self._pastes += 1
            chip = f"[paste {self._pastes}: {size(len(text))}, {lines} lines]"
            self._chips[chip] = text
            self.insert(chip)
            self.post_message(messages.Remarked("Left, then enter: show the pasted text here."))
        else:
            self.insert(text)

    def delete(
        self, start: Location, end: Location, *, maintain_selection_offset: bool = True
    ) -> EditResult:
        """Delete a range; a chip that it would break goes whole."""
        start, end = min(start, end), max(start, end)
        for at, stop, _ in self._chips_of(start[0]):
            if at < start[1] < stop:
                start = (start[0], at)
        for at, stop, _ in self._chips_of(end[0]):
            if at < end[1] < stop:
                end = (end[0], stop)
        return super().delete(start, end, maintain_selection_offset=maintain_selection_offset)

    def undo(self) -> None:
        self._leave_lines_that_go(bool(self.history.undo_stack))
        super().undo()

    def redo(self) -> None:
        self._leave_lines_that_go(bool(self.history.redo_stack))
        super().redo()

    def _leave_lines_that_go(self, changes: bool) -> None:
        """TextArea measures the cursor before it puts it back, and fails where its line is gone."""
        if changes:
            self.move_cursor((0, 0))

    def _chips_of(self, row: int) -> list[tuple[int, int, str]]:
        """Where the chips of a line begin and end; none of the line that is behind the last."""
        if row >= self.document.line_count:
            return []
        found = CHIP.finditer(self.document.get_line(row))
        return [(chip.start(), chip.end(), chip[0]) for chip in found if chip[0] in self._chips]

    def _chip_at_cursor(self) -> str:
        """The chip the cursor is inside of; "" at its end, where enter sends."""
        row, column = self.cursor_location
        inside = (chip for at, stop, chip in self._chips_of(row) if at <= column < stop)
        return next(inside, "")

    def _expand(self, chip: str) -> None:
        row, _ = self.cursor_location
        start = self.document.get_line(row).index(chip)
        place = ((row, start), (row, start + len(chip)))
        self.replace(self._chips[chip], *place, maintain_selection_offset=False)
