"""The widget that shows blocks: one per finished turn, one for the growing tail.

Owns the layout of blocks at the widget's width and its cache. Knows no conversation.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from flarechat.ui.markdown import Block, layout


class Page(Widget):
    """Blocks below an optional head line; relayouts the screen only when its height changes."""

    DEFAULT_CSS = "Page { height: auto; width: 1fr; }"

    def __init__(self, *, widget_id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=widget_id, classes=classes, markup=False)
        self.parts: list[Block] = []
        self._laid: dict[int, Content] = {}

    def head(self, width: int) -> Content | None:
        """The line above the blocks, if there is one."""
        return None

    def show(self, parts: Sequence[Block]) -> None:
        """Replace the blocks."""
        before = self._height(self.content_size.width)
        self.parts = list(parts)
        self.redraw(before)

    def redraw(self, before: int | None = None) -> None:
        """Draw again; `before` is the height known to the last layout."""
        self._laid.clear()
        same = before is not None and before == self._height(self.content_size.width)
        if not same:
            self.clear_cached_dimensions()
        self.refresh(layout=not same)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._height(width)

    def render(self) -> Content:
        return self.page(self.content_size.width)

    def page(self, width: int) -> Content:
        """Everything shown, wrapped at `width`."""
        if width not in self._laid:
            body = layout(self.parts, max(width, 1))
            head = self.head(width)
            lines = [head] if head is not None else []
            if self.parts:
                lines.append(body)
            self._laid = {width: Content("\n").join(lines)}
        return self._laid[width]

    def _height(self, width: int) -> int:
        if not width:
            return 0
        page = self.page(width)
        return page.plain.count("\n") + 1 if self.parts or self.head(width) is not None else 0
