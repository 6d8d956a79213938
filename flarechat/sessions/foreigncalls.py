"""Calls of tools as other programs write them: OpenAI's `tool_calls` and `function_call`, and the
value of ShareGPT's function_call. What is no call is None, to be counted.
"""

from __future__ import annotations

import json
from typing import Any

from flarechat.protocol import ToolCall
from flarechat.protocol.tools import MAX_CALL_DEPTH, is_shallow
from flarechat.sessions import names
from flarechat.sessions.toolturns import sound


def calls_of(message: dict[str, Any]) -> list[ToolCall | None]:
    """The calls of an assistant's message, in their order."""
    listed = message.get("tool_calls")
    calls = list(listed) if isinstance(listed, list) else [listed] if listed else []
    found = [_openai(call) for call in calls]
    if message.get("function_call"):
        found.append(_call(message["function_call"], ""))
    return found


def calls_in(text: str) -> list[ToolCall | None]:
    """The calls that a text is, as JSON: one, or a list of them."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [None]
    values = value if isinstance(value, list) else [value]
    return [_call(one, "") for one in values] or [None]


def _openai(call: Any) -> ToolCall | None:
    if not isinstance(call, dict):
        return None
    own = call.get("id")
    return _call(call.get("function"), own if isinstance(own, str) else "")


def _call(function: Any, own: str) -> ToolCall | None:
    """A call from a name and arguments, an object or JSON text of one."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, dict) or not function["name"]:
        return None
    if not is_shallow(arguments, MAX_CALL_DEPTH):
        return None
    return sound(ToolCall(id=own or names.new_id(), name=function["name"], arguments=arguments))
