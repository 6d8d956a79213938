"""Reads a JSON schema: what can be enforced whole is given the form the library takes.

Owns the walk over a schema, the references inside it and the limits of its size. A schema whose
meaning would be weakened is refused, naming the keyword and its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote, unquote

from flarechat.engine.grammar.keywords import refuse, settle
from flarechat.engine.grammar.pointers import escaped, look_up, steps
from flarechat.engine.grammar.recursion import check_ends
from flarechat.errors import GrammarError

MAX_BYTES = 1 << 18
MAX_DEPTH = 90
MAX_SCHEMAS = 5_000

# One line of JSON with a blank behind each comma and colon, as most of what models have read has
# it. No place takes blank space or leaves it out: a small model could write it without end, and no
# run of certain bytes would go past a comma.
STYLE = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": False,
    "lenient": False,
    # Without \u, as a name that is listed could otherwise be spelled so that it counts as another.
    "json_allowed_escapes": '"\\bfnrt',
}

_DRAFTS = re.compile(r"https?://json-schema\.org/(draft/(2020-12|2019-09)|draft-0[4567])/schema#?")
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_HOME = "#/$defs/schema"


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """A schema in the library's form, and the places of the subschemas that count, deepest last.

    The schema lies inside `document`, so that each of its places can be compiled alone.
    """

    document: dict[str, Any]
    places: tuple[str, ...]

    def form(self, place: str = "") -> dict[str, Any]:
        """What the library compiles: the whole, or what lies at a place."""
        home = {"$ref": _at_home(place), "$defs": {"schema": self.document}}
        return {**home, "x-guidance": STYLE}


def prepared(text: str) -> PreparedSchema:
    """Read a schema and check all that counts of it; GrammarError says what cannot be enforced."""
    document = _parsed(text)
    if document is False:
        refuse("it is false, which nothing satisfies", "")
    if document is True:
        document = {}
    if not isinstance(document, dict):
        refuse(f"it is {text.strip()[:40]!r}, no object", "", "A schema is a JSON object.")
    draft = document.get("$schema", "")
    if draft and not (isinstance(draft, str) and _DRAFTS.fullmatch(draft)):
        refuse(f"$schema is {draft!r}", "", "Leave it out, or name draft 2020-12.")
    walk = _Walk(document)
    walk.run()
    check_ends(document, walk.links)
    return PreparedSchema(document, tuple(walk.links))


def _at_home(place: str) -> str:
    """The reference to a place of the schema where the library has it."""
    return _HOME + quote(place, safe="/~!$&'()*+,;=:@")


def _parsed(text: str) -> Any:
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise GrammarError(
            f"The JSON schema is {len(text):,} characters long; {MAX_BYTES:,} bytes are taken.",
            "Give a smaller one.",
        )
    depth = deepest = 0
    for found in _NESTING.finditer(text):
        depth += (found[0] in "[{") - (found[0] in "]}")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise GrammarError(
            f"The JSON schema is nested {deepest:,} levels deep; {MAX_DEPTH} are taken.",
            "Give parts of it names in $defs and refer to them with $ref.",
        )
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except ValueError as error:
        raise GrammarError(f"The JSON schema is not JSON: {error}.", "Mend the file.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for n, (name, _) in enumerate(pairs) if name in dict(pairs[:n]))
        raise ValueError(f"the name {twice!r} comes twice in one object")
    return made


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


class _Walk:
    """Visits every subschema that counts, once; `links` has, for each place, where it leads."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._base = document.pop("$id", document.pop("id", ""))
        self._anchors = dict(_anchors(document))
        self.links: dict[str, str | None] = {}

    def run(self) -> None:
        pending = [""]
        while pending:
            place = pending.pop()
            if place in self.links:
                continue
            if len(self.links) >= MAX_SCHEMAS:
                refuse(f"it has more than {MAX_SCHEMAS:,} subschemas", "", "Give a smaller one.")
            pending += self._visit(place)

    def _visit(self, place: str) -> list[str]:
        """Settle the schema at a place; the places it leads to."""
        schema = look_up(self._document, place)
        self.links[place] = None
        if isinstance(schema, bool):
            return []
        if not isinstance(schema, dict):
            refuse(f"{schema!r} is no schema", place, "A schema is an object, true or false.")
        if place and ("$id" in schema or ("id" in schema and isinstance(schema["id"], str))):
            refuse("$id is not supported inside a schema", place)
        settle(schema, place)
        found = [place + step for step in steps(schema)]
        if "$ref" in schema:
            target = self._target(schema["$ref"], place)
            self.links[place] = target
            schema["$ref"] = _at_home(target)
            found.append(target)
        return found

    def _target(self, reference: Any, place: str) -> str:
        """The place a reference means."""
        inside = reference
        if isinstance(inside, str) and self._base and inside.startswith(str(self._base)):
            inside = inside[len(str(self._base)) :] or "#"
        if not isinstance(inside, str) or not inside.startswith("#"):
            refuse(f"$ref {reference!r} leads out of the schema", place, "Refer to #/$defs/NAME.")
        pointer = unquote(inside[1:])
        if pointer and not pointer.startswith("/"):
            if pointer not in self._anchors:
                refuse(f"$ref {reference!r} names no $anchor", place)
            return self._anchors[pointer]
        try:
            look_up(self._document, pointer)
        except (KeyError, IndexError, ValueError, TypeError):
            refuse(f"$ref {reference!r} leads nowhere", place)
        return pointer


def _anchors(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every $anchor below a schema with its place, also where nothing refers to it."""
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        place, schema = pending.pop()
        if isinstance(schema, dict):
            if isinstance(schema.get("$anchor"), str):
                yield schema["$anchor"], place
            pending += [(f"{place}/{escaped(word)}", inner) for word, inner in schema.items()]
        elif isinstance(schema, list):
            pending += [(f"{place}/{number}", inner) for number, inner in enumerate(schema)]
