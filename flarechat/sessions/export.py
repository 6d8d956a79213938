"""Conversations in the formats that others read. Owns what of a session each of them keeps.

    openai     {"messages": [...]}: role and content; thinking as reasoning_content if asked for
    sharegpt   [{"id", "conversations": [...]}]: from and value; thinking in <think> if asked for
    markdown   for reading: thinking folded, how an answer ended where that was not by itself
    html       the same as one page, see `page`
    jsonl      the session's own file, byte for byte

All branches are a list of conversations in the first two, the head's first; in the two for reading
each further branch begins with its first turn that was not told. `new_file` is what they go to.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from flarechat.errors import UsageError
from flarechat.sessions.log import bytes_of
from flarechat.sessions.page import page
from flarechat.sessions.session import Session
from flarechat.sessions.telling import Part, branches, ending, speaker, told_once, where
from flarechat.sessions.turns import Turn
from flarechat.textsafe import strip_controls

FORMATS = ("openai", "markdown", "sharegpt", "html", "jsonl")
_SHAREGPT = {"system": "system", "user": "human", "assistant": "gpt"}
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


def _messages(session: Session, path: list[Turn], thinking: bool) -> list[dict[str, str]]:
    system = [{"role": "system", "content": session.system}] if session.system else []
    return system + [
        {"role": turn.role, "content": turn.text}
        | ({"reasoning_content": turn.thinking} if thinking and turn.thinking else {})
        for turn in path
    ]


def _sharegpt(session: Session, path: list[Turn], thinking: bool) -> dict[str, Any]:
    said = [
        {
            "from": _SHAREGPT[message["role"]],
            "value": f"<think>\n{message['reasoning_content']}\n</think>\n\n{message['content']}"
            if "reasoning_content" in message
            else message["content"],
        }
        for message in _messages(session, path, thinking)
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
    return f"## {speaker(turn)}{ending(turn)}\n\n{thinking}{turn.text.rstrip()}"


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
