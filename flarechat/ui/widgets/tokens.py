"""The tokens of an answer, each in a cell of its own with the letter of its source below it.

Owns their layout at a width and the cursor; draws only the lines on the screen, so that ten
thousand tokens cost no more than those that are seen. Knows no engine: texts are given to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from flarechat.ui.format import Glyphs

LINES = 2
STYLES = {
    "m": "$text-success on $success-muted",
    "h": "$text-accent on $accent-muted",
    "c": "$text-primary on $primary-muted",
    "g": "$text-secondary on $secondary-muted",
    "-": "$text-error on $error-muted",
    "+": "$foreground",
    "?": "$foreground 60%",
}
UNSPELLED = "?"
LONGEST = 24


def escaped(text: str) -> str:
    """A token's text on one line, with nothing in it that a terminal obeys or does not show."""
    return "".join(
        letter if letter.isprintable() and cell_len(letter) else ascii(letter)[1:-1]
        for letter in text
    )


@lru_cache(maxsize=1 << 14)
def cell(text: str | None, marks: Glyphs) -> str:
    """A token's text for its cell: spaces seen, at most LONGEST cells wide; never empty."""
    if text is None:
        return UNSPELLED
    shown = escaped(text).replace(" ", "_" if marks.ascii else "·")
    if cell_len(shown) > LONGEST:
        shown = set_cell_size(shown, LONGEST - 1).rstrip() + marks.ellipsis
    return shown or marks.ellipsis


class TokenGrid(ScrollView, can_focus=True):
    """Tokens in rows as they fit, a row of text over a row of letters; cursor keys move over them.
    A token that ends a line of the answer ends a row.
    """

    DEFAULT_CSS = "TokenGrid { height: 1fr; width: 1fr; overflow-x: hidden; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,l", "move(1)", "Next token", id="tokens.next", show=False),
        Binding("left,h", "move(-1)", "Token before", id="tokens.before", show=False),
        Binding("down,j", "row(1)", "Row below", id="tokens.down", show=False),
        Binding("up,k", "row(-1)", "Row above", id="tokens.up", show=False),
        Binding("pagedown,space", "page(1)", "Page down", id="tokens.pagedown", show=False),
        Binding("pageup", "page(-1)", "Page up", id="tokens.pageup", show=False),
        Binding("home,g", "end(-1)", "First token", id="tokens.first", show=False),
        Binding("end,G", "end(1)", "Last token", id="tokens.last", show=False),
        Binding("n", "run(1)", "Next source", id="tokens.run", show=False),
        Binding("N", "run(-1)", "Source before", id="tokens.run_back", show=False),
    ]

    class Moved(Message):
        """The cursor is at another token."""

    def __init__(self, marks: Glyphs) -> None:
        self._looks: dict[str, Style | None] = {}
        super().__init__(id="grid")
        self.marks = marks
        self.cursor = 0
        self._sources = ""
        self._cells: list[str] = []
        self._ends: list[bool] = []
        self._rows: list[int] = [0]
        self._columns: list[int] = []

    def show(self, texts: Sequence[str | None], sources: str) -> None:
        """Show tokens with these texts, None where one is not known yet."""
        self._sources = sources
        self._cells = [cell(text, self.marks) for text in texts]
        self._ends = [text is not None and text.endswith("\n") for text in texts]
        self.cursor = min(self.cursor, max(len(texts) - 1, 0))
        self._lay_out()

    def _lay_out(self) -> None:
        """Find every token's row and column."""
        room = max(self.scrollable_content_region.width, 1)
        self._rows, self._columns, column = [0], [], 0
        for at, text in enumerate(self._cells):
            wide = cell_len(text)
            if column and (column + wide > room or self._ends[at - 1]):
                self._rows.append(at)
                column = 0
            self._columns.append(column)
            column += wide + 1
        self.virtual_size = Size(room, LINES * len(self._rows))
        self.refresh()

    def on_resize(self) -> None:
        self._lay_out()
        self._reveal()

    # What Textual asks of a widget

    def render_line(self, y: int) -> Strip:
        width, style = self.size.width, self.visual_style
        row, letters = divmod(y + round(self.scroll_y), LINES)
        if row >= len(self._rows):
            return Strip.blank(width, style.rich_style)
        segments = []
        for at in range(self._rows[row], self._row_end(row)):
            text, look = self._cell(at, letters=bool(letters))
            segments += [Segment(text, self._look(look)), Segment(" ", self._look(""))]
        return Strip(segments).adjust_cell_length(width, style.rich_style)

    def _look(self, style: str) -> Style | None:
        """A style as a terminal is told of it, found once: few styles, thousands of cells."""
        if style not in self._looks:
            drawn = Visual.to_strips(self, Content.styled("x", style), 1, 1, self.visual_style)
            self._looks[style] = next(iter(drawn[0])).style
        return self._looks[style]

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._looks.clear()

    def _row_end(self, row: int) -> int:
        return self._rows[row + 1] if row + 1 < len(self._rows) else len(self._cells)

    def _cell(self, at: int, *, letters: bool) -> tuple[str, str]:
        """The text and the style of a token's cell, or of the letter below it."""
        source, text, here = self._sources[at], self._cells[at], at == self.cursor
        if letters:
            wide = cell_len(text)
            said = (f"{source}^" if here else source)[:wide].ljust(wide)
            return said, "bold" if here else "$foreground 60%"
        style = STYLES.get(source, "")
        return text, f"{style} bold reverse" if here else style

    # The cursor

    def go(self, token: int) -> None:
        """Put the cursor on a token and show it."""
        token = min(max(token, 0), len(self._cells) - 1)
        if token >= 0 and token != self.cursor:
            self.cursor = token
            self._reveal()
            self.refresh()
            self.post_message(self.Moved())

    def _reveal(self) -> None:
        top = LINES * self._row_of(self.cursor)
        self.scroll_to_region(Region(0, top, 1, LINES), animate=False, immediate=True)

    def _row_of(self, token: int) -> int:
        return bisect_right(self._rows, token) - 1

    def _token_at(self, row: int, column: int) -> int:
        """The token of a row that stands at a column, or ends before it."""
        row = min(max(row, 0), len(self._rows) - 1)
        first, end = self._rows[row], self._row_end(row)
        return max(first, bisect_right(self._columns, column, first, end) - 1)

    def action_move(self, step: int) -> None:
        self.go(self.cursor + step)

    def action_row(self, step: int) -> None:
        if self._cells:
            row = self._row_of(self.cursor) + step
            self.go(self._token_at(row, self._columns[self.cursor]))

    def action_page(self, step: int) -> None:
        self.action_row(step * max(self.size.height // LINES - 1, 1))

    def action_end(self, side: int) -> None:
        self.go(len(self._cells) - 1 if side > 0 else 0)

    def action_run(self, step: int) -> None:
        """Go to the next token that has another source, or back to where this source began."""
        at, last = self.cursor, len(self._cells) - 1
        while 0 <= at + step <= last and self._sources[at] == self._sources[self.cursor]:
            at += step
        self.go(at)

    def on_click(self, event: events.Click) -> None:
        if self._cells:
            row = (event.y + round(self.scroll_y)) // LINES
            self.go(self._token_at(row, event.x))
