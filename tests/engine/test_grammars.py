"""Which grammars are made, kept and made once more."""

from __future__ import annotations

from collections import deque

import pytest

from flarechat.engine.grammar import Vocabulary
from flarechat.engine.grammars import _KEPT, Grammars, _key
from flarechat.engine.text.callforms import HERMES
from flarechat.errors import GrammarError
from flarechat.protocol import Constraint, Message, Request
from tests.engine.grammar.conftest import vocabulary

__all__ = ["vocabulary"]


def held_to(expression: str, kind: str = "regex") -> Request:
    said = (Message(role="user", content="hello"),)
    constraint = Constraint(kind=kind, text=expression)
    return Request(id=expression, messages=said, constraint=constraint)


def test_grammars_that_requests_wait_for_are_kept_however_many(vocabulary: Vocabulary) -> None:
    waiting = deque(held_to(f"a{number}") for number in range(_KEPT + 3))
    grammars = Grammars(vocabulary, lambda: HERMES, waiting)
    for request in waiting:
        grammars.begin(request)
    made = dict(grammars._made)
    while waiting:
        first = waiting[0]
        for request in waiting:
            grammars.ready(request)
            assert made[_key(request)] is grammars._made[_key(request)]
        grammars.wait([first], 10)
        assert grammars.ready(first)
        waiting.popleft()
        assert grammars.judge(first, (), ()) is not None
    for number in range(_KEPT):
        grammars.begin(held_to(f"b{number}"))

    assert _KEPT == len(grammars._made)


def test_a_grammar_that_failed_is_tried_once_more_after_that_was_told(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = held_to("ab")
    grammars = Grammars(vocabulary, lambda: HERMES, [request])

    def too_slow(*_: object) -> None:
        raise GrammarError("The regular expression takes longer than 10 s to compile.")

    with monkeypatch.context() as patch:
        patch.setattr("flarechat.engine.grammars.compile_constraint", too_slow)
        grammars.begin(request)
        grammars.wait([request], 10)
        assert grammars.ready(request)
        with pytest.raises(GrammarError, match="longer than 10 s"):
            grammars.judge(request, (), ())
    grammars.begin(request)
    grammars.wait([request], 10)

    assert grammars.judge(request, (), ()) is not None
