"""Whether values of a recursive schema can end.

Owns two checks: no reference leads back to itself without a value in between, and every schema has
a value that is finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flarechat.engine.grammar.keywords import refuse
from flarechat.engine.grammar.pointers import escaped, look_up

_IN_PLACE = ("allOf", "anyOf", "oneOf")
_NESTED = ("object", "array")


def check_ends(document: Any, links: Mapping[str, str | None]) -> None:
    """Refuse a schema without a finite value. `links` are its places, with where a $ref leads."""
    schemas = {place: look_up(document, place) for place in links}
    _check_founded(schemas, links)
    finite: set[str] = set()
    grown = True
    while grown:
        found = {p for p in schemas if p not in finite and _ends(p, schemas[p], links, finite)}
        finite |= found
        grown = bool(found)
    if "" not in finite:
        loops = [place for place in links if links[place] is not None and place not in finite]
        if not loops:
            refuse("nothing satisfies it", "", "Rewrite it.")
        refuse("the $ref asks for a value inside itself without end", loops[0])


def _check_founded(schemas: Mapping[str, Any], links: Mapping[str, str | None]) -> None:
    """Follow references and branches that speak of the same value; none may come back."""
    done: set[str] = set()
    for start in schemas:
        path: list[tuple[str, list[str]]] = [(start, _beside(start, schemas[start], links))]
        open_places = {start}
        while path:
            place, ahead = path[-1]
            if not ahead or place in done:
                path.pop()
                open_places.discard(place)
                done.add(place)
                continue
            following = ahead.pop()
            if following in open_places:
                refuse("$ref leads back to itself with no value in between", place)
            open_places.add(following)
            path.append((following, _beside(following, schemas[following], links)))


def _beside(place: str, schema: Any, links: Mapping[str, str | None]) -> list[str]:
    """The places that speak of the same value as this one."""
    if not isinstance(schema, dict):
        return []
    target = links[place]
    branches = [f"{place}/{w}/{n}" for w in _IN_PLACE for n in range(len(schema.get(w, [])))]
    return branches + ([] if target is None else [target])


def _ends(place: str, schema: Any, links: Mapping[str, str | None], finite: set[str]) -> bool:
    """Whether the schema has a finite value, if those in `finite` have."""
    if not isinstance(schema, dict):
        return schema is True
    if links[place] is not None and links[place] not in finite:
        return False
    if any(f"{place}/allOf/{n}" not in finite for n in range(len(schema.get("allOf", [])))):
        return False
    for word in ("anyOf", "oneOf"):
        count = len(schema.get(word, []))
        if count and not any(f"{place}/{word}/{n}" in finite for n in range(count)):
            return False
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type", "null")
    if any(kind not in _NESTED for kind in ([types] if isinstance(types, str) else types)):
        return True
    return ("object" in types and _object_ends(place, schema, finite)) or (
        "array" in types and _array_ends(place, schema, finite)
    )


def _object_ends(place: str, schema: dict[str, Any], finite: set[str]) -> bool:
    listed = schema.get("properties", {})
    return all(
        f"{place}/properties/{escaped(name)}" in finite
        for name in schema.get("required", [])
        if name in listed
    )


def _array_ends(place: str, schema: dict[str, Any], finite: set[str]) -> bool:
    least, first = schema.get("minItems", 0), len(schema.get("prefixItems", []))
    wanted = [f"{place}/prefixItems/{n}" for n in range(min(least, first))]
    if least > first and "items" in schema:
        wanted.append(f"{place}/items")
    return all(item in finite for item in wanted)
