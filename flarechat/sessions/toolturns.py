"""Calls of tools and their results in a session's lines: how they are written, and what is taken.

Knows no file. Of calls that make no sense none is taken; the answer's text does without.

    calls     of an answer: a list of id, name, arguments and, of a call that a model wrote, text
    tool      a result: the `call` it is of, the tool's `name`, the `outcome` and its text
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from flarechat.protocol import ToolCall
from flarechat.protocol.tools import MAX_CALL_DEPTH, is_shallow
from flarechat.textsafe import well_formed


def call_fields(calls: Iterable[ToolCall]) -> dict[str, Any]:
    """The field of an answer's calls; none where it made none."""
    written = [
        {"id": call.id, "name": call.name, "arguments": call.arguments}
        | ({"text": call.text} if call.text else {})
        for call in calls
    ]
    return {"calls": written} if written else {}


def taken_calls(record: dict[str, Any]) -> tuple[ToolCall, ...]:
    """The calls of a record, all or none of them."""
    calls = record.get("calls")
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        return ()
    if len({call["id"] for call in calls}) < len(calls):
        return ()
    return tuple(map(_call, calls))


def _call(value: dict[str, Any]) -> ToolCall:
    own, name, arguments = value["id"], value["name"], value["arguments"]
    text = value.get("text", "")
    written = text if isinstance(text, str) else ""
    return sound(ToolCall(id=own, name=name, arguments=arguments, text=written))


def sound(call: ToolCall) -> ToolCall:
    """The call with every lone surrogate replaced, so that all of it can be encoded."""
    arguments = json.loads(well_formed(json.dumps(call.arguments, ensure_ascii=False)))
    return replace(
        call,
        id=well_formed(call.id),
        name=well_formed(call.name),
        arguments=arguments,
        text=well_formed(call.text),
    )


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("id"), str)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("arguments"), dict)
        and is_shallow(value["arguments"], MAX_CALL_DEPTH)
    )
