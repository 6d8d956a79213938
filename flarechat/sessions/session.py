"""One conversation on disk: its first line, its turns and, when open for writing, its lock.

Owns what is written when: the user's turn before anything else happens, pieces of the answer
while it comes, the end synced to the disk. Knows no engine, and no screen.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from flarechat.protocol import ModelInfo, Sampling, Speculation
from flarechat.sessions import names
from flarechat.sessions.lock import SessionLock
from flarechat.sessions.log import FORMAT, VERSION, LogWriter, read_header, read_log
from flarechat.sessions.records import (
    assistant_record,
    continue_record,
    head_record,
    kept_record,
    model_fields,
    model_record,
    partial_record,
    system_record,
    title_record,
    tool_record,
    user_record,
)
from flarechat.sessions.turns import Turn, TurnTree


class Session:
    """A session as read from its file. The file's name is the session's name, also when renamed."""

    def __init__(self, path: Path) -> None:
        log = read_log(path)
        self.path = path
        self.header = log.header
        self.tree = TurnTree()
        self.tree.model = _table(log.header.get("model"))
        self.tree.template_digest = str(log.header.get("template_digest", ""))
        system = log.header.get("system")
        self.tree.system = system if isinstance(system, str) else None
        alien = self.tree.replay(log.lines)
        self.notices = _notices(self.name, alien, torn=log.torn)

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(names.SUFFIX)

    @property
    def id(self) -> str:
        return str(self.header["id"])

    @property
    def system(self) -> str | None:
        """The system prompt that was set last."""
        return self.tree.system

    @property
    def title(self) -> str:
        """The title that was given last, else the first message on one short line."""
        path = self.tree.path()
        return self.tree.title or (names.title(path[0].text) if path else "")


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _notices(name: str, alien: list[int], *, torn: bool) -> list[str]:
    """What a reader should know of lines that were left out; they stay in the file."""
    notices = []
    if torn:
        cut = alien.pop()
        notices.append(f"The last line of {name} (line {cut}) was cut off and is left out.")
    if alien:
        numbers = ", ".join(map(str, alien[:5])) + (", …" if len(alien) > 5 else "")
        lines = f"line {numbers}" if len(alien) == 1 else f"lines {numbers}"
        notices.append(f"{name}: {lines} not understood, left out and kept in the file.")
    return notices


def new_header(
    *,
    model: ModelInfo | None,
    model_name: str,
    sampling: Sampling,
    speculation: Speculation,
    system: str | None,
) -> dict[str, Any]:
    """The first line of a new session; the store adds the name."""
    unknown = {"name": model_name, "fingerprint": "", "recipe": ""}
    return {
        "format": FORMAT,
        "version": VERSION,
        "id": names.new_id(),
        "name": "",
        "created": round(time.time(), 3),
        "model": model_fields(model) if model else unknown,
        "template_digest": model.template_digest if model else "",
        "sampling": asdict(sampling),
        "speculation": asdict(speculation),
        "system": system,
    }


class _Saved(NamedTuple):
    """What the file has of an answer under way."""

    text: str = ""
    thinking: str = ""
    tokens: tuple[int, ...] = ()
    law: tuple[Sampling | int | str | None, ...] = ()

    @classmethod
    def of(cls, turn: Turn) -> _Saved:
        law = turn.sampling, turn.seed, turn.draw, turn.model_fingerprint
        return cls(turn.text, turn.thinking, tuple(turn.tokens), law)

    def tokens_shared(self, turn: Turn) -> int:
        """How many tokens need not be said again: all or none."""
        count = len(self.tokens)
        return count if tuple(turn.tokens[:count]) == self.tokens else 0


def _shared(saved: str, now: str) -> int:
    """How many characters of what was saved still stand."""
    if now.startswith(saved):
        return len(saved)
    pairs = enumerate(zip(saved, now, strict=False))
    return next((place for place, (old, new) in pairs if old != new), len(now))


class SessionWriter:
    """A session open for writing, by this process alone. Every verb is one line in the file.

    A verb raises StorageError when the disk refuses; what it had to say is written by a later
    verb or by `close`, in order.
    """

    def __init__(self, path: Path, lock: SessionLock, log: LogWriter) -> None:
        self.path, self._lock, self._log = path, lock, log
        self._saved: dict[str, _Saved] = {}

    @classmethod
    def create(cls, path: Path, header: dict[str, Any]) -> SessionWriter:
        """Begin a file that must not be there; a full disk leaves its first line waiting."""
        lock = SessionLock(path.parent, header["id"], header["name"])
        try:
            writer = cls(path, lock, LogWriter(path, create=True))
        except BaseException:
            lock.release()
            raise
        writer._log.wait_for(header)
        return writer

    @classmethod
    def open(cls, path: Path) -> tuple[SessionWriter, Session]:
        """Lock a file, then read it: what is read stays true while the lock is held."""
        name = path.name.removesuffix(names.SUFFIX)
        lock = SessionLock(path.parent, str(read_header(path)["id"]), name)
        try:
            session = Session(path)
            return cls(path, lock, LogWriter(path)), session
        except BaseException:
            lock.release()
            raise

    @property
    def waits(self) -> bool:
        """Whether something that was said by a verb is not in the file."""
        return self._log.waits

    def user(self, turn: Turn) -> None:
        """Flush the user's turn."""
        self._log.append(user_record(turn))

    def tool(self, turn: Turn) -> None:
        """Write a tool's result and sync it to the disk: what a tool did is not done again."""
        self._log.append(tool_record(turn), durable=True)

    def model(self, model: ModelInfo, head: str | None) -> None:
        """Note that another model answers from here on."""
        self._log.append(model_record(names.new_id(), head, model))

    def system(self, system: str, head: str | None) -> None:
        """Note that another system prompt holds from here on."""
        self._log.append(system_record(names.new_id(), head, system))

    def title(self, title: str, head: str | None) -> None:
        """Note what the conversation is called from here on, and sync it to the disk."""
        self._log.append(title_record(names.new_id(), head, title), durable=True)

    def kept(self, snapshots: list[str]) -> None:
        """Note that the session needs these snapshots, and sync it to the disk."""
        self._log.append(kept_record(names.new_id(), snapshots), durable=True)

    def partial(self, turn: Turn, *, durable: bool = False) -> None:
        """Flush what an answer under way got since the last call."""
        saved, now = self._saved.get(turn.id, _Saved()), _Saved.of(turn)
        if now[:3] != saved[:3]:
            record = partial_record(
                turn,
                _shared(saved.text, now.text),
                thought=_shared(saved.thinking, now.thinking),
                since=saved.tokens_shared(turn),
                law=now.law != saved.law,
            )
            self._log.append(record, durable=durable, droppable=True)
            self._saved[turn.id] = now

    def go_on(self, turn: Turn) -> None:
        """Write that an answer which was cut off goes on."""
        self._saved[turn.id] = _Saved.of(turn)
        self._log.append(continue_record(names.new_id(), turn))

    def finish(self, turn: Turn, device_fingerprint: str) -> None:
        """Write an answer's end and sync it to the disk."""
        assert turn.finished is not None, "only an ended turn is finished"
        record = assistant_record(turn, turn.finished, device_fingerprint)
        self._saved.pop(turn.id, None)
        self._log.append(record, durable=True)

    def head(self, turn: Turn | None) -> None:
        """Write which turn the conversation goes on from, None for its beginning, and sync it to
        the disk.

        An answer that has said nothing yet is written first: a reader must know the turn.
        """
        if turn and turn.status == "streaming" and turn.id not in self._saved:
            self._log.append(partial_record(turn, 0, law=True))
            self._saved[turn.id] = _Saved.of(turn)
        self._log.append(head_record(names.new_id(), turn), durable=True)

    def close(self) -> None:
        """Write what waits and release the lock."""
        try:
            self._log.close()
        finally:
            self._lock.release()
