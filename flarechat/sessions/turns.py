"""The turns of a conversation as a tree, rebuilt from the events of its file.

Owns what each event means and which turn is the head. Knows no file and no engine.

    user, assistant   a whole turn: id, parent, at, text (assistant: also the finish record)
    partial           more text of an answer under way: id, parent, at, offset, text
    head              `parent` is the turn that the conversation goes on from
                      (assistant and partial of a fan, several answers to one message, also say
                      which fan it is and which answer of it, from 1; a head picks one of them)
    model             the model that answers from here on: model, template_digest
    system            the system prompt from here on: system, "" for none
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from flarechat.protocol import Finished, ModelInfo, from_dict
from flarechat.sessions.log import Line

STATUS = {"cancelled": "stopped", "error": "error"}


@dataclass(slots=True)
class Turn:
    """One message of a conversation, as shown.

    `status` is complete, streaming, stopped, error, or partial (the file ends inside it).
    `thinking` is what the model thought before the text; it is kept, and never sent back.
    `fan` names the group of answers to one message that this is number `answer` of, from 1; a
    turn of no group has "" and 0.
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
        self.controller: dict[str, Any] | None = None
        self.device_fingerprint = ""
        self._picked: set[str] = set()
        self._onward: dict[str | None, str] = {}

    def add(self, turn: Turn) -> None:
        """Put a turn behind its parent and make it the head."""
        self.turns[turn.id] = turn
        self.head = self._onward[turn.parent] = turn.id

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

    def pick(self, turn: Turn) -> None:
        """Go on from this turn; of a fan, it is the answer that was chosen."""
        self.head = turn.id
        if turn.fan:
            self._picked.add(turn.fan)
        step: Turn | None = turn
        while step:
            self._onward[step.parent] = step.id
            step = self.turns.get(step.parent) if step.parent else None

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
        """All answers to the message that this one answers; a fan's side by side, by number."""
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
        turn = self.turns.get(self.head) if self.head else None
        path: list[Turn] = []
        while turn:
            path.append(turn)
            turn = self.turns.get(turn.parent) if turn.parent else None
        return path[::-1]

    def replay(self, lines: Iterable[Line]) -> list[int]:
        """Apply the events in order; returns the numbers of the lines that mean nothing here."""
        return [line.number for line in lines if not self._applied(line.record)]

    def _applied(self, record: dict[str, Any] | None) -> bool:
        apply = _EVENTS.get(str(record.get("type"))) if record else None
        if record is None or apply is None:
            return False
        try:
            apply(self, record)
        except (KeyError, TypeError, ValueError, AttributeError):
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
        self.spread(turn)

    def _assistant(self, record: dict[str, Any]) -> None:
        finished: Finished = from_dict(Finished, record | {"request": record["id"]})
        turn = self.turns.get(finished.request) or self._new(record, "assistant", "partial")
        if turn.status != "partial" or not _text(record, "reason"):
            raise ValueError("a turn ends once")
        _text(record, "text")
        turn.finish(finished)
        self.spread(turn)
        if finished.controller is not None:
            self.controller = finished.controller
            self.device_fingerprint = str(record.get("device_fingerprint", ""))

    def _head(self, record: dict[str, Any]) -> None:
        self.pick(self.turns[_text(record, "parent")])

    def _model(self, record: dict[str, Any]) -> None:
        self.model = dict(record["model"])
        self.template_digest = _text(record, "template_digest")

    def _system(self, record: dict[str, Any]) -> None:
        self.system = _text(record, "system")

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


_EVENTS = {
    "user": TurnTree._user,
    "partial": TurnTree._partial,
    "assistant": TurnTree._assistant,
    "head": TurnTree._head,
    "model": TurnTree._model,
    "system": TurnTree._system,
}


def _text(record: dict[str, Any], key: str) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is no text")
    return value


def user_record(turn: Turn) -> dict[str, Any]:
    """The event of a user's turn."""
    return _record("user", turn) | {"text": turn.text}


def partial_record(turn: Turn, offset: int) -> dict[str, Any]:
    """The event of the text that an answer got since `offset`."""
    return _record("partial", turn) | {"offset": offset, "text": turn.text[offset:]}


def assistant_record(turn: Turn, finished: Finished, device_fingerprint: str) -> dict[str, Any]:
    """The event of an answer's end: the finish record and the device it was timed on."""
    ending = asdict(finished)
    del ending["request"]
    return _record("assistant", turn) | ending | {"device_fingerprint": device_fingerprint}


def head_record(event_id: str, turn: Turn) -> dict[str, Any]:
    """The event of the conversation going on from a turn that is not the last one written."""
    return _change("head", event_id, turn.id)


def model_record(event_id: str, parent: str | None, model: ModelInfo) -> dict[str, Any]:
    """The event of another model taking over."""
    fields = {"model": model_fields(model), "template_digest": model.template_digest}
    return _change("model", event_id, parent) | fields


def system_record(event_id: str, parent: str | None, system: str) -> dict[str, Any]:
    """The event of another system prompt."""
    return _change("system", event_id, parent) | {"system": system}


def model_fields(model: ModelInfo) -> dict[str, Any]:
    """What a session remembers of a model."""
    return {"name": model.name, "fingerprint": model.fingerprint, "recipe": model.recipe}


def _change(kind: str, event_id: str, parent: str | None) -> dict[str, Any]:
    return {"type": kind, "id": event_id, "parent": parent, "at": round(time.time(), 3)}


def _record(kind: str, turn: Turn) -> dict[str, Any]:
    at = round(turn.started_at, 3)
    place = {"fan": turn.fan, "answer": turn.answer} if turn.fan else {}
    return {"type": kind, "id": turn.id, "parent": turn.parent, "at": at, **place}
