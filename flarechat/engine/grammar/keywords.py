"""The keywords of JSON schema: which are enforced, which say nothing, which are refused.

Owns what a keyword's value must look like, and the form in which the grammar library keeps all of
its meaning. A schema is changed where it lies; the places of its subschemas stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NoReturn, TypeVar

from flarechat.engine.grammar.formats import FORMATS, MAX_HOSTNAME
from flarechat.engine.grammar.patterns import PatternError, agreed, searched
from flarechat.errors import GrammarError

MAX_EXACT = 2**53
MAX_COUNT = 2**31 - 1
MAX_MULTIPLE = 1000
MAX_PARTS = 64

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")
ONE = ("items", "additionalProperties")
LISTS = ("prefixItems", "allOf", "anyOf", "oneOf")
NAMED = ("properties", "patternProperties")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

REFUSED = frozenset({
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems",
    "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "additionalItems", "$dynamicRef", "$recursiveRef",
    "divisibleBy", "disallow", "extends", "formatMinimum", "formatMaximum",
    "formatExclusiveMinimum", "formatExclusiveMaximum", "patternRequired", "uniqueItemProperties",
})  # fmt: skip
_IDLE = ("x-guidance", "$schema", "$vocabulary", "$dynamicAnchor", "$recursiveAnchor", "$anchor")
_SAYS_NOTHING: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "not": (False,),
}

Schema = dict[str, Any]
Found = TypeVar("Found")


def refuse(what: str, at: str, hint: str = "") -> NoReturn:
    """Say what about the place `at`, a JSON pointer, cannot be enforced."""
    raise GrammarError(
        f"The JSON schema cannot be enforced at {at or 'its root'}: {what}.",
        hint or "Leave it out, or say the same with other keywords.",
    )


def settle(schema: Schema, at: str) -> None:
    """Check every keyword of one schema, without its subschemas, and give it its final form."""
    for rule in _RULES:
        rule(schema, at)


def _drop_idle(schema: Schema, at: str) -> None:
    for word in _IDLE:
        schema.pop(word, None)
    for word, values in _SAYS_NOTHING.items():
        if word in schema and any(_same(schema[word], value) for value in values):
            del schema[word]
    if "if" not in schema:
        schema.pop("then", None)
        schema.pop("else", None)
    elif "then" not in schema and "else" not in schema:
        del schema["if"]
    if "contains" not in schema:
        schema.pop("minContains", None)
        schema.pop("maxContains", None)


def _refuse_unknown(schema: Schema, at: str) -> None:
    for word in schema:
        if word in REFUSED:
            refuse(f"{word} is not supported", at)


def _check_types(schema: Schema, at: str) -> None:
    types = schema.get("type", "object")
    names = types if isinstance(types, list) else [types]
    if not names or any(name not in TYPES for name in names):
        refuse(f"type is {types!r}", at, f"Use {', '.join(TYPES)}, or a list of them.")


def _check_shapes(schema: Schema, at: str) -> None:
    for word in LISTS:
        if word in schema and (not isinstance(schema[word], list) or not schema[word]):
            refuse(f"{word} is no list of schemas", at)
    for word in NAMED:
        if word in schema and not isinstance(schema[word], dict):
            refuse(f"{word} is no object of schemas", at)
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        refuse(f"required is {required!r}, no list of names", at)
    if isinstance(schema.get("items"), list):
        refuse("items is a list", at, "Give the first items in prefixItems, the others in items.")
    if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
        refuse("enum is no list of values", at)


def _check_numbers(schema: Schema, at: str) -> None:
    for word in COUNTS:
        value = schema.get(word, 0)
        if not _number(value) or value != int(value) or not 0 <= value <= MAX_COUNT:
            refuse(f"{word} is {value!r}, not a number from 0 to {MAX_COUNT}", at)
        if word in schema:
            schema[word] = int(value)
    for word in BOUNDS:
        value = schema.get(word, 0)
        if not _number(value) or abs(value) > MAX_EXACT:
            refuse(f"{word} is {value!r}, no number between -2^53 and 2^53", at)
    if "multipleOf" in schema:
        _check_step(schema, at)


def _check_step(schema: Schema, at: str) -> None:
    """multipleOf: readers divide in binary, so its steps must be exact there, and its values."""
    step = schema["multipleOf"]
    parts = Fraction(step) if _number(step) else Fraction(0)
    if not (0 < parts.numerator <= MAX_MULTIPLE and parts.denominator <= MAX_PARTS):
        refuse(
            f"multipleOf is {step!r}",
            at,
            f"Give a number from 1/{MAX_PARTS} to {MAX_MULTIPLE} that is exact in binary, as 0.25.",
        )
    types = schema.get("type", "number")
    if "number" in types:
        most = MAX_EXACT // parts.denominator
        if not any(bound in schema for bound in ("minimum", "exclusiveMinimum")):
            schema["minimum"] = -most
        if not any(bound in schema for bound in ("maximum", "exclusiveMaximum")):
            schema["maximum"] = most


def _check_values(schema: Schema, at: str) -> None:
    """Fixed values: every number in them must be one that the library keeps exactly."""
    for word in ("const", "enum"):
        pending = [schema[word]] if word in schema else []
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                pending += [*value, *value.values()]
            elif isinstance(value, list):
                pending += value
            elif isinstance(value, int | float) and not abs(value) <= MAX_EXACT:
                refuse(f"{word} has the number {value}, beyond 2^53", at)
            elif isinstance(value, str) and not _sayable(value):
                refuse(f"{word} has a control character other than \\b, \\f, \\n, \\r, \\t", at)


def _check_names(schema: Schema, at: str) -> None:
    for name in [*schema.get("required", []), *schema.get("properties", {})]:
        if not _sayable(name):
            refuse(f"the name {name!r} has a control character", at)


def _check_least(schema: Schema, at: str) -> None:
    """minProperties: in an open object a name could come twice and count as two."""
    least = schema.get("minProperties", 0)
    if least <= len(set(schema.get("required", []))):
        schema.pop("minProperties", None)
        return
    if schema.get("additionalProperties", True) is not False or schema.get("patternProperties"):
        refuse(
            f"minProperties {least} with names that are not listed",
            at,
            "List the names in properties and set additionalProperties to false.",
        )


def _translate(schema: Schema, at: str) -> None:
    if "pattern" in schema:
        schema["pattern"] = _pattern(schema["pattern"], "pattern", at)
    names = schema.get("patternProperties", {})
    if not names:
        return
    for name in names:
        _check_name_pattern(name, schema, at)
    translated = {_pattern(n, "patternProperties", at): inner for n, inner in names.items()}
    if len(translated) < len(names):
        refuse("patternProperties has one pattern in two spellings", at)
    schema["patternProperties"] = translated


def _check_name_pattern(name: str, schema: Schema, at: str) -> None:
    """A name that some readers find and others do not must not be legal at all."""
    listed = [*schema.get("properties", {}), *schema.get("required", [])]
    closed = schema.get("additionalProperties") is False and all(map(str.isascii, listed))
    if not closed and not _reads(agreed, name, "patternProperties", at):
        refuse(
            f"patternProperties {name!r} takes characters on which readers differ",
            at,
            "Spell them out, as [0-9] for \\d, or set additionalProperties to false.",
        )


def _pattern(pattern: Any, word: str, at: str) -> str:
    if not isinstance(pattern, str):
        refuse(f"{word} is no text", at)
    return _reads(searched, pattern, word, at)


def _reads(read: Callable[[str], Found], pattern: str, word: str, at: str) -> Found:
    try:
        return read(pattern)
    except PatternError as error:
        refuse(f"{word} {pattern!r}: {error}", at)


def _spell_format(schema: Schema, at: str) -> None:
    """A format that the library takes too widely becomes a pattern beside the others."""
    if "format" not in schema:
        return
    name = schema["format"]
    types = schema.get("type", "string")
    if "string" not in types and isinstance(types, str | list):
        del schema["format"]
        return
    if not isinstance(name, str) or name not in FORMATS:
        refuse(f"format {name!r} is not supported", at, f"Use {', '.join(sorted(FORMATS))}.")
    instead = FORMATS[name]
    if instead is not None:
        del schema["format"]
        schema["allOf"] = [*schema.get("allOf", []), {"pattern": instead}]
    if name == "hostname":
        schema["maxLength"] = min(schema.get("maxLength", MAX_HOSTNAME), MAX_HOSTNAME)


def _open_fixed_choice(schema: Schema, at: str) -> None:
    """oneOf of fixed values that all differ is anyOf, which the library needs to be told."""
    branches = schema.get("oneOf", [])
    values: list[Any] = []
    for branch in branches:
        if not isinstance(branch, dict) or not ("const" in branch or "enum" in branch):
            return
        values += [branch["const"]] if "const" in branch else branch["enum"]
    clash = any(_same(a, b) for n, a in enumerate(values) for b in values[:n])
    if branches and not clash and "anyOf" not in schema and len(values) <= 500:
        schema["anyOf"] = schema.pop("oneOf")


_RULES: tuple[Callable[[Schema, str], None], ...] = (
    _drop_idle, _refuse_unknown, _check_types, _check_shapes, _check_numbers, _check_values,
    _check_names, _check_least, _translate, _spell_format, _open_fixed_choice,
)  # fmt: skip


def _number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _sayable(text: str) -> bool:
    """Whether JSON can say it with the short escapes alone."""
    surrogates = any("\ud800" <= letter < "\ue000" for letter in text)
    return not surrogates and not any(
        letter < " " and letter not in "\b\f\n\r\t" for letter in text
    )


def _same(a: Any, b: Any) -> bool:
    """Equal as JSON: 1 is 1.0, and true is no number."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return (type(a) is type(b) and a == b) or (_number(a) and _number(b) and bool(a == b))
