"""Saved chats: search by title, open, delete. Reads and removes through flarechat.sessions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import Input, OptionList

from flarechat.errors import FlarechatError
from flarechat.sessions import store
from flarechat.textsafe import strip_controls
from flarechat.ui.format import fit
from flarechat.ui.screens.confirm import ConfirmScreen
from flarechat.ui.screens.picker import Item, Picker


class SessionsScreen(Picker):
    """Returns the name of the chat to open, or None."""

    TITLE_TEXT = "Sessions"
    HELP_TEXT = "type to search  enter open  tab d delete  esc close"
    EMPTY_TEXT = "No saved chat matches."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete", "delete", "Delete", id="sessions.delete", show=False),
    ]

    def __init__(self, opened: Sequence[str]) -> None:
        """`opened` names the chats that have a tab."""
        super().__init__()
        self._opened = frozenset(opened)

    def items(self) -> list[Item]:
        """The saved chats, the last used first."""
        items = []
        for info in store.listed():
            if info.problem:
                detail = f"cannot be read: {info.problem}"
            else:
                detail = f"{_when(info.changed)}  {info.turns:>3} turns  {info.title}"
            mark = "(open) " if info.name in self._opened else ""
            label = f"{fit(info.name, 24)}  {mark}{detail}"
            items.append(Item(info.name, label, f"{info.name} {info.title}"))
        return items

    def on_key(self, event: events.Key) -> None:
        """In the list, d deletes and any other letter goes on searching."""
        if not isinstance(self.focused, OptionList):
            return
        if event.key == "d":
            self.action_delete()
        elif event.character and event.is_printable:
            search = self.query_one(Input)
            search.focus()
            search.insert_text_at_cursor(event.character)
        else:
            return
        event.stop()

    def action_delete(self) -> None:
        name = self.marked
        if name is None:
            return
        if name in self._opened:
            self.notify("This chat is open; close its tab first, or /clear.", markup=False)
            return

        def decided(yes: bool | None) -> None:
            if yes:
                self._remove(name)

        self.app.push_screen(
            ConfirmScreen(f"Delete the chat {name}?", "It cannot be undone."), decided
        )

    def _remove(self, name: str) -> None:
        try:
            store.remove(store.find(name))
        except FlarechatError as error:
            self.notify(strip_controls(str(error)), markup=False, severity="error")
        self.fetch()


def _when(epoch: float) -> str:
    """A day and a time, sortable by eye."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(epoch))
