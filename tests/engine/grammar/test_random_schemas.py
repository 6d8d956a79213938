"""Random answers of random schemas: what is taken is enforced, what is not is a sentence."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from flarechat.engine.grammar import Vocabulary, compile_constraint
from flarechat.errors import GrammarError
from flarechat.protocol import Constraint
from tests.engine.grammar.walks import walk

VALUES = (0, 1, 2, -3, 1.5, "a", "ab", None, True, False, [], [1], ["a"], {"a": 1}, {"b": None})
PATTERNS = ("^a", "b$", "a", "^[ab]+$", "^.{1,2}$", r"^\d+$", "^(a|b)?c*$", "[^a]", r"\w")
NAMES = ("a", "b", "c", "ab")
LETTERS = (b'{}[]",: 01.-abc', b'{}[]",: 0123.abc\\un', b'{}[]",:a1')
LEAVES = ({"type": "integer"}, {"maxLength": 2}, {"type": "null"}, True, {"enum": [1, "a"]}, False)


class Schemas:
    """Draws schemas, their keywords put together without regard to sense."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.keywords = (
            self.kind, self.kind, self.values, self.bound, self.count, self.text, self.items,
            self.names, self.names, self.branches, self.reference,
        )  # fmt: skip

    def whole(self) -> dict[str, Any]:
        return {**self.schema(2), "$defs": {"x": self.schema(1), "y": self.schema(1)}}

    def schema(self, depth: int) -> Any:
        if depth < 0:
            return self.draw.choice(LEAVES)
        made: dict[str, Any] = {}
        for _ in range(self.draw.randint(1, 3)):
            made.update(self.draw.choice(self.keywords)(depth - 1))
        return made

    def kind(self, depth: int) -> dict[str, Any]:
        names = "integer string object object array number boolean null".split()
        count = self.draw.choice((1, 1, 2))
        return {"type": self.draw.sample(sorted(set(names)), count)} if count > 1 else {
            "type": self.draw.choice(names)
        }  # fmt: skip

    def values(self, depth: int) -> dict[str, Any]:
        some = [self.draw.choice(VALUES) for _ in range(self.draw.randint(1, 4))]
        return self.draw.choice(({"enum": some}, {"const": some[0]}))

    def bound(self, depth: int) -> dict[str, Any]:
        words = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        return {self.draw.choice(words): self.draw.choice((0, 1, 2, -2, 0.5, 2.5, 10))}

    def count(self, depth: int) -> dict[str, Any]:
        word = self.draw.choice(("Length", "Items", "Properties"))
        return {self.draw.choice(("min", "max")) + word: self.draw.randint(0, 2)}

    def text(self, depth: int) -> dict[str, Any]:
        return self.draw.choice((
            {"pattern": self.draw.choice(PATTERNS)},
            {"format": self.draw.choice(("date", "ipv4", "uuid"))},
            {"multipleOf": self.draw.choice((2, 3, 0.5))},
        ))  # fmt: skip

    def items(self, depth: int) -> dict[str, Any]:
        first = [self.schema(depth) for _ in range(self.draw.randint(1, 2))]
        return self.draw.choice(({"items": first[0]}, {"prefixItems": first}))

    def names(self, depth: int) -> dict[str, Any]:
        some = self.draw.sample(NAMES, self.draw.randint(1, 3))
        return self.draw.choice((
            {"properties": {name: self.schema(depth) for name in some}},
            {"required": some[:2]},
            {"additionalProperties": self.draw.choice((False, self.schema(depth)))},
            {"patternProperties": {self.draw.choice(PATTERNS): self.schema(depth)}},
        ))  # fmt: skip

    def branches(self, depth: int) -> dict[str, Any]:
        some = [self.schema(depth) for _ in range(self.draw.randint(1, 3))]
        return {self.draw.choice(("allOf", "anyOf", "oneOf")): some}

    def reference(self, depth: int) -> dict[str, Any]:
        return {"$ref": self.draw.choice(("#/$defs/x", "#/$defs/y"))}


@pytest.mark.parametrize("seed", range(4))
def test_no_schema_that_is_taken_lets_a_wrong_answer_through(
    seed: int, vocabulary: Vocabulary
) -> None:
    schemas, answered = Schemas(seed), 0
    for _ in range(200):
        schema = schemas.whole()
        constraint = Constraint(kind="json-schema", text=json.dumps(schema))
        try:
            grammar = compile_constraint(constraint, vocabulary)
        except GrammarError as refusal:
            assert "\n" not in refusal.message
            continue
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        judge = jsonschema.Draft202012Validator(schema, format_checker=checker)
        for letters in LETTERS:
            tokens = walk(grammar.matcher(), vocabulary, schemas.draw, letters, limit=25)
            answer = "null" if tokens is None else vocabulary.tokenizer.decode(tokens)
            assert tokens is None or judge.is_valid(json.loads(answer)), (answer, schema)
            answered += tokens is not None

    assert answered > 200
