"""A constraint that most tests of constrained answers ask for, and what its answers are."""

from __future__ import annotations

import json
from collections.abc import Sequence

from flarechat.protocol import Constraint, Round

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["hello", "the inn"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 40},
    },
    "required": ["name", "kind", "count"],
    "additionalProperties": False,
}
OBJECT = Constraint(kind="json-schema", text=json.dumps(SCHEMA))


def tokens_of(rounds: Sequence[Round]) -> list[int]:
    return [token for r in rounds for token in r.tokens]


def require_object(text: str) -> None:
    said = json.loads(text)
    assert list(said) == ["name", "kind", "count"]
    assert len(said["name"]) <= 6 and said["kind"] in ("hello", "the inn")
    assert isinstance(said["count"], int) and 0 <= said["count"] <= 40
