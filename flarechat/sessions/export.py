"""Conversations in the formats that others read. Owns what of a session each of them keeps.

    openai     {"messages": [...]}: role and content, tool_calls, results with their tool_call_id;
               thinking as reasoning_content if asked for
    sharegpt   [{"id", "conversations": [...]}]: from and value, calls as function_call, results as
               observation; thinking in <think> if asked for
    markdown   for reading: thinking folded, how an answer ended where that was not by itself
    html       the same as one page, see `page`
    jsonl      the session's own file, byte for byte

All branches are a list of conversations in the first two, the head's first; in the two for reading
each further branch begins with its first turn that was not told. `new_file` is what they go to.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from flarechat.errors import UsageError
from flarechat.protocol import ToolCall
from flarechat.sessions.log import bytes_of
from flarechat.sessions.page import page
from flarechat.sessions.session import Session
from flarechat.sessions.telling import (
    Part,
    branches,
    ending,
    speaker,
    told_call,
    told_once,
    where,
)
from flarechat.sessions.turns import Turn
from flarechat.textsafe import strip_controls

FORMATS = ("openai", "markdown", "sharegpt", "html", "jsonl")
_SHAREGPT = {"user": "human", "assistant": "gpt", "tool": "observation"}
# What JSON leaves as it is though a terminal or UTF-8 does not: C1 controls, lone surrogates.
_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *range(0xD800, 0xE000))}


def exported(session: Session, kind: str, *, all_branches: bool, thinking: bool = False) -> bytes:
    """The session in a format of `FORMATS`, with every branch or the head's alone."""
    if kind == "jsonl":
        return bytes_of(session.path)
    paths = branches(session.tree) if all_branches else [session.tree.path()]
    if kind == "openai":
        chats = [{"messages": _messages(session, path, thinking)} for path in paths]
        return _json(chats if all_branches else chats[0])
    if kind == "sharegpt":
        return _json([_sharegpt(session, path, thinking) for path in paths])
    tell = {"markdown": _markdown, "html": page}.get(kind)
    if tell is None:
        raise UsageError(f"There is no format {kind!r}.", f"Choose one of {', '.join(FORMATS)}.")
    return tell(session, told_once(paths)).encode("utf-8", "replace")


def _messages(session: Session, path: list[Turn], thinking: bool) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": session.system}] if session.system else []
    return system + [
        {"role": turn.role, "content": turn.text}
        | ({"reasoning_content": turn.thinking} if thinking and turn.thinking else {})
        | ({"tool_calls": list(map(_openai_call, turn.calls))} if turn.calls else {})
        | ({"tool_call_id": turn.call} if turn.role == "tool" else {})
        for turn in path
    ]


def _openai_call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _sharegpt(session: Session, path: list[Turn], thinking: bool) -> dict[str, Any]:
    said = [{"from": "system", "value": session.system}] if session.system else []
    for turn in path:
        text = turn.text
        if thinking and turn.thinking:
            text = f"<think>\n{turn.thinking}\n</think>\n\n{text}"
        if text or not turn.calls:
            said.append({"from": _SHAREGPT[turn.role], "value": text})
        said += [
            {
                "from": "function_call",
                "value": json.dumps(
                    {"name": call.name, "arguments": call.arguments}, ensure_ascii=False
                ),
            }
            for call in turn.calls
        ]
    return {"id": session.id, "conversations": said}


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return f"{text.translate(_ESCAPES)}\n".encode()


def _markdown(session: Session, parts: list[Part]) -> str:
    blocks = [f"# {session.title or session.name}"]
    if session.system:
        blocks.append(f"## System\n\n{session.system}")
    for number, (turns, behind) in enumerate(parts, start=1):
        if number > 1:
            blocks.append(f"---\n\n*Branch {number} of {len(parts)}, {where(behind)}*")
        blocks += map(_markdown_turn, turns)
    return strip_controls("\n\n".join(blocks)) + "\n"


def _markdown_turn(turn: Turn) -> str:
    thinking = ""
    if turn.thinking:
        thinking = f"<details><summary>Thinking</summary>\n\n{turn.thinking}\n\n</details>\n\n"
    text = turn.text.rstrip()
    said = [_fenced(text) if turn.role == "tool" else text] if text or not turn.calls else []
    said += [f"→ {_code(told_call(call))}" for call in turn.calls]
    return f"## {speaker(turn)}{ending(turn)}\n\n{thinking}" + "\n\n".join(said)


def _fenced(text: str) -> str:
    """Text as it is, whatever marks are in it."""
    fence = "`" * max(3, _longest_ticks(text) + 1)
    return f"{fence}\n{text}\n{fence}"


def _code(text: str) -> str:
    ticks = "`" * (_longest_ticks(text) + 1)
    return f"{ticks} {text} {ticks}" if len(ticks) > 1 else f"`{text}`"


def _longest_ticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that was not there (FileExistsError), and is not if the block does not end well."""
    file = path.open("xb")
    try:
        with file:
            yield file
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
