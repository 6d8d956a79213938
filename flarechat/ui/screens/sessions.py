"""Saved chats: search everything said, open, rename, export, delete, take from a file.

Reads through flarechat.sessions, in threads: titles are searched as one types, the words of all
turns beside it, and what they find comes when it is found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList

from flarechat.errors import FlarechatError
from flarechat.sessions import store
from flarechat.sessions.search import Hit, find
from flarechat.textsafe import strip_controls
from flarechat.ui.format import fit
from flarechat.ui.screens.confirm import ConfirmScreen
from flarechat.ui.screens.forms import ExportScreen, ImportScreen, RenameScreen
from flarechat.ui.screens.picker import Item, Picker

DELAY_S = 0.08
MOST = 50
ROLES = {"user": "You", "assistant": "Model", "title": "title"}


class SessionsScreen(Picker):
    """Returns the name of the chat to open, or None; `found_turn` is then where its words were."""

    TITLE_TEXT = "Sessions"
    HELP_TEXT = "enter open  f2 rename  tab: e export  d delete  n from file  esc"
    EMPTY_TEXT = "No saved chat matches."
    WAIT_TEXT = "Reading the saved chats."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f2", "rename", "Rename", id="sessions.rename", show=False),
        Binding("delete", "delete", "Delete", id="sessions.delete", show=False),
    ]
    LIST_KEYS: ClassVar[dict[str, str]] = {
        "r": "rename", "e": "export", "d": "delete", "n": "take",
    }  # fmt: skip

    def __init__(self, opened: Sequence[str], vault_bytes: int) -> None:
        """`opened` names the chats that have a tab; the vault may have `vault_bytes`."""
        super().__init__()
        self._vault_bytes = vault_bytes
        self._opened = frozenset(opened)
        self._paths: dict[str, Path] = {}
        self._hits: dict[str, Hit] = {}
        self._problem = ""
        self.found_turn = ""

    def items(self) -> list[Item]:
        """The saved chats, the last used first."""
        self._problem = ""
        try:
            infos = store.listed()
        except FlarechatError as error:
            self._problem = f"Error: {error}"
            return []
        self._paths = {info.name: info.path for info in infos}
        return [self._item(info) for info in infos]

    def _item(self, info: store.SessionInfo) -> Item:
        if info.problem:
            detail = f"cannot be read: {info.problem}"
        else:
            detail = f"{_when(info.changed)}  {info.turns:>3} turns  {info.title}"
        mark = "(open) " if info.name in self._opened else ""
        label = f"{fit(info.name, 24)}  {mark}{detail}"
        return Item(info.name, label, f"{info.name} {info.title}")

    # Searching

    def found(self) -> list[Item]:
        """The chats whose titles match, and those in which the words were found, by last use."""
        if not self._hits:
            return super().found()
        titles = {item.key for item in super().found()}
        every = {item.key: item for item in self._items or ()}
        found = []
        for key, item in every.items():
            if hit := self._hits.get(key):
                found.append(Item(key, item.label, item.search, _below(hit)))
            elif key in titles:
                found.append(item)
        new = (hit for key, hit in self._hits.items() if key not in every)
        label = "{}  {}  {}".format
        return [
            *(Item(h.name, label(fit(h.name, 24), _when(h.changed), h.title), "", _below(h))
              for h in new),
            *found,
        ]  # fmt: skip

    def empty_text(self) -> str:
        return self._problem or super().empty_text()

    def on_input_changed(self) -> None:
        self._hits = {}
        super().on_input_changed()
        if self.query_text.strip():
            self.run_worker(self._search(self.query_text), group="search", exclusive=True)

    async def _search(self, query: str) -> None:
        """Look for the words in everything said, unless more is typed meanwhile."""
        await asyncio.sleep(DELAY_S)
        try:
            hits = await asyncio.to_thread(find, query, MOST, typing=True)
        except FlarechatError as error:
            self._say(f"Only names and titles are searched: {error}", severity="warning")
            return
        if query == self.query_text:
            self._hits = {hit.name: hit for hit in hits}
            self.fill(keep=True)

    # Keys

    def on_key(self, event: events.Key) -> None:
        """In the list some letters are commands, and any other goes on searching."""
        if not isinstance(self.focused, OptionList):
            return
        if event.key in self.LIST_KEYS:
            self.run_worker(self.run_action(self.LIST_KEYS[event.key]), group="keys")
        elif event.character and event.is_printable:
            search = self.query_one(Input)
            search.focus()
            search.insert_text_at_cursor(event.character)
        else:
            return
        event.stop()

    def dismiss_with(self, name: str | None) -> None:
        """Leave with the chat to open, and where in it the words stand."""
        hit = self._hits.get(name or "")
        self.found_turn = hit.turn if hit else ""
        self.dismiss(name)

    def action_rename(self) -> None:
        if (name := self.marked) is not None and not self._is_open(name):
            self._open(RenameScreen(name, self._path(name)))

    def action_export(self) -> None:
        if (name := self.marked) is not None:
            self._open(ExportScreen(name, self._path(name)))

    def action_take(self) -> None:
        self._open(ImportScreen(self._vault_bytes))

    def _open(self, form: ModalScreen[str | None]) -> None:
        def done(said: str | None) -> None:
            if said is not None:
                self._say(said)
                self.fetch()

        self.app.push_screen(form, done)

    def action_delete(self) -> None:
        name = self.marked
        if name is not None and not self._is_open(name):
            question = ConfirmScreen(f"Delete the chat {name}?", "It cannot be undone.")
            self.app.push_screen(question, partial(self._decided, name))

    def _decided(self, name: str, yes: bool | None) -> None:
        if yes:
            self.run_worker(self._remove(name), group="remove")

    async def _remove(self, name: str) -> None:
        try:
            dropped = await asyncio.to_thread(store.remove, self._path(name))
            if dropped.notice:
                self._say(dropped.notice)
        except FlarechatError as error:
            self._say(str(error), severity="error")
        self._hits.pop(name, None)
        self.fetch()

    def _path(self, name: str) -> Path:
        return self._paths.get(name) or store.find(name)

    def _is_open(self, name: str) -> bool:
        if name in self._opened:
            self._say("This chat is open; close its tab first, or /clear. /title gives it a title.")
        return name in self._opened

    def _say(self, text: str, severity: str = "information") -> None:
        self.notify(strip_controls(text), markup=False, severity=severity)  # type: ignore[arg-type]


def _below(hit: Hit) -> Content:
    """The line under a chat in which the words were found: who said them, and the words."""
    which = f" (1 of {hit.places} places)" if hit.places > 1 else ""
    said = f"    {ROLES.get(hit.role, hit.role)}{which}: "
    line = Content(said + hit.snippet)
    for first, end in hit.marks:
        line = line.stylize("bold underline", len(said) + first, len(said) + end)
    return line.stylize("$text-muted", 0, len(said))


def _when(epoch: float) -> str:
    """A day and a time, sortable by eye."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(epoch))
