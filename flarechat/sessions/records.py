"""The events of a session as the objects that its lines are: what `turns` reads, written.

Knows no file.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from flarechat.protocol import Finished, ModelInfo
from flarechat.sessions.provenance import law_fields, token_fields
from flarechat.sessions.toolturns import call_fields
from flarechat.sessions.turns import Turn


def user_record(turn: Turn) -> dict[str, Any]:
    """The event of a user's turn."""
    return _record("user", turn) | {"text": turn.text}


def tool_record(turn: Turn) -> dict[str, Any]:
    """The event of a tool's result."""
    fields = {"call": turn.call, "name": turn.name, "outcome": turn.reason, "text": turn.text}
    return _record("tool", turn) | fields


def partial_record(
    turn: Turn, offset: int, *, thought: int = 0, since: int = 0, law: bool = False
) -> dict[str, Any]:
    """The event of what an answer got since: text behind `offset` characters, thinking behind
    `thought`, tokens behind `since`, all its calls, and, if asked for, the law of its tokens.
    """
    thinking = {"thought_offset": thought, "thinking": turn.thinking[thought:]}
    return (
        _record("partial", turn)
        | {"offset": offset, "text": turn.text[offset:]}
        | (thinking if turn.thinking else {})
        | token_fields(turn, since)
        | call_fields(turn.calls)
        | (law_fields(turn) if law else {})
    )


def continue_record(event_id: str, turn: Turn) -> dict[str, Any]:
    """The event of an answer going on that was cut off."""
    return _change("continue", event_id, turn.id)


def assistant_record(turn: Turn, finished: Finished, device_fingerprint: str) -> dict[str, Any]:
    """The event of an answer's end: the finish record and the device it was timed on."""
    ending = asdict(finished)
    del ending["request"], ending["notices"]
    said = token_fields(turn) | law_fields(turn) | call_fields(turn.calls)
    device = {"device_fingerprint": device_fingerprint}
    return _record("assistant", turn) | ending | said | device


def head_record(event_id: str, turn: Turn | None) -> dict[str, Any]:
    """The event of the conversation going on from a turn that is not the last one written, or from
    its beginning.
    """
    return _change("head", event_id, turn.id if turn else None)


def model_record(event_id: str, parent: str | None, model: ModelInfo) -> dict[str, Any]:
    """The event of another model taking over."""
    fields = {"model": model_fields(model), "template_digest": model.template_digest}
    return _change("model", event_id, parent) | fields


def system_record(event_id: str, parent: str | None, system: str) -> dict[str, Any]:
    """The event of another system prompt."""
    return _change("system", event_id, parent) | {"system": system}


def title_record(event_id: str, parent: str | None, title: str) -> dict[str, Any]:
    """The event of another title."""
    return _change("title", event_id, parent) | {"title": title}


def kept_record(event_id: str, snapshots: list[str]) -> dict[str, Any]:
    """The event of snapshots that came with the session from elsewhere, by their digests."""
    return _change("kept", event_id, None) | {"snapshots": snapshots}


def model_fields(model: ModelInfo) -> dict[str, Any]:
    """What a session remembers of a model."""
    return {"name": model.name, "fingerprint": model.fingerprint, "recipe": model.recipe}


def _change(kind: str, event_id: str, parent: str | None) -> dict[str, Any]:
    return {"type": kind, "id": event_id, "parent": parent, "at": round(time.time(), 3)}


def _record(kind: str, turn: Turn) -> dict[str, Any]:
    at = round(turn.started_at, 3)
    place = {"fan": turn.fan, "answer": turn.answer} if turn.fan else {}
    return {"type": kind, "id": turn.id, "parent": turn.parent, "at": at, **place}
