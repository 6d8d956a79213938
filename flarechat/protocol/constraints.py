"""Constraints: what an answer's text must satisfy, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from flarechat.errors import SettingsError

CONSTRAINTS = ("json-schema", "regex", "grammar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What an answer's text must satisfy: a JSON schema, a regular expression that the whole text
    matches, or a grammar in Lark's form or GBNF.
    """

    kind: str
    text: str

    def __post_init__(self) -> None:
        if self.kind not in CONSTRAINTS:
            raise SettingsError(
                f"The constraint is of the unknown kind {self.kind!r}.",
                f"Use {', '.join(CONSTRAINTS)}.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintResult:
    """What became of a request's constraint: whether the answer's text satisfies it as it stands,
    the tokens that were forced, the drafts that were removed, the rounds that redrew a token, and
    a sentence where the text does not satisfy it.
    """

    kind: str
    satisfied: bool
    forced: int = 0
    removed: int = 0
    redrawn: int = 0
    error: str = ""
