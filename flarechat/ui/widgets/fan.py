"""Several answers to one message: side by side where they fit, else one at a time.

Owns the columns, which answer is marked on the screen and the keys to look and to pick. Picks
nothing itself: it posts what was marked or picked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.style import Style

from flarechat.chat import Turn
from flarechat.ui import messages
from flarechat.ui.format import Glyphs
from flarechat.ui.widgets.lines import Line
from flarechat.ui.widgets.turn import TailView, TurnView, draw, state_word

NARROWEST = 28
SIDE_BY_SIDE = 100
OWN = frozenset("1234hjkliy\n")  # the keys of a fan that a message may hold too


class AnswerView(TurnView):
    """An answer without a head line: its column's title says what it is."""

    def head(self, width: int) -> None:  # type: ignore[override]
        return None


class AnswerColumn(VerticalScroll, can_focus=False):
    """One answer, scrolling by itself; its title has its number and its state in words."""

    def __init__(self, turn: Turn, number: int, marks: Glyphs) -> None:
        super().__init__(classes="answer")
        self.turn, self.number, self.waits = turn, number, False
        self._view, self._tail = AnswerView(turn, number + 1, marks), TailView(marks)

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._view
            yield self._tail

    def on_mount(self) -> None:
        self.anchor()
        self.draw(waits=False)

    @property
    def word(self) -> str:
        """The answer's state."""
        return state_word(self.turn, waits=self.waits) or "done"

    def draw(self, *, waits: bool) -> None:
        """Show what the answer has become."""
        self.waits = waits
        draw(self._view, self._tail, waits=waits)

    def mark(self, marked: bool) -> None:
        """Show whether this is the marked answer, by a sign as well as by its frame."""
        self.set_class(marked, "-marked")
        self.border_title = f"{'> ' if marked else ''}{self.number + 1} {self.word}"
        self.border_subtitle = "enter: go on with it" if marked else ""

    def on_click(self, event: events.Click) -> None:
        self.post_message(messages.AnswerMarked(self.number))


class FanBar(Line):
    """The answers in one row, each a button, and how to go on; words give way to room."""

    columns: Sequence[AnswerColumn] = ()
    marked = 0

    def show(self, columns: Sequence[AnswerColumn], marked: int) -> None:
        """Show these answers."""
        self.columns, self.marked = columns, marked
        self.say(" ".join(column.word for column in columns) + f" {marked}")

    def render(self) -> Content:
        line = self._buttons(bare=False)
        if line.cell_length > self.size.width:
            line = self._buttons(bare=True)
        pick = Content.assemble(("enter", "bold"), f" go on with {self.marked + 1}")
        hints = [
            pick.stylize(_click(f"screen.pick_answer({self.marked})")),
            Content.assemble((f"1-{len(self.columns)}", "bold"), " show"),
            Content.assemble(("tab", "bold"), " prompt"),
        ]
        for hint in hints:
            if line.cell_length + hint.cell_length + 2 <= self.size.width:
                line += Content("  ") + hint
        return line.truncate(self.size.width)

    def _buttons(self, *, bare: bool) -> Content:
        """Every answer's number and state; `bare` leaves the state to the one that is shown."""
        line = Content(" ")
        for column in self.columns:
            here = column.number == self.marked
            word = "" if bare and not here else column.word.removesuffix(" for a free lane")
            text = f"{column.number + 1} {word}".rstrip()
            button = Content.styled(f"[{text}]" if here else f" {text} ", "bold" if here else "")
            line += button.stylize(_click(f"screen.mark_answer({column.number})")) + Content(" ")
        return line


def _click(action: str) -> Style:
    return Style.from_meta({"@click": action})


class FanView(Vertical, can_focus=True):
    """The answers to choose from. Hidden while there are none."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(n), f"mark({n - 1})", f"Show answer {n}", id=f"fan.{n}", show=False)
            for n in range(1, 5)
        ),
        Binding("left,h", "step(-1)", "Answer before", id="fan.before", show=False),
        Binding("right,l", "step(1)", "Answer after", id="fan.after", show=False),
        Binding("up,k", "scroll(-1)", "Scroll up", id="fan.up", show=False),
        Binding("down,j", "scroll(1)", "Scroll down", id="fan.down", show=False),
        Binding("pageup", "scroll(-10)", "Page up", id="fan.pageup", show=False),
        Binding("pagedown", "scroll(10)", "Page down", id="fan.pagedown", show=False),
        Binding("y", "copy", "Copy the answer", id="fan.copy", show=False),
        Binding("enter", "pick", "Go on with the answer", id="fan.pick", show=False),
        Binding("i,tab", "leave", "Back to the prompt", id="fan.leave", show=False),
    ]

    def __init__(self, marks: Glyphs, waits: Callable[[Turn], bool]) -> None:
        super().__init__(classes="fan")
        self.marks, self._waits = marks, waits
        self.marked = 0
        self._typed = False
        self._columns: list[AnswerColumn] = []
        self.display = False

    def compose(self) -> ComposeResult:
        yield FanBar(self.marks, "fan-bar")
        yield Horizontal(id="answers")

    @property
    def turns(self) -> list[Turn]:
        """The answers that are shown."""
        return [column.turn for column in self._columns]

    def show(self, turns: Sequence[Turn], marked: int) -> None:
        """Show these answers, or none."""
        self.query(AnswerColumn).remove()
        self._columns = [AnswerColumn(turn, n, self.marks) for n, turn in enumerate(turns)]
        self.display = bool(turns)
        if turns:
            self.query_one("#answers").mount_all(self._columns)
            self.mark(marked)

    def touch(self, turns: Sequence[Turn]) -> None:
        """Some answers grew or ended, or others got the lanes they wait for."""
        for column in self._columns:
            waits = self._waits(column.turn)
            if column.is_attached and (column.turn in turns or waits != column.waits):
                column.draw(waits=waits)
        self._title()

    def mark(self, number: int) -> None:
        """Mark an answer; where they do not fit side by side it is the one shown."""
        if 0 <= number < len(self._columns):
            self.marked = number
            self.fit()

    def fit(self) -> None:
        """Lay the columns out for the present width."""
        width, count = self.app.size.width, len(self._columns)
        beside = width >= max(SIDE_BY_SIDE, count * NARROWEST)
        self.set_class(beside, "-beside")
        for column in self._columns:
            column.display = beside or column.number == self.marked
        self._title()

    def _title(self) -> None:
        for column in self._columns:
            column.mark(column.number == self.marked)
        self.query_one(FanBar).show(self._columns, self.marked)

    def action_mark(self, number: int) -> None:
        if number < len(self._columns):
            self.post_message(messages.AnswerMarked(number))

    def action_step(self, step: int) -> None:
        self.action_mark((self.marked + step) % len(self._columns))

    def action_scroll(self, lines: int) -> None:
        column = self._columns[self.marked]
        column.scroll_relative(y=lines, animate=False)

    def action_copy(self) -> None:
        turn = self._columns[self.marked].turn
        self.post_message(messages.CopyAsked(turn.text, f"answer {self.marked + 1}"))

    def action_pick(self) -> None:
        self.post_message(messages.AnswerPicked(self.marked))

    def action_leave(self) -> None:
        self.post_message(messages.PromptWanted())

    def on_focus(self) -> None:
        self._typed = False

    def on_key(self, event: events.Key) -> None:
        """Any letter but its own begins a message: the focus came here without being asked. What
        is typed on before the focus has moved, be it a key of the fan, belongs to it.
        """
        typed = "\n" if event.key == "enter" else event.character if event.is_printable else ""
        if typed and (self._typed or typed not in OWN):
            self._typed = True
            event.stop().prevent_default()
            self.post_message(messages.PromptWanted(typed))
