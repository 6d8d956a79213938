"""Conversations of other programs as turns: OpenAI messages and ShareGPT.

Owns what their roles and contents mean here. What has no place in a session, such as a picture or
a tool's answer to no call, is counted by name and never dropped without a word. Knows no file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from flarechat.protocol import ToolCall
from flarechat.sessions import names
from flarechat.sessions.foreigncalls import calls_in, calls_of
from flarechat.sessions.turns import Turn

_ROLES = {
    name: role
    for role, called in {
        "user": ("user", "human"),
        "assistant": ("assistant", "gpt", "model", "chatgpt", "bing", "bard", "claude"),
        "system": ("system", "developer"),
        "tool": ("tool", "function", "observation"),
        "call": ("function_call",),
    }.items()
    for name in called
}


@dataclass(slots=True)
class Conversation:
    """One that was read: its turns in the order of a log, each behind its parent, and its head.

    `left_out` counts what the session lacks; `id` is the other program's, "" where it has none
    that is its own for good.
    """

    turns: list[Turn] = field(default_factory=list)
    head: Turn | None = None
    system: str | None = None
    title: str = ""
    id: str = ""
    model: str = ""
    created: float = 0.0
    left_out: Counter[str] = field(default_factory=Counter)

    def say(self, role: str, text: str, thinking: str = "") -> Turn:
        """Put a turn behind the last one."""
        parent = self.turns[-1].id if self.turns else None
        turn = Turn(id=names.new_id(), parent=parent, role=role, text=text, thinking=thinking)
        self.turns.append(turn)
        self.head = turn
        return turn

    def call(self, calls: Sequence[ToolCall | None]) -> None:
        """Add calls to the last turn, which is an answer; an answer of nothing is taken back."""
        turn = self.turns[-1]
        for call in calls:
            if call is None or call.id in {other.id for other in turn.calls}:
                self.left_out["call of a tool"] += 1
            else:
                turn.calls += (call,)
        if not (turn.text or turn.thinking or turn.calls):
            self.turns.pop()
            self.head = self.turns[-1] if self.turns else None

    def tell(self, own: str, name: str, text: str) -> None:
        """Put a result behind the calls of the last answer: of the one with this id, or, without
        one, of the first of this name, if any, that has none."""
        behind = list(takewhile(lambda turn: turn.role == "tool", reversed(self.turns)))
        told = {turn.call for turn in behind}
        answers = self.turns[: len(self.turns) - len(behind)]
        for call in answers[-1].calls if answers else ():
            if call.id not in told and (call.id == own if own else name in ("", call.name)):
                result = self.say("tool", text)
                result.call, result.name, result.reason = call.id, call.name, "done"
                return
        self.left_out["message of a tool"] += 1

    def instruct(self, text: str) -> None:
        """Take a system prompt: those at the beginning are one, a later one has no place."""
        if self.turns:
            self.left_out["later system prompt"] += 1
        else:
            self.system = f"{self.system}\n\n{text}" if self.system else text


def is_message(value: Any) -> bool:
    """Whether a value is one message, not a conversation."""
    return isinstance(value, dict) and ("role" in value or ("from" in value and "value" in value))


def from_messages(found: dict[str, Any] | Sequence[Any]) -> Conversation:
    """The conversation of OpenAI's `messages` or of ShareGPT's `conversations`, bare or not.

    Raises ValueError with what is wrong with which message.
    """
    chat = Conversation()
    if isinstance(found, dict):
        chat.title, chat.model = word(found, "title"), word(found, "model")
        if system := word(found, "system"):
            chat.instruct(system)
        messages = found.get("messages", found.get("conversations"))
    else:
        messages = found
    if not isinstance(messages, list):
        raise ValueError("its messages are no list")
    for number, message in enumerate(messages, start=1):
        try:
            _take(chat, message)
        except ValueError as error:
            raise ValueError(f"message {number} {error}") from None
    return chat


def _take(chat: Conversation, message: Any) -> None:
    if not isinstance(message, dict):
        raise ValueError("is no object")
    said = message.get("role", message.get("from"))
    role = _ROLES.get(said.lower()) if isinstance(said, str) else None
    if role is None:
        raise ValueError(f"has the role {said!r}")
    text = text_of(message["content"] if "content" in message else message.get("value"), chat)
    if role == "tool":
        chat.tell(word(message, "tool_call_id"), word(message, "name"), text)
    elif role == "call":
        if not (chat.turns and chat.turns[-1].role == "assistant"):
            chat.say("assistant", "")
        chat.call(calls_in(text))
    elif role == "system":
        chat.instruct(text)
    else:
        thinking = word(message, "reasoning_content") or word(message, "reasoning")
        if role == "assistant" and "from" in message and not thinking:
            thinking, text = split_thinking(text)
        chat.say(role, text, thinking)
        if message.get("tool_calls") or message.get("function_call"):
            chat.call(calls_of(message) if role == "assistant" else [None])


def text_of(content: Any, chat: Conversation) -> str:
    """The text of a message's content; of its parts what is no text leaves its name."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ValueError("has no text")
    pieces = []
    for part in content:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            pieces.append(part["text"])
        else:
            pieces.append(f"[{left(part, chat)}]")
    return "\n".join(pieces)


def left(part: Any, chat: Conversation) -> str:
    """Count a part that is no text and say what it is."""
    kind = (word(part, "type") or word(part, "content_type")) if isinstance(part, dict) else ""
    kind = next((n for n in ("image", "audio", "video", "file") if n in kind), kind) or "unknown"
    chat.left_out[kind] += 1
    return kind


def split_thinking(text: str) -> tuple[str, str]:
    """The thinking before an answer, in its marks, and the answer."""
    thinking, mark, answer = text.partition("</think>")
    if not mark or not thinking.startswith("<think>"):
        return "", text
    return thinking.removeprefix("<think>").strip("\n"), answer.removeprefix("\n\n")


def moment(value: Any) -> float:
    """A time in seconds; 0 where there is none that a clock could show."""
    sane = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if sane and math.isfinite(value) and 0 <= value < 1e11 else 0.0


def word(table: dict[str, Any], key: str) -> str:
    """The text of a field; empty where it is missing or no text."""
    value = table.get(key)
    return value if isinstance(value, str) else ""
