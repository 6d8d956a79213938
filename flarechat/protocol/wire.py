"""Commands and events as JSON, one object a line. Unknown fields are ignored when read."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterable
from typing import Any

from flarechat.errors import FlarechatError
from flarechat.protocol.events import (
    Called,
    Delta,
    Failed,
    Finished,
    Loading,
    Progress,
    Ready,
    Round,
    Started,
)
from flarechat.protocol.requests import Boot, Cancel, Shutdown, Submit
from flarechat.protocol.spelling import Spell, Spelled

_SPELLED: dict[type, str] = {Called: "tool_call"}
_NAMES: dict[str, type] = {
    _SPELLED.get(cls, cls.__name__.lower()): cls
    for cls in (
        Boot, Submit, Cancel, Shutdown, Loading, Ready, Failed, Started, Progress, Round, Delta,
        Called, Finished, Spell, Spelled,
    )
}  # fmt: skip


_ENCODER = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"))
_FIELDS: dict[type, tuple[str, ...]] = {}
_ATOMS = frozenset((str, int, float, bool, type(None)))


def to_dict(message: Any) -> dict[str, Any]:
    """The JSON form of a command or an event: its fields behind its name."""
    cls = type(message)
    return {"event": _SPELLED.get(cls, cls.__name__.lower()), **_plain(message)}


def _plain(value: Any) -> Any:
    """`value` with every dataclass in it as a dict of its fields."""
    cls = type(value)
    if cls in _ATOMS:
        return value
    if cls in (tuple, list):
        return cls(_plain(item) for item in value) if value else value
    if cls is dict:
        return {key: _plain(item) for key, item in value.items()}
    names = _FIELDS.get(cls)
    if names is None:
        names = _FIELDS[cls] = tuple(field.name for field in dataclasses.fields(cls))
    return {name: _plain(getattr(value, name)) for name in names}


def encode(message: Any) -> str:
    """One line of JSON, without the line break."""
    return _ENCODER.encode(to_dict(message))


def decode(line: str) -> Any:
    """The command or event of one line; unknown fields are ignored, an unknown name refused."""
    data = json.loads(line)
    name = data.pop("event", None)
    if name not in _NAMES:
        raise FlarechatError(f"The engine channel carried an unknown message {name!r}.")
    return from_dict(_NAMES[name], data)


def from_dict(cls: Any, data: Any) -> Any:
    """Build `cls` (a dataclass, tuple, dict or union of them) from plain JSON data."""
    origin, args = typing.get_origin(cls), typing.get_args(cls)
    if origin in (types.UnionType, typing.Union):
        return None if data is None else from_dict(_not_none(args), data)
    if origin is tuple:
        return tuple(from_dict(args[0], item) for item in data)
    if origin is dict:
        return {key: from_dict(args[1], value) for key, value in data.items()}
    if dataclasses.is_dataclass(cls):
        hints = _hints(cls)
        kept = {k: from_dict(hints[k], v) for k, v in data.items() if k in hints}
        return typing.cast(Any, cls)(**kept)
    return data


def _not_none(args: Iterable[Any]) -> Any:
    return next(arg for arg in args if arg is not type(None))


_HINTS: dict[Any, dict[str, Any]] = {}


def _hints(cls: Any) -> dict[str, Any]:
    """Resolved field types of a dataclass, looked up once."""
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]
