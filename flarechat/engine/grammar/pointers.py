"""JSON pointers: the places of a schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flarechat.engine.grammar.keywords import LISTS, NAMED, ONE


def steps(schema: dict[str, Any]) -> Iterator[str]:
    """From a schema to each of its subschemas, as the rest of a JSON pointer."""
    yield from (f"/{word}" for word in ONE if word in schema)
    for word in LISTS:
        yield from (f"/{word}/{number}" for number in range(len(schema.get(word, []))))
    for word in NAMED:
        yield from (f"/{word}/{escaped(name)}" for name in schema.get(word, {}))


def escaped(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def look_up(document: Any, pointer: str) -> Any:
    """What lies at a JSON pointer; KeyError and its like where nothing does."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document
