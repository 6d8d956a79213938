"""Compiles constraints: the text of one, to matchers that follow it.

Owns strictness: what the library would weaken, ignore or not finish becomes one sentence. Nothing
here takes longer than `SECONDS`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from flarechat.engine.grammar.ebnf import lark_of
from flarechat.engine.grammar.matcher import Matcher, first_line
from flarechat.engine.grammar.patterns import PatternError, matched
from flarechat.engine.grammar.pointers import look_up
from flarechat.engine.grammar.schema import PreparedSchema, prepared
from flarechat.engine.grammar.vocabulary import Vocabulary
from flarechat.engine.text.thinking import thinks
from flarechat.errors import GrammarError
from flarechat.protocol import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher

SECONDS = 10.0
MAX_TEXT = 1 << 18
# So many subschemas are compiled alone, to tell where one that is refused lies.
_TRIED = 300
# So many optional properties in a row are always followed; of more it is looked at.
_MANY = 200
_CROWDED = "Current row has"
_WHAT = {"json-schema": "JSON schema", "regex": "regular expression", "grammar": "grammar"}
_BEGINNINGS = {"": "", " ": '" "', "blank": "/[ \\t\\r\\n]{0,4}/"}


class Grammar:
    """A constraint that was compiled for one vocabulary."""

    def __init__(
        self, constraint: Constraint, body: dict[str, Any], vocabulary: Vocabulary
    ) -> None:
        self.constraint, self.vocabulary = constraint, vocabulary
        self._body, self._fresh = body, dict[str, Matcher]()
        self.matcher()
        if thinks(vocabulary.tokenizer):
            self.matcher(behind=True)
            vocabulary.thinkable, vocabulary.closing  # noqa: B018  made here, where no round waits

    def matcher(self, *, behind: bool = False) -> Matcher:
        """A matcher at the beginning of an answer, or `behind` other text, where up to four blanks
        may come first.

        At the beginning of a text, where a tokenizer takes away one blank, that blank comes first.
        """
        strips = self.vocabulary.tokenizer.strips_first_space
        lead = "blank" if behind else " " if strips else ""
        if lead not in self._fresh:
            self._fresh[lead] = self._compiled(lead)
        return self._fresh[lead].copy()

    def _compiled(self, lead: str) -> Matcher:
        grammars = [{"name": "body", **self._body}]
        if lead:
            grammars.insert(0, {"lark_grammar": f"start: {_BEGINNINGS[lead]} @body"})
        inner = _library_matcher(json.dumps({"grammars": grammars}), self.vocabulary)
        fault = _fault(inner)
        if fault:
            raise _refusal(self.constraint.kind, fault)
        return Matcher(inner, self.vocabulary.columns)


def compile_constraint(constraint: Constraint, vocabulary: Vocabulary) -> Grammar:
    """Compile a constraint; a GrammarError says in one sentence why it cannot be enforced whole."""

    def compiled() -> Grammar:
        if constraint.kind == "json-schema":
            return _from_schema(constraint, vocabulary)
        return Grammar(constraint, {"lark_grammar": _lark(constraint)}, vocabulary)

    if len(constraint.text) > MAX_TEXT:
        raise GrammarError(
            f"The {_WHAT[constraint.kind]} is {len(constraint.text):,} characters long; "
            f"{MAX_TEXT:,} are taken.",
            "Give a smaller one.",
        )
    vocabulary.library  # noqa: B018  its time is not the constraint's
    return within(SECONDS, compiled, _WHAT[constraint.kind])


def _from_schema(constraint: Constraint, vocabulary: Vocabulary) -> Grammar:
    schema = prepared(constraint.text)
    for place in schema.places:
        _refuse_crowd(place, schema, vocabulary)
    try:
        return Grammar(constraint, {"json_schema": schema.form()}, vocabulary)
    except GrammarError as error:
        found = _place_of(error.message, schema, vocabulary)
        where = "" if found is None else f" at {found or 'its root'}"
        message = error.message.replace("enforced:", f"enforced{where}:", 1)
        raise GrammarError(message, error.hint) from error


def _place_of(message: str, schema: PreparedSchema, vocabulary: Vocabulary) -> str | None:
    """The deepest subschema that is refused alone with the same words, "" for the whole; None where
    not all were tried."""

    def promise(place: str) -> tuple[bool, int]:
        here = look_up(schema.document, place)
        named = isinstance(here, dict) and any(word in message for word in here)
        return not named, -place.count("/")

    for place in sorted(schema.places, key=promise)[:_TRIED]:
        fault = _fault_at(place, schema, vocabulary)
        if fault and _refusal("json-schema", fault).message == message:
            return place
    return None if len(schema.places) > _TRIED else ""


def _refuse_crowd(place: str, schema: PreparedSchema, vocabulary: Vocabulary) -> None:
    """Refuse properties any of which may come next, where they are too many to be followed."""
    here = look_up(schema.document, place)
    properties = here.get("properties", {}) if isinstance(here, dict) else {}
    if len(properties) <= _MANY:
        return
    needed = set(here.get("required", ()))
    runs = [[*run] for free, run in groupby(properties, lambda name: name not in needed) if free]
    optional = max(runs, key=len, default=[])
    if len(optional) <= _MANY:
        return
    document = json.loads(json.dumps(schema.document))
    alone = look_up(document, place)
    alone["properties"] = {name: properties[name] for name in optional}
    alone.pop("required", None)
    if _CROWDED in _fault_at(place, PreparedSchema(document, ()), vocabulary):
        raise GrammarError(
            f"The JSON schema cannot be enforced at {place or 'its root'}: it has "
            f"{len(optional):,} properties in a row that are not required.",
            "Require some of them, or put them into objects of their own.",
        )


def _fault_at(place: str, schema: PreparedSchema, vocabulary: Vocabulary) -> str:
    """What the library has against what lies at a place of a schema, alone."""
    body = {"grammars": [{"name": "body", "json_schema": schema.form(place)}]}
    return _fault(_library_matcher(json.dumps(body), vocabulary))


def _lark(constraint: Constraint) -> str:
    if constraint.kind == "grammar":
        return lark_of(constraint.text)
    try:
        pattern = matched(constraint.text)
    except PatternError as error:
        raise GrammarError(
            f"The regular expression {constraint.text!r} cannot be enforced: {error}.",
            "Rewrite it.",
        ) from error
    return f"start: /{pattern}/" if pattern else 'start: ""'


def _library_matcher(grammar: str, vocabulary: Vocabulary) -> LLMatcher:
    from llguidance import LLMatcher

    return LLMatcher(vocabulary.library, grammar, log_level=0)


def _fault(inner: LLMatcher) -> str:
    """What the library has against a grammar, asked for its first tokens too, and for those behind
    what is certain at first."""
    if not inner.is_error():
        warnings = inner.get_grammar_warnings()
        if warnings:
            return str(warnings[0])
        inner.compute_bitmask()
    if inner.is_error():
        return str(inner.get_error())
    ahead = inner.deep_copy()
    run = [] if ahead.is_stopped() else ahead.compute_ff_tokens()
    if run and ahead.consume_tokens(run) and not ahead.is_stopped():
        ahead.compute_bitmask()
    return str(ahead.get_error()) if ahead.is_error() else ""


def _refusal(kind: str, fault: str) -> GrammarError:
    said = first_line(fault)
    lines = [line.strip() for line in fault.splitlines()]
    detail = next((line for line in lines if line.startswith("error: ")), "")
    hint = "Rewrite it."
    if "oneOf" in said:
        said = "oneOf has branches that may hold together"
        hint = "Use anyOf, or tell the branches apart by type or by a const that each requires."
    elif "NoExtension" in said:
        said = "no text satisfies it"
    elif _CROWDED in said:
        said = "it has too many alternatives at one place"
    elif "min/maxProperties" in said:
        said = "minProperties or maxProperties with properties that are not all required"
    if detail:
        said = f"{said} ({detail.removeprefix('error: ').rstrip('.')})"
    return GrammarError(f"The {_WHAT[kind]} cannot be enforced: {said}.", hint)


def within(seconds: float, work: Callable[[], Grammar], what: str) -> Grammar:
    """Do the work in a thread; one that takes longer is given up and ends by itself."""
    done: list[Grammar | BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # raised by who waits
            done.append(error)

    worker = threading.Thread(target=run, name="compile", daemon=True)
    worker.start()
    worker.join(seconds)
    if not done:
        raise GrammarError(
            f"The {what} takes longer than {seconds:g} s to compile.", "Give a simpler one."
        )
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]
