"""The turns of a conversation as a tree, rebuilt from the events of its file.

Owns what each event means and which turn is the head. Knows no file and no engine.

    user, assistant   a whole turn: id, parent, at, text (assistant: also the finish record)
                      (assistant: and its tokens, see provenance, and calls, see toolturns; all of
                      it is whole, also of an answer that was continued)
    tool              the result of a call: id, parent, at, call, name, outcome, text
    partial           more of an answer under way: id, parent, at, offset, text, and where there is
                      any thought_offset, thinking, since, tokens, sources, copied, calls, and
                      once the law
    continue          `parent` is an answer that was cut off and goes on: partial and assistant of
                      its id follow
    head              `parent` is the turn that the conversation goes on from, or null for none
                      (assistant and partial of a fan, several answers to one message, also say
                      which fan it is and which answer of it, from 1; a head picks one of them)
    model             the model that answers from here on: model, template_digest
    system            the system prompt from here on: system, "" for none
    title             what the conversation is called from here on: title, "" for its first words
    kept              snapshots on disk that are its own, beside those that answers name: snapshots
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from flarechat.protocol import Finished, Sampling, ToolCall, from_dict
from flarechat.sessions import provenance
from flarechat.sessions.log import Line
from flarechat.sessions.toolturns import taken_calls

STATUS = {"cancelled": "stopped", "error": "error"}


@dataclass(slots=True)
class Turn:
    """One message of a conversation, as shown.

    `status` is complete, streaming, stopped, error, or partial (the file ends inside it).
    `thinking` is what the model thought before the text; it is kept, and never sent back.
    `fan` names the group of answers to one message that this is number `answer` of, from 1; a
    turn of no group has "" and 0.

    An answer may have made `calls` behind its text. A turn of the role tool is the result of the
    one with the id `call`, of the tool `name`; its `reason` is what came of it, such as done or
    refused.

    `tokens` are all that were generated, `sources` has a letter for each and `copied` the runs that
    were copied, as (first, count, turn or ""); the tokens are of the model `model_fingerprint`.
    They were drawn by the law `sampling`, as it was asked for, with `seed` (the last part was, of
    one that went on), the first of them behind `draw` tokens. Of an answer that was saved without
    them they are empty or None.
    """

    id: str
    parent: str | None
    role: str
    text: str
    status: str = "complete"
    reason: str = ""
    started_at: float = field(default_factory=time.time)
    finished: Finished | None = None
    thinking: str = ""
    fan: str = ""
    answer: int = 0
    tokens: list[int] = field(default_factory=list)
    sources: str = ""
    copied: list[provenance.Run] = field(default_factory=list)
    sampling: Sampling | None = None
    seed: int | None = None
    draw: int | None = None
    model_fingerprint: str = ""
    calls: tuple[ToolCall, ...] = ()
    call: str = ""
    name: str = ""

    @property
    def snapshot(self) -> str:
        """The digest of the snapshot on disk with the state at the answer's end, as far as one was
        kept; else ""."""
        return self.finished.snapshot if self.finished else ""

    def finish(self, finished: Finished) -> None:
        """Take over how the answer ended."""
        self.text, self.reason, self.finished = finished.text, finished.reason, finished
        self.thinking = finished.thinking
        self.status = STATUS.get(finished.reason, "complete")


class TurnTree:
    """All turns of a session. Owns the branches, the head and what the last answer left behind."""

    def __init__(self) -> None:
        self.turns: dict[str, Turn] = {}
        self.head: str | None = None
        self.model: dict[str, Any] = {}
        self.template_digest = ""
        self.system: str | None = None
        self.title = ""
        self.controller: dict[str, Any] | None = None
        self.device_fingerprint = ""
        self._picked: set[str] = set()
        self._onward: dict[str | None, str] = {}

    def add(self, turn: Turn) -> None:
        """Put a turn behind its parent and make it the head."""
        self.turns[turn.id] = turn
        self._lead_to(turn)

    def spread(self, turn: Turn) -> None:
        """Put an answer behind its parent and make it the head; of a fan, the first of them is
        until one is picked.
        """
        head = self.turns.get(self.head or "")
        kin = bool(turn.fan) and head is not None and head.fan == turn.fan
        if (kin and head and head.answer < turn.answer) or turn.fan in self._picked:
            self.turns[turn.id] = turn
        else:
            self.add(turn)

    def pick(self, turn: Turn | None) -> None:
        """Go on from this turn, None for the beginning; of a fan, it is the answer that was
        chosen."""
        if turn and turn.fan:
            self._picked.add(turn.fan)
        self._lead_to(turn)

    def _lead_to(self, turn: Turn | None) -> None:
        """Make a turn the head; from every turn before it, this is the way that was taken last."""
        step = turn
        while step and step.id != self.head:
            self._onward[step.parent] = step.id
            step = self.turns.get(step.parent) if step.parent else None
        self.head = turn.id if turn else None

    def open_fan(self) -> list[Turn]:
        """The answers to choose from before the conversation goes on; none when there is no
        choice.
        """
        head = self.turns.get(self.head or "")
        if head is None or not head.fan or head.fan in self._picked:
            return []
        fan = [turn for turn in self.turns.values() if turn.fan == head.fan]
        return sorted(fan, key=lambda turn: turn.answer) if len(fan) > 1 else []

    def siblings(self, turn: Turn) -> list[Turn]:
        """All turns of this one's role behind the turn before it: the answers to one message, or
        the messages in one place. A fan's are side by side, by number.
        """
        found = [t for t in self.turns.values() if t.parent == turn.parent and t.role == turn.role]
        begun: dict[str, int] = {}
        for place, sibling in enumerate(found):
            begun.setdefault(sibling.fan or sibling.id, place)
        return sorted(found, key=lambda t: (begun[t.fan or t.id], t.answer))

    def end_of(self, turn: Turn) -> Turn:
        """The last turn behind this one, along the branch that was gone on with last."""
        while behind := self._onward.get(turn.id):
            turn = self.turns[behind]
        return turn

    def path(self) -> list[Turn]:
        """The turns from the first to the head."""
        return self.path_to(self.turns.get(self.head) if self.head else None)

    def path_to(self, turn: Turn | None) -> list[Turn]:
        """The turns from the first to this one."""
        path: list[Turn] = []
        while turn:
            path.append(turn)
            turn = self.turns.get(turn.parent) if turn.parent else None
        return path[::-1]

    def replay(self, lines: Iterable[Line]) -> list[int]:
        """Apply the events in order; returns the numbers of the lines that mean nothing here."""
        return [line.number for line in lines if not self._applied(line.record)]

    def _applied(self, record: dict[str, Any] | None) -> bool:
        apply = EVENTS.get(str(record.get("type"))) if record else None
        if record is None or apply is None:
            return False
        try:
            apply(self, record)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return False
        return True

    def _user(self, record: dict[str, Any]) -> None:
        self.add(self._new(record, "user", "complete"))

    def _partial(self, record: dict[str, Any]) -> None:
        known = self.turns.get(_text(record, "id"))
        turn = known or self._new(record | {"text": ""}, "assistant", "partial")
        offset, text = int(record["offset"]), _text(record, "text")
        if turn.status != "partial" or not 0 <= offset <= len(turn.text):
            raise ValueError("a piece of text before it is missing")
        turn.text = turn.text[:offset] + text
        thought, thinking = record.get("thought_offset"), record.get("thinking")
        if isinstance(thinking, str) and isinstance(thought, int):
            turn.thinking = turn.thinking[: max(thought, 0)] + thinking
        if "tokens" in record:
            provenance.take_tokens(turn, record)
        turn.calls = taken_calls(record)
        provenance.take_law(turn, record)
        self.spread(turn)

    def _continue(self, record: dict[str, Any]) -> None:
        turn = self.turns[_text(record, "parent")]
        if turn.role != "assistant":
            raise ValueError("only an answer is continued")
        turn.status = "partial"

    def _assistant(self, record: dict[str, Any]) -> None:
        own = {"request": record["id"], "snapshot": provenance.snapshot_of(record)}
        finished: Finished = from_dict(Finished, record | own)
        turn = self.turns.get(finished.request) or self._new(record, "assistant", "partial")
        if turn.status != "partial" or not _text(record, "reason"):
            raise ValueError("a turn ends once")
        _text(record, "text")
        _text({"thinking": ""} | record, "thinking")
        turn.finish(finished)
        turn.calls = taken_calls(record)
        provenance.take_tokens(turn, record)
        provenance.take_law(turn, record)
        self.spread(turn)
        if finished.controller is not None:
            self.controller = finished.controller
            self.device_fingerprint = str(record.get("device_fingerprint", ""))

    def _tool(self, record: dict[str, Any]) -> None:
        turn = self._new(record, "tool", "complete")
        turn.call, turn.name = _text(record, "call"), _text(record, "name")
        turn.reason = _text(record, "outcome")
        self.add(turn)

    def _head(self, record: dict[str, Any]) -> None:
        self.pick(None if record["parent"] is None else self.turns[_text(record, "parent")])

    def _model(self, record: dict[str, Any]) -> None:
        self.model = dict(record["model"])
        self.template_digest = _text(record, "template_digest")

    def _system(self, record: dict[str, Any]) -> None:
        self.system = _text(record, "system")

    def _title(self, record: dict[str, Any]) -> None:
        self.title = _text(record, "title")

    def _kept(self, record: dict[str, Any]) -> None:
        """Who deletes a session looks for its snapshots in the file."""
        if not all(isinstance(digest, str) for digest in list(record["snapshots"])):
            raise TypeError("snapshots are named by digests")

    def _new(self, record: dict[str, Any], role: str, status: str) -> Turn:
        """A turn of a record. A parent that was lost is replaced by the turn before it."""
        if _text(record, "id") in self.turns:
            raise ValueError("a turn begins once")
        parent = record.get("parent")
        return Turn(
            id=record["id"],
            parent=self.head if parent is not None and parent not in self.turns else parent,
            role=role,
            text=_text(record, "text"),
            status=status,
            started_at=float(record["at"]),
            fan=str(record.get("fan", "")),
            answer=int(record.get("answer", 0)),
        )


EVENTS = {
    "user": TurnTree._user,
    "partial": TurnTree._partial,
    "continue": TurnTree._continue,
    "assistant": TurnTree._assistant,
    "tool": TurnTree._tool,
    "head": TurnTree._head,
    "model": TurnTree._model,
    "system": TurnTree._system,
    "title": TurnTree._title,
    "kept": TurnTree._kept,
}


def _text(record: dict[str, Any], key: str) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is no text")
    return value
