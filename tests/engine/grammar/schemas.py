"""Fifty constraints and who judges their answers; and schemas that are refused, with the reason.

The judges are the jsonschema package, with its checks of formats, and Python's `re`. They share no
code with what is tested.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import jsonschema

from flarechat.protocol import Constraint

INTEGER: dict[str, Any] = {"type": "integer"}
TEXT: dict[str, Any] = {"type": "string"}
SHORT = {"type": "string", "maxLength": 8}
NULL = {"type": "null"}


@dataclass(frozen=True)
class Case:
    """A constraint by the name `name`."""

    name: str
    constraint: Constraint

    def holds(self, answer: str) -> bool:
        """Whether the answer satisfies it, by a judge of its own."""
        text = self.constraint.text
        if self.constraint.kind == "regex":
            return re.fullmatch(text, answer) is not None
        schema = json.loads(text)
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        judge = jsonschema.Draft202012Validator(schema, format_checker=checker)
        return judge.is_valid(json.loads(answer))


def listed(*names: str, **properties: Any) -> dict[str, Any]:
    """An object of these properties and no others; `names` are required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(names),
        "additionalProperties": False,
    }


SCHEMAS: dict[str, Any] = {
    "person": listed("name", "age", name=SHORT, age={"type": "integer", "minimum": 0}),
    "optional fields": listed("a", a=INTEGER, b=SHORT, c={"type": "boolean"}),
    "all optional": listed(a=INTEGER, b=NULL, c=INTEGER),
    "nested": listed("to", to=listed("street", "zip", street=SHORT, zip={"pattern": "^[0-9]{5}$"})),
    "deep": listed("a", a=listed("b", b=listed("c", c=listed("d", d={"const": [1, {"x": None}]})))),
    "enum of texts": {"enum": ["red", "green", "blue"]},
    "enum of all types": {"enum": [1, "1", None, True, [1, "x"], {"a": 1.5}, -2.25]},
    "enum within type": {"type": "integer", "enum": [1, "a", 1.5, 2.0]},
    "const": {"const": {"b": [1, None, "q\"\\/\n"], "a": {"y": [], "x": {}}}},
    "integer bounds": {"type": "integer", "minimum": -12, "maximum": 117},
    "integer between fractions": {"type": "integer", "exclusiveMinimum": -3.5, "maximum": 2.5},
    "number bounds": {"type": "number", "minimum": -0.05, "maximum": 0.25},
    "number beyond zero": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000},
    "both bounds": {"type": "integer", "minimum": 2, "exclusiveMinimum": 2, "exclusiveMaximum": 5},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": -20, "maximum": 100},
    "multiples of a quarter": {"type": "number", "multipleOf": 0.25},
    "type list": {"type": ["integer", "string", "null"], "maximum": 9, "maxLength": 2},
    "no type": {"minimum": 3, "maxLength": 2, "maxItems": 1, "maxProperties": 1},
    "lengths in characters": {"type": "string", "minLength": 2, "maxLength": 3},
    "pattern": {"type": "string", "pattern": "^(ab|cd)+-[0-9]{2}$"},
    "pattern inside": {"type": "string", "pattern": "b", "maxLength": 4},
    "pattern with classes": {"type": "string", "pattern": r"^\d\w\s\D\W\S.$"},
    "pattern negated": {"type": "string", "pattern": r"^[^\d\w\s][^a-c&+b][\[\]]$"},
    "pattern and length": {"type": "string", "pattern": "^a+$", "minLength": 2, "maxLength": 3},
    "unicode": listed("naïve", naïve={"pattern": "^[é-ü]{2}$"}, 日本={"const": "😀 ok"}),
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "date in a year": {"type": "string", "format": "date", "pattern": "^20(00|23)-02"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "uuid or null": {"type": ["string", "null"], "format": "uuid"},
    "array": {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [INTEGER, SHORT], "items": False, "minItems": 1},
    "tuple and more": {"type": "array", "prefixItems": [INTEGER], "items": NULL, "minItems": 2},
    "union": {"anyOf": [INTEGER, {"type": "string", "maxLength": 2}, listed("x", x=NULL)]},
    "union beside": {
        **listed("kind", kind={"enum": ["a", "b"]}, size=INTEGER),
        "anyOf": [{"properties": {"kind": {"const": "a"}}}, {"required": ["size"]}],
    },
    "one of two": {
        "oneOf": [listed("k", k={"const": "a"}, n=INTEGER), listed("k", k={"const": "b"})]
    },
    "one of fixed": {"oneOf": [{"const": 1, "title": "one"}, {"const": "1"}, {"enum": [2, None]}]},
    "merged": {
        "allOf": [
            {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
            {"properties": {"a": {"minimum": 3}, "b": SHORT}, "required": ["b"]},
        ],
        "maxProperties": 2,
    },
    "merged and closed": {
        "allOf": [listed(a={"type": ["integer", "null"]}), {"properties": {"a": {"minimum": 2}}}]
    },
    "open": {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": NULL},
    "open by pattern": {
        "type": "object",
        "patternProperties": {"^a": INTEGER},
        "additionalProperties": NULL,
    },
    "closed by pattern": {
        "type": "object",
        "patternProperties": {r"^[ab]\d?$": INTEGER},
        "additionalProperties": False,
    },
    "recursive": {
        "$ref": "#/$defs/a%20node~0%25é",
        "$defs": {
            "a node~%é": listed("v", v=INTEGER, next={"$ref": "#/$defs/a%20node~0%25é"}),
        },
    },
    "by anchor": {"$ref": "#leaf", "$defs": {"x": {"$anchor": "leaf", "enum": [1, 2]}}},
    "beside a reference": {"$ref": "#/$defs/n", "maximum": 5, "$defs": {"n": {"minimum": 3}}},
    "anything": True,
}  # fmt: skip

REGEXES = {
    "digits": "[0-9]{2,4}",
    "alternatives": "^(yes|no|maybe [a-c])$",
    "words": r"(\w+ ){1,3}\w+[.!?]",
    "other scripts": "[α-ω]{2}é?(日本)*",
}

CASES = (
    *(Case(name, Constraint(kind="json-schema", text=json.dumps(schema)))
      for name, schema in SCHEMAS.items()),
    *(Case(name, Constraint(kind="regex", text=text)) for name, text in REGEXES.items()),
)  # fmt: skip

# A schema, the keyword (or the word) that the sentence names, and the place.
REFUSED: tuple[tuple[Any, str, str], ...] = (
    (listed("a", a={"not": {"const": 1}}), "not", "/properties/a"),
    ({"anyOf": [NULL, {"if": {"minimum": 1}, "then": False}]}, "if", "/anyOf/1"),
    ({"allOf": [{"if": {"minimum": 1}, "else": False}]}, "if", "/allOf/0"),
    ({"items": {"contains": INTEGER}}, "contains", "/items"),
    ({"contains": INTEGER, "minContains": 2}, "contains", "root"),
    ({"prefixItems": [{"uniqueItems": True}]}, "uniqueItems", "/prefixItems/0"),
    ({"propertyNames": {"maxLength": 3}}, "propertyNames", "root"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired", "root"),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas", "root"),
    ({"dependencies": {"a": ["b"]}}, "dependencies", "root"),
    ({"unevaluatedProperties": False}, "unevaluatedProperties", "root"),
    ({"unevaluatedItems": False}, "unevaluatedItems", "root"),
    ({"$defs": {"x": {"not": {}}}, "$ref": "#/$defs/x"}, "not", "/$defs/x"),
    ({"$dynamicRef": "#x"}, "$dynamicRef", "root"),
    ({"$recursiveRef": "#"}, "$recursiveRef", "root"),
    ({"x-guidance": {"lenient": True}, "not": {"const": 1}}, "not", "root"),
    ({"items": [INTEGER]}, "items", "root"),
    ({"additionalItems": False}, "additionalItems", "root"),
    ({"type": "strin"}, "type", "root"),
    ({"type": []}, "type", "root"),
    ({"properties": {"a/b": {"format": "color"}}}, "format", "/properties/a~1b"),
    ({"format": "regex"}, "format", "root"),
    ({"oneOf": [INTEGER, {"type": "number"}]}, "oneOf", "root"),
    (listed(a={"oneOf": [{"minimum": 1}, {"maximum": 3}]}), "oneOf", "/properties/a"),
    ({"minProperties": 1, "type": "object"}, "minProperties", "root"),
    ({"maxProperties": 1, "properties": {"a": {}, "b": {}}}, "maxProperties", "root"),
    ({"patternProperties": {"^a": INTEGER, "b$": TEXT}}, "patternProperty", "root"),
    ({"patternProperties": {r"\w": INTEGER}}, "patternProperties", "root"),
    ({"items": {"pattern": "(?=a)"}}, "pattern", "/items"),
    ({"pattern": r"(a)\1"}, "pattern", "root"),
    ({"pattern": r"\bword"}, "pattern", "root"),
    ({"pattern": "(?i)a"}, "pattern", "root"),
    ({"pattern": "a^b"}, "regex", "root"),
    ({"pattern": "[z-a]"}, "range", "root"),
    ({"pattern": 3}, "pattern", "root"),
    ({"minLength": -1}, "minLength", "root"),
    ({"maxItems": "2"}, "maxItems", "root"),
    ({"minimum": 1, "exclusiveMinimum": True}, "exclusiveMinimum", "root"),
    ({"minimum": 10**30}, "minimum", "root"),
    ({"const": 2**53 + 1}, "const", "root"),
    ({"enum": [{"a": [1.5e300]}]}, "enum", "root"),
    ({"multipleOf": 0}, "multipleOf", "root"),
    ({"multipleOf": 0.01}, "multipleOf", "root"),
    ({"multipleOf": 10**9}, "multipleOf", "root"),
    ({"enum": []}, "enum", "root"),
    ({"const": "\u0001"}, "const", "root"),
    ({"required": "a"}, "required", "root"),
    ({"properties": [1]}, "properties", "root"),
    ({"properties": {"a": 1}}, "schema", "/properties/a"),
    ({"$ref": "#/$defs/none"}, "$ref", "root"),
    ({"$ref": "https://example.com/other"}, "$ref", "root"),
    (listed("n", n={"$ref": "#"}), "$ref", "/properties/n"),
    ({"anyOf": [NULL, {"$ref": "#"}]}, "$ref", "/anyOf/1"),
    ({"$schema": "https://example.com/mine"}, "$schema", "root"),
    ({"properties": {"a": {"$id": "x"}}}, "$id", "/properties/a"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum", "root"),
    (listed("a", a=False), "satisfies", "root"),
    (False, "false", "root"),
    (3, "object", "root"),
)  # fmt: skip
