"""A conversation of ChatGPT's `conversations.json`: a tree of messages as a tree of turns.

    {"title", "create_time", "conversation_id", "current_node",
     "mapping": {id: {"id", "parent", "children", "message": null or
         {"author": {"role"}, "create_time", "recipient", "metadata",
          "content": {"content_type", "parts" or "text" or "thoughts"}}}}}

Owns what becomes of its messages: what a model said in several, with tools in between, is one turn;
calls of tools, their answers and hidden messages are counted and left out.
"""

from __future__ import annotations

from typing import Any

from flarechat.sessions import names
from flarechat.sessions.foreign import Conversation, left, moment, word
from flarechat.sessions.turns import Turn

# Kinds that hold settings of the program, not anything said.
_SETTINGS = ("user_editable_context", "model_editable_context", "reasoning_recap")


def from_mapping(found: dict[str, Any]) -> Conversation:
    """Raises ValueError with what is wrong."""
    mapping = found.get("mapping")
    if not isinstance(mapping, dict) or not all(isinstance(n, dict) for n in mapping.values()):
        raise ValueError("its mapping is no table of messages")
    chat = Conversation(created=moment(found.get("create_time")))
    chat.title = word(found, "title")
    chat.id = word(found, "conversation_id") or word(found, "id")
    chat.model = word(found, "default_model_slug")
    _Walk(chat, mapping).walk(found.get("current_node"))
    return chat


class _Walk:
    """From the roots of a mapping to its leaves; a turn may grow by the messages behind it."""

    def __init__(self, chat: Conversation, mapping: dict[str, dict[str, Any]]) -> None:
        self._chat, self._mapping = chat, mapping
        self._ends: dict[str, Turn | None] = {}
        self._grown: set[str] = set()

    def walk(self, current: Any) -> None:
        """Take all messages; the head is where `current` is, else the last one."""
        parents = {key: self._parent(node) for key, node in self._mapping.items()}
        behind: dict[str | None, list[str]] = {}
        for key, parent in parents.items():
            behind.setdefault(parent, []).append(key)
        waiting: list[tuple[str, Turn | None]] = [(key, None) for key in behind.get(None, [])[::-1]]
        while waiting:
            key, before = waiting.pop()
            node = self._mapping[key]
            self._ends[key] = end = self._turn(node.get("message"), before)
            ordered = _ordered(behind.get(key, []), node.get("children"))
            waiting += [(child, end) for child in reversed(ordered)]
        if lost := len(self._mapping) - len(self._ends):
            self._chat.left_out["message without a beginning"] += lost
        turns = self._chat.turns
        head = self._ends.get(current) if isinstance(current, str) else None
        head = head or (turns[-1] if turns else None)
        needed = {turn.parent for turn in turns} | ({head.id} if head else set())
        self._chat.turns = [t for t in turns if t.id in needed or t.id not in self._grown]
        self._chat.head = head

    def _parent(self, node: dict[str, Any]) -> str | None:
        parent = node.get("parent")
        return parent if isinstance(parent, str) and parent in self._mapping else None

    def _turn(self, message: Any, before: Turn | None) -> Turn | None:
        """The turn that ends with this message: a new one, the one before longer, or that one."""
        role, text, thinking = _read(message, self._chat)
        if not text and not thinking:
            return before
        if role == "system":
            self._chat.instruct(text)
            return before
        grows = before is not None and before.role == role
        if before is not None and grows:
            self._grown.add(before.id)
            text = "\n\n".join(filter(None, (before.text, text)))
            thinking = "\n\n".join(filter(None, (before.thinking, thinking)))
        turn = Turn(
            id=names.new_id(),
            parent=before.parent if before and grows else before.id if before else None,
            role=role,
            text=text,
            thinking=thinking,
            started_at=moment(message.get("create_time")),
        )
        self._chat.turns.append(turn)
        return turn


def _ordered(keys: list[str], said: Any) -> list[str]:
    """The messages behind one in the order that it says, those that it does not name last."""
    places = enumerate(said if isinstance(said, list) else [])
    order = {key: place for place, key in places if isinstance(key, str)}
    return sorted(keys, key=lambda key: order.get(key, len(order)))


def _read(message: Any, chat: Conversation) -> tuple[str, str, str]:
    """Role, text and thinking of a message; nothing of one that is left out."""
    if not isinstance(message, dict):
        return "", "", ""
    author, content, about = (_table(message, key) for key in ("author", "content", "metadata"))
    role, kind, tool = word(author, "role"), word(content, "content_type"), ""
    if role == "tool":
        tool = word(author, "name") or "unknown"
    elif (recipient := word(message, "recipient")) not in ("", "all"):
        tool = recipient
    if slug := word(about, "model_slug"):
        chat.model = slug
    if tool:
        chat.left_out[f"message of the tool {tool}"] += 1
        return "", "", ""
    if kind == "thoughts" and role == "assistant":
        return role, "", _thoughts(content)
    if kind in _SETTINGS or about.get("is_visually_hidden_from_conversation") is True:
        if any(
            said not in ("", [], [""], None)
            for key, said in content.items()
            if key != "content_type"
        ):
            chat.left_out["hidden message"] += 1
        return "", "", ""
    if role not in ("user", "assistant", "system"):
        chat.left_out[f"message of the role {role or 'unknown'}"] += 1
        return "", "", ""
    return role, _text(content, chat), ""


def _text(content: dict[str, Any], chat: Conversation) -> str:
    parts = content.get("parts")
    pieces = []
    for part in parts if isinstance(parts, list) else [content]:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            pieces.append(part["text"])
        elif part is not content or set(content) - {"content_type", "parts"}:
            pieces.append(f"[{left(part, chat)}]")
    text = "\n".join(filter(None, pieces))
    language = word(content, "language").replace("unknown", "")
    return f"```{language}\n{text}\n```" if text and content.get("content_type") == "code" else text


def _thoughts(content: dict[str, Any]) -> str:
    thoughts = content.get("thoughts")
    said = [t for t in thoughts if isinstance(t, dict)] if isinstance(thoughts, list) else []
    return "\n\n".join(
        text for thought in said if (text := word(thought, "content") or word(thought, "summary"))
    )


def _table(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}
