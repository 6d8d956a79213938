"""Files of conversations as sessions. Owns which format a file has and that all of it is taken or
nothing: sessions are written beside the others and moved to their names when the file was read.

A name that is taken gets a number; a conversation that is here already, by its id, is not taken
again unless another name is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from flarechat import paths
from flarechat.errors import SessionError, StorageError, reason_of
from flarechat.protocol import Finished, Sampling, Speculation
from flarechat.sessions import bundle, names, records, snapshots, state, store
from flarechat.sessions.aside import folder_aside
from flarechat.sessions.chatgpt import from_mapping
from flarechat.sessions.foreign import Conversation, from_messages, is_message
from flarechat.sessions.jsonvalues import values
from flarechat.sessions.log import FORMAT, LogWriter, is_id, parsed
from flarechat.sessions.session import Session, SessionWriter, new_header
from flarechat.sessions.turns import Turn
from flarechat.vault.folder import VaultFolder

_READS = (
    "Import reads OpenAI messages, ShareGPT, ChatGPT's conversations.json, and what"
    " `flarechat sessions export` writes as openai, sharegpt, jsonl or bundle."
)
_BEGINS = re.compile(rb'\s*\{\s*"format"\s*:\s*"' + FORMAT.encode() + b'"')
# A foreign id shorter than this is a number within its file, not one that no other has.
_OWN_FOR_GOOD = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A session that was taken: its name, how many turns it has, and what it lacks."""

    name: str
    turns: int
    notices: tuple[str, ...]


@dataclass(slots=True)
class _Batch:
    """The sessions of one file before they have their names."""

    file: Path
    folder: Path
    name: str | None
    here: dict[str, str]
    parts: list[tuple[Path, str]] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    empty: int = 0
    has_state: bool = False
    left_out: dict[Path, str] = field(default_factory=dict)

    def new_id(self, wanted: str) -> str | None:
        """`wanted`, or another where it is no id or --as makes a copy; None if it is here."""
        if not is_id(wanted) or (self.name is not None and wanted in self.here):
            return names.new_id()
        if wanted in self.here:
            self.known.append(self.here[wanted])
            return None
        return wanted

    def part(self, session: str, name: str) -> Path:
        """A new file for the session with this id, to be called `name`."""
        self.here[session] = name
        part = self.folder / f"{len(self.parts)}{names.SUFFIX}"
        self.parts.append((part, name))
        self.left_out[part] = ""
        return part


def import_file(
    file: Path, name: str | None = None, *, state_budget: int | None = None
) -> tuple[list[Imported], list[str]]:
    """Take all conversations of a file: what was taken, and what to say of those that were not.

    `name` is what the only one is to be called. The state of a bundle is taken in where there is a
    `state_budget`, the bytes that the vault may have afterwards. Raises SessionError where the file
    is none that is read, holds nothing, or has only what is here; nothing was taken then.
    """
    if name is not None and store.exists(name):
        raise SessionError(f"There is a session {name!r} already.", "Choose another name.")
    with folder_aside() as folder:
        batch = _Batch(file, folder, name, store.ids())
        try:
            _read(batch)
        except OSError as error:
            raise SessionError(
                f"{file} cannot be read: {reason_of(error)}.", "Give the path of a file."
            ) from error
        _require_some(batch)
        taken = _placed(batch)
    said = _not_taken(batch)
    if batch.has_state:
        said += _state_taken(file, taken[0].name, state_budget)
    return taken, said


def _state_taken(file: Path, name: str, budget: int | None) -> list[str]:
    """Take a bundle's state, if there is a budget for it, and name it in its session where that
    does not; what to say of it. The session is here already, so nothing that is wrong with the
    state is an error."""
    try:
        with bundle.opened(file) as packed:
            if budget is None:
                return [state.not_taken(packed)]
            notices, ends = state.take(packed, VaultFolder(paths.snapshots_dir()), budget)
        path = store.find(name)
        if unnamed := sorted(set(ends) - snapshots.named(path)):
            writer, _ = SessionWriter.open(path)
            writer.kept(unnamed)
            writer.close()
        return notices
    except (SessionError, StorageError) as error:
        return [f"{file}: its state was not taken in: {error.message}"]


def _require_some(batch: _Batch) -> None:
    if batch.name is not None and len(batch.parts) > 1:
        raise SessionError(
            f"{batch.file} has {len(batch.parts)} conversations, and --as names one.",
            "Leave --as out; each gets the name of its title.",
        )
    if batch.known and not batch.parts:
        some = ", ".join(batch.known[:3]) + (", …" if len(batch.known) > 3 else "")
        raise SessionError(
            f"{batch.file} is here already, as {some}.", "Give --as NAME to import it once more."
        )
    if not batch.parts:
        raise SessionError(f"{batch.file} has no conversation.", _READS)


def _not_taken(batch: _Batch) -> list[str]:
    """What to say of conversations that were left out though others were taken."""
    said = []
    if batch.known:
        some = ", ".join(batch.known[:3]) + (", …" if len(batch.known) > 3 else "")
        said.append(f"{batch.file}: left out {len(batch.known)} that are here already: {some}.")
    if batch.empty:
        said.append(f"{batch.file}: left out {batch.empty} in which nothing is said.")
    return said


def _placed(batch: _Batch) -> list[Imported]:
    """Move every part to its name; where one cannot be, none stays."""
    done: list[Path] = []
    try:
        for part, name in batch.parts:
            done.append(store.place(part, name, numbered=batch.name is None))
    except BaseException:
        for path in done:
            path.unlink(missing_ok=True)
        raise
    return [
        _told(path, batch.left_out[part]) for path, (part, _) in zip(done, batch.parts, strict=True)
    ]


def _told(path: Path, left_out: str) -> Imported:
    session = Session(path)
    notices = [*session.notices, *([left_out] if left_out else [])]
    return Imported(name=session.name, turns=len(session.tree.turns), notices=tuple(notices))


def _read(batch: _Batch) -> None:
    """Write a part for every conversation of the file."""
    if batch.file.exists() and not batch.file.is_file():
        raise SessionError(f"{batch.file} is no file.", "Give the path of a file.")
    with batch.file.open("rb") as file:
        start = file.readline(1 << 16)
    if start.startswith(b"PK"):
        with bundle.opened(batch.file) as packed:
            _take_log(batch, packed.log(), packed.name)
            batch.has_state = bool(packed.state)
    elif _is_log(start):
        _take_log(batch, batch.file.read_bytes(), batch.file.name.removesuffix(names.SUFFIX))
    else:
        for number, found in enumerate(_conversations(batch.file), start=1):
            try:
                _take(batch, _understood(found))
            except ValueError as error:
                raise SessionError(
                    f"{batch.file}, conversation {number}: {error}.", _READS
                ) from None


def _is_log(start: bytes) -> bool:
    """Whether a file begins as a session's own; a first line that is cut off, by its first key."""
    if not start.endswith(b"\n") and _BEGINS.match(start):
        return True
    try:
        return bool(json.loads(start)["format"] == FORMAT)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _take_log(batch: _Batch, data: bytes, name: str) -> None:
    """Take a session's own file, byte for byte but for an id that is to be another."""
    header = parsed(data, batch.file).header
    session = batch.new_id(header["id"])
    if session is None:
        return
    if session != header["id"]:
        first = json.dumps(header | {"id": session}, separators=(",", ":")).encode()
        data = first + b"\n" + data.partition(b"\n")[2]
    _write(batch.part(session, batch.name or names.free_name(name)), data)


def _write(part: Path, data: bytes) -> None:
    try:
        part.write_bytes(data)
    except OSError as error:
        raise StorageError(
            f"The session file {part} cannot be written: {error.strerror}.", "Free space."
        ) from error


def _conversations(file: Path) -> Iterator[Any]:
    """Every conversation of a JSON file as its value; the messages of a bare list are one."""
    try:
        with file.open(encoding="utf-8-sig") as text:
            for kind, found in groupby(values(text), _array_of_messages):
                if kind:
                    yield [value for _, value in found]
                else:
                    yield from (value for _, value in found)
    except UnicodeDecodeError as error:
        raise SessionError(f"{file} is no conversation: {reason_of(error)}.", _READS) from error
    except ValueError as error:
        raise SessionError(f"{file} is no JSON that can be read: {error}.", _READS) from error


def _array_of_messages(found: tuple[int, Any]) -> int:
    """The number of the array that this message stands in bare; 0 for what is no message."""
    array, value = found
    return array if is_message(value) else 0


def _understood(found: Any) -> Conversation:
    if isinstance(found, list) or (
        isinstance(found, dict) and found.keys() & {"messages", "conversations"}
    ):
        return from_messages(found)
    if isinstance(found, dict) and "mapping" in found:
        return from_mapping(found)
    if isinstance(found, dict):
        keys = ", ".join(map(repr, list(found)[:5])) or "nothing"
        raise ValueError(f"an object with {keys} is none")
    raise ValueError(f"{json.dumps(found)[:40]} is none")


def _take(batch: _Batch, chat: Conversation) -> None:
    """Write a conversation of another program as a session."""
    if not chat.turns:
        batch.empty += 1
        return
    session = batch.new_id(chat.id if len(chat.id) >= _OWN_FOR_GOOD else "")
    if session is None:
        return
    header = new_header(
        model=None,
        model_name=chat.model,
        sampling=Sampling(),
        speculation=Speculation(),
        system=chat.system,
    )
    name = batch.name or names.slug(chat.title or chat.turns[0].text)
    part = batch.part(session, name)
    created = chat.created or header["created"]
    log = LogWriter(part, create=True)
    log.wait_for(header | {"id": session, "name": name, "created": created})
    for turn in chat.turns:
        log.wait_for(_record(turn))
    head = chat.head.id if chat.head else None
    if chat.title:
        log.wait_for(records.title_record(names.new_id(), head, names.title(chat.title)))
    log.wait_for(records.head_record(names.new_id(), chat.head))
    log.close()
    if chat.left_out:
        counted = ", ".join(f"{what} ×{count}" for what, count in chat.left_out.items())
        batch.left_out[part] = f"{batch.file} has more than was taken of {name}: {counted}."


def _record(turn: Turn) -> dict[str, Any]:
    if turn.role == "user":
        return records.user_record(turn)
    if turn.role == "tool":
        return records.tool_record(turn)
    reason = "tool_calls" if turn.calls else "stop"
    ended = replace(Finished.unplayed(turn.id, reason), text=turn.text, thinking=turn.thinking)
    return records.assistant_record(turn, ended, "")
