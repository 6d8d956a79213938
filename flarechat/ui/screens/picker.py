"""A list to search and choose from: type to narrow it, enter takes the marked line.

Owns the search box and the list; knows nothing of what the lines are. The lines are fetched aside,
once, because they may come from a disk; typing only chooses among them. What a subclass finds
elsewhere may come later: the marked line stays marked. Of very many only the first are listed,
so that typing stays fluid.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from flarechat.textsafe import strip_controls


@dataclass(frozen=True, slots=True)
class Item:
    """One line: what it stands for, what it says, what is searched; `below` stands under it."""

    key: str
    label: str
    search: str
    below: Content | None = None

    @property
    def shown(self) -> Content:
        """What the list says of it."""
        line = Content(strip_controls(self.label))
        return line if self.below is None else Content("\n").join([line, self.below])


class Picker(ModalScreen[str | None]):
    """Returns the key of the chosen item, or None."""

    TITLE_TEXT = "Choose"
    HELP_TEXT = "type to search  enter choose  esc close"
    EMPTY_TEXT = "Nothing here yet."
    WAIT_TEXT = ""
    LISTED = 400

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="picker.close", show=False),
        Binding("down", "move(1)", "Down", id="picker.down", show=False, priority=True),
        Binding("up", "move(-1)", "Up", id="picker.up", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._items: list[Item] | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = self.TITLE_TEXT
            box.border_subtitle = self.HELP_TEXT
            yield Input(placeholder="search", id="search")
            yield OptionList(id="list", markup=False)
            yield Static(self.EMPTY_TEXT, id="empty", markup=False)

    def on_mount(self) -> None:
        self.fill()
        self.query_one("#search").focus()
        self.fetch()

    def items(self) -> list[Item]:
        """All lines, the likeliest first. Runs in a thread of its own."""
        raise NotImplementedError

    def fetch(self) -> None:
        """Get the lines, again if need be, and show them once they are there."""
        self.run_worker(self._fetch(), group="items", exclusive=True)

    async def _fetch(self) -> None:
        self._items = await asyncio.to_thread(self.items)
        self.fill()

    @property
    def query_text(self) -> str:
        """What is searched for."""
        return self.query_one(Input).value

    def found(self) -> list[Item]:
        """The items that hold every word of the search."""
        words = self.query_text.lower().split()
        return [
            item for item in self._items or () if all(word in item.search.lower() for word in words)
        ]

    def empty_text(self) -> str:
        """What is said where nothing is found."""
        return self.WAIT_TEXT if self._items is None else self.EMPTY_TEXT

    def likeliest(self) -> str | None:
        """The key of the item to mark where it is found; None for the first."""
        return None

    def fill(self, *, keep: bool = False) -> None:
        """List what is found; the first is marked, or with `keep` the one that was, if there."""
        options = self.query_one(OptionList)
        marked = self.marked if keep else self.likeliest()
        found = self.found()
        options.clear_options()
        shown = found[: self.LISTED]
        options.add_options(Option(item.shown, id=item.key) for item in shown)
        more = f" ({len(shown)} of {len(found)})" if len(found) > len(shown) else ""
        self.query_one(".box").border_title = self.TITLE_TEXT + more
        options.display = bool(found)
        empty = self.query_one("#empty", Static)
        empty.update(strip_controls(self.empty_text()))
        empty.display = not found
        if found:
            keys = [item.key for item in shown]
            options.highlighted = keys.index(marked) if marked in keys else 0

    @property
    def marked(self) -> str | None:
        """The key of the marked item."""
        options = self.query_one(OptionList)
        return options.highlighted_option.id if options.highlighted_option else None

    def on_input_changed(self) -> None:
        self.fill()

    def on_input_submitted(self) -> None:
        if self.marked is not None:
            self.dismiss_with(self.marked)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss_with(event.option.id)

    def dismiss_with(self, key: str | None) -> None:
        """Leave with an item."""
        self.dismiss(key)

    def action_move(self, step: int) -> None:
        options = self.query_one(OptionList)
        if step > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_close(self) -> None:
        self.dismiss(None)
