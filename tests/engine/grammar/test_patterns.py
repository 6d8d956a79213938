"""Patterns in the library's dialect match nothing that Python's `re` does not find."""

from __future__ import annotations

import functools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.engine.grammar import Vocabulary, compile_constraint
from flarechat.engine.grammar.patterns import PatternError, agreed, matched, searched
from flarechat.protocol import Constraint

PATTERNS = (
    r"^a+$", r"ab", r"^\d{2}-\d$", r"\W", r"[^\W]", r"^[\W]$", r"^[a-c&&b]$", r"^[^a-c&&b]$",
    r"^[[a]$", r"^.$", r"^\s$", r"[^\s]", r"^\S$", r"a|^b$", r"^(a|b)*c?$", r"^a\/\-b$",
    r"^[a\-c]+$", r"^[a-]$", r"^a{2}?$", r"^\D$", r"^[^\d]$", r"^[\d\-_]+$", r"^\u0061\x62$",
    r"^#~&-$", r"[\b]", r"^[é-ü]$", r"a$", r"^(?:a(?:b|c){1,2}|[01])$", r"^\t\n?$",
)  # fmt: skip
ODD = "\u0663\u00e9ß\u2028\u2029\x85\ufeff\x1c\u07d8\u00a0²Ⅷ\U0001f600"


@functools.cache
def legal(vocabulary: Vocabulary, pattern: str) -> object:
    schema = json.dumps({"type": "string", "pattern": pattern})
    return compile_constraint(Constraint(kind="json-schema", text=schema), vocabulary)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_legal_is_what_python_finds(pattern: str, vocabulary: Vocabulary) -> None:
    @settings(max_examples=60, deadline=None, database=None)
    @given(st.text(st.sampled_from("abc012-_&[]#~/ \t\n\b" + ODD), max_size=4))
    def holds(text: str) -> None:
        answer = json.dumps(text, ensure_ascii=False)
        matcher = legal(vocabulary, pattern).matcher()  # type: ignore[attr-defined]
        tokens = vocabulary.encoded(answer.encode())
        taken = matcher.fits(tokens)
        if taken:
            matcher.advance(tokens)
            taken = matcher.stopped
        found = re.search(pattern, text) is not None

        assert found or not taken
        if text.isascii() and text.isprintable() and found:
            assert taken

    holds()


@pytest.mark.parametrize(
    "pattern, why",
    [
        ("(", "not closed"), ("a)", "closes no group"), ("(?=a)", "(?=a"), ("(?i)a", "(?i)"),
        ("(?P<x>a)", "(?P<"), ("\\", "not known"), ("[a", "not closed"), ("[]", "first"),
        ("[^]", "first"), ("a**", "repeats nothing"), ("*", "repeats nothing"), ("a{", "{"),
        (r"\b", r"\b"), (r"\1", r"\1"), (r"\Z", r"\Z"), (r"\k<a>", r"\k"), (r"[a-\d]", "range"),
        (r"\ud800", "U+D800"), (r"\u{110000}", "U+110000"),
    ],
)  # fmt: skip
def test_what_readers_understand_differently_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(PatternError) as error:
        searched(pattern)

    assert why in str(error.value)


def test_readers_agree_on_what_is_spelled_out() -> None:
    assert [True] * 4 == [agreed(text) for text in ("^[0-9]+$", "a|b", ".*", "^S_")]
    assert [False] * 4 == [agreed(text) for text in (r"^\d+$", r"[^\w]", "^.$", r"\S")]


def test_anchors_of_a_whole_text_say_nothing_at_its_ends_and_are_refused_inside() -> None:
    assert "a|(?:b)" == matched("^a$|(b)$")
    for pattern in ("(^a)", "a^b", "a$b|c"):
        with pytest.raises(PatternError, match="stands inside"):
            matched(pattern)
