"""Names of sessions, which are file names too. Owns what is safe and how a name is made up."""

from __future__ import annotations

import re
import uuid

from flarechat.errors import SessionError

SUFFIX = ".jsonl"
_SAFE = re.compile(r"\w[\w .-]{0,79}")
_LONGEST_BYTES = 200


def new_id() -> str:
    """An id that no other turn or session has."""
    return uuid.uuid4().hex[:12]


def safe_name(name: str) -> str:
    """`name`, refused unless it is one plain file name on every system."""
    fits = _SAFE.fullmatch(name) and name[-1] not in " ." and len(name.encode()) <= _LONGEST_BYTES
    if not fits:
        raise SessionError(
            f"{name!r} is not a session name.",
            "Use up to 80 letters, digits, spaces, dots, dashes and underscores.",
        )
    return name


def numbered(name: str, number: int) -> str:
    """`name` for the first that wants it, else cut where it must be and with the number behind."""
    if number == 1:
        return name
    ending = f"-{number}"
    while len(name) + len(ending) > 80 or len(f"{name}{ending}".encode()) > _LONGEST_BYTES:
        name = name[:-1]
    return name + ending


def free_name(text: str) -> str:
    """`text` where it is a safe name, else one made from its words."""
    try:
        return safe_name(text)
    except SessionError:
        return slug(text)


def slug(text: str) -> str:
    """A name from a conversation's first words."""
    words = re.findall(r"[^\W_]+", text.lower())[:6]
    while len("-".join(words)) > 40 and len(words) > 1:
        words.pop()
    return "-".join(words)[:40] or "chat"


def title(text: str) -> str:
    """A conversation's first message on one short line."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"
