"""Saves a conversation while it goes on. Owns what happens when the disk refuses.

A refusal never stops the chat: it becomes one notice, what was to be written waits in memory in
order, and every later save tries again. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flarechat.errors import StorageError
from flarechat.protocol import ModelInfo
from flarechat.sessions import store
from flarechat.sessions.session import SessionWriter
from flarechat.sessions.turns import Turn

Write = Callable[[SessionWriter], None]


class Keeper:
    """The saving of one conversation. `notices` is the conversation's own list."""

    def __init__(
        self, notices: list[str], *, name: str | None = None, writer: SessionWriter | None = None
    ) -> None:
        self.name = name or ""
        self._notices, self._wanted_name, self._writer = notices, name, writer
        self._header: dict[str, Any] = {}
        self._first_message = ""
        self._backlog: list[Write] = []
        self._refused = False

    @property
    def begun(self) -> bool:
        """Whether the session has a first line, on the disk or waiting for it."""
        return self._writer is not None or bool(self._header)

    @property
    def unsaved(self) -> bool:
        """Whether something has not reached the disk."""
        return self._refused

    def begin(self, header: dict[str, Any], first_message: str) -> None:
        """Take the first line of a new session; the first save makes the file."""
        self._header, self._first_message = header, first_message

    def user(self, turn: Turn) -> None:
        """Flush the user's turn."""
        self._save(lambda writer: writer.user(turn))

    def tool(self, turn: Turn) -> None:
        """Write a tool's result and sync it."""
        self._save(lambda writer: writer.tool(turn))

    def model(self, model: ModelInfo, head: str | None) -> None:
        """Note that another model answers from here on."""
        self._save(lambda writer: writer.model(model, head))

    def system(self, system: str, head: str | None) -> None:
        """Note that another system prompt holds from here on."""
        self._save(lambda writer: writer.system(system, head))

    def title(self, title: str, head: str | None) -> None:
        """Note what the conversation is called from here on, "" for its first words."""
        self._save(lambda writer: writer.title(title, head))

    def partial(self, turn: Turn, *, durable: bool = False) -> None:
        """Flush what the answer got since the last time. Without a file there is no point."""
        if self._writer:
            self._save(lambda writer: writer.partial(turn, durable=durable))

    def go_on(self, turn: Turn) -> None:
        """Write that an answer which was cut off goes on."""
        self._save(lambda writer: writer.go_on(turn))

    def finish(self, turn: Turn, device_fingerprint: str) -> None:
        """Write the answer's end and sync it."""
        self._save(lambda writer: writer.finish(turn, device_fingerprint))

    def head(self, turn: Turn | None) -> None:
        """Write which turn the conversation goes on from, None for its beginning, and sync it."""
        self._save(lambda writer: writer.head(turn))

    def close(self) -> None:
        """Try once more to write what waits, then release the session. Safe to call twice.

        What the disk still refuses is lost with the process: `unsaved` stays, and a notice says so.
        """
        if self._writer or self._backlog:
            self._save(SessionWriter.close)
            if self._refused:
                name = self.name or "This chat"
                self._notices.append(f"{name} was closed unsaved: part of it is not on the disk.")
        self._writer, self._backlog = None, []

    def _save(self, write: Write) -> None:
        """Do what is waiting and `write`; the log keeps in order what a writer cannot write."""
        self._backlog.append(write)
        refusal: StorageError | None = None
        waits = False
        try:
            writer = self._writer = self._writer or self._created()
        except StorageError as error:
            refusal = error
        else:
            for waiting in self._backlog:
                try:
                    waiting(writer)
                except StorageError as error:
                    refusal = error
            self._backlog, waits = [], writer.waits
        if refusal or not waits:
            self._note(refusal)

    def _created(self) -> SessionWriter:
        writer = store.create(self._wanted_name, self._first_message, self._header)
        self.name = str(self._header["name"])
        return writer

    def _note(self, refusal: StorageError | None) -> None:
        """Say once that saving fails, and once that it works again."""
        if refusal and not self._refused:
            self._notices.append(f"{refusal.message} The chat goes on and is saved when it can be.")
        if self._refused and not refusal:
            self._notices.append(f"{self.name} is saved again; nothing is missing.")
        self._refused = refusal is not None
