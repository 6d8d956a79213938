"""The widget that shows blocks: one per finished turn, one for the growing tail.

Owns the layout of blocks at the widget's width and its cache; draws only the lines on the screen.
Knows no conversation.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import Visual
from textual.widget import Widget

from flarechat.ui.markdown import Block


class Page(Widget):
    """Blocks below an optional head line; relayouts the screen only when its height changes."""

    DEFAULT_CSS = "Page { height: auto; width: 1fr; }"

    def __init__(self, *, widget_id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=widget_id, classes=classes, markup=False)
        self.parts: list[Block] = []
        self._width = 0
        self._lines: list[Content] = []
        self._rows: dict[int, list[Content]] = {}

    def head(self, width: int) -> Content | None:
        """The line above the blocks, if there is one."""
        return None

    def show(self, parts: Sequence[Block]) -> None:
        """Replace the blocks; those that stay keep their lines."""
        width = self.content_size.width
        before = len(self.lines(width)) if width else -1
        self.parts = list(parts)
        kept = {id(part) for part in self.parts}
        self._rows = {key: rows for key, rows in self._rows.items() if key in kept}
        self._lines = []
        same = before == len(self.lines(width))
        if not same:
            self.clear_cached_dimensions()
        self.refresh(layout=not same)

    def lines(self, width: int) -> list[Content]:
        """Everything shown, wrapped at `width`."""
        if width != self._width:
            self._width, self._rows, self._lines = width, {}, []
        if not self._lines and width:
            head = self.head(width)
            lines = [head] if head is not None else []
            for n, part in enumerate(self.parts):
                if n and part.gap:
                    lines.append(Content(""))
                if id(part) not in self._rows:
                    self._rows[id(part)] = part.lines(width)
                lines += self._rows[id(part)]
            self._lines = lines
        return self._lines

    # What Textual asks of a widget

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lines(width))

    def render(self) -> Content:
        return Content("\n").join(self.lines(self.content_size.width))

    def render_line(self, y: int) -> Strip:
        width, style = self.size.width, self.visual_style
        lines = self.lines(width)
        if y >= len(lines):
            return Strip.blank(width, style.rich_style)
        line, selection = lines[y], self.text_selection
        if selection is not None and (span := selection.get_span(y)) is not None:
            start, end = span
            marked = Style.from_styles(self.screen.get_component_styles("screen--selection"))
            line = line.stylize(marked, start, len(line) if end == -1 else end)
        strips = Visual.to_strips(self, line, width, 1, style, apply_selection=False, pad=True)
        return strips[0].apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        text = "\n".join(line.plain.rstrip() for line in self.lines(self.content_size.width))
        return selection.extract(text), "\n"
