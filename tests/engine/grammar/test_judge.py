"""Where a constraint begins and where an answer ends: rounds of tokens, judged."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from llguidance import LLMatcher

from flarechat.engine.grammar import Grammar, GrammarJudge, Vocabulary, compile_constraint
from flarechat.engine.grammar.matcher import Matcher
from flarechat.engine.judge import Verdict
from flarechat.engine.text.tokenizer import Tokenizer, added_token, bpe
from flarechat.errors import ConstraintError, GrammarError
from flarechat.protocol import Constraint
from tests.engine.grammar.conftest import EOS
from tests.engine.grammar.walks import bits
from tests.models import tiny

TOKEN_BYTES = Tokenizer.token_bytes
OPEN, CLOSE = "<think>", "</think>"


@pytest.fixture(scope="module")
def thinker() -> Vocabulary:
    """The tiny vocabulary with the marks of thinking, and a token that closes it and goes on."""
    words = [*tiny.vocabulary(), OPEN, CLOSE, ">{", ">x"]
    table = {word: number for number, word in enumerate(words)}
    added = [added_token(n, text, special=True) for n, text in enumerate(tiny.SPECIALS)]
    added += [added_token(table[text], text, special=False) for text in (OPEN, CLOSE)]
    merges = [*(merge.split(" ") for merge in tiny.MERGES), [">", "{"], [">", "x"]]
    tokenizer = Tokenizer(json.dumps(bpe(table, merges, added, "smollm")))
    return Vocabulary(tokenizer, tokenizer.vocabulary, (EOS,))


def grammar_of(vocabulary: Vocabulary, kind: str = "json-schema", text: str = "{}") -> Grammar:
    return compile_constraint(Constraint(kind=kind, text=text), vocabulary)


OBJECT = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], ' \
    '"additionalProperties": false}'  # fmt: skip


def judge_of(
    vocabulary: Vocabulary, prompt: Sequence[int] = (), text: str = OBJECT
) -> GrammarJudge:
    return GrammarJudge(grammar_of(vocabulary, text=text), prompt)


def said(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.tokenizer.encode_plain(text)


def test_a_round_stands_up_to_its_first_illegal_token_and_the_legal_ones_are_told(
    vocabulary: Vocabulary,
) -> None:
    judge = judge_of(vocabulary)
    tokens = said(vocabulary, '{"a": x1}')
    verdict = judge.judge(tokens)

    assert 6 == verdict.kept and not verdict.ended
    assert set(said(vocabulary, "0123456789-")) == set(bits(verdict.legal or b""))
    assert verdict == judge.judge(tokens)
    assert not judge.kept([*tokens[:6], *said(vocabulary, "7")])
    assert Verdict(1, ended=True) == judge.judge(said(vocabulary, "}"))


def test_an_answer_ends_with_the_token_that_finishes_it(vocabulary: Vocabulary) -> None:
    judge = judge_of(vocabulary)
    tokens = said(vocabulary, '{"a": 1}')

    assert Verdict(len(tokens), ended=True) == judge.judge([*tokens, EOS, *tokens])
    assert judge.kept(tokens)
    assert ("whole", True, "") == (judge.state, judge.result().satisfied, judge.result().error)


def test_an_end_is_legal_only_where_the_text_is_whole(vocabulary: Vocabulary) -> None:
    judge = judge_of(vocabulary, text='{"type": "integer"}')

    assert Verdict(0, judge.judge([EOS]).legal) == judge.judge([EOS])
    judge.kept(said(vocabulary, "-"))
    assert 0 == judge.judge([EOS]).kept
    judge.kept(said(vocabulary, "1"))
    assert Verdict(1, ended=True) == judge.judge([EOS])
    assert judge.kept([EOS])


def test_rounds_of_any_size_are_judged_alike(vocabulary: Vocabulary) -> None:
    tokens = said(vocabulary, '{"a": 1023}')
    for size in range(1, len(tokens) + 1):
        judge = judge_of(vocabulary)
        ends = [
            (judge.judge(part).ended, judge.kept(part))
            for part in (tokens[at : at + size] for at in range(0, len(tokens), size))
        ]

        assert [(False, False)] * (len(ends) - 1) + [(True, True)] == ends


def test_what_was_kept_otherwise_than_judged_counts(vocabulary: Vocabulary) -> None:
    judge = judge_of(vocabulary)
    judge.judge(said(vocabulary, '{"a": 12'))
    judge.kept(said(vocabulary, '{"a": 1'))

    assert Verdict(1, ended=True) == judge.judge(said(vocabulary, "}"))


def test_a_constraint_begins_behind_thinking_in_the_middle_of_a_round(thinker: Vocabulary) -> None:
    judge = judge_of(thinker, said(thinker, OPEN))
    tokens = said(thinker, f'x{{"b{CLOSE}\n\n{{"a": 1}}')

    assert ("thinking", [], False) == (judge.state, judge.forced(7), judge.active)
    assert Verdict(len(tokens), ended=True) == judge.judge([*tokens, EOS])
    cut = said(thinker, f"x{CLOSE}\n\nx")
    assert len(cut) - 1 == judge.judge(cut).kept
    assert judge.kept(tokens) and judge.result().satisfied


def test_the_closing_mark_may_be_spelled_and_lie_in_several_rounds(thinker: Vocabulary) -> None:
    letters = [thinker.tokenizer.id_of(letter) or 0 for letter in "ab</think></think>"]
    for cut in range(2, 11):
        judge = judge_of(thinker, said(thinker, OPEN))
        first, second = letters[:cut], letters[cut:10]

        assert not judge.kept(first) and not judge.kept(second) and judge.active
        assert Verdict(0, judge.judge(letters[10:]).legal) == judge.judge(letters[10:])


def test_a_token_that_closes_thinking_is_legal_if_its_rest_is(thinker: Vocabulary) -> None:
    judge = judge_of(thinker, said(thinker, OPEN))
    judge.kept([thinker.tokenizer.id_of(letter) or 0 for letter in "</think"])
    good, bad, plain = (thinker.tokenizer.id_of(word) or 0 for word in (">{", ">x", ">"))
    verdict = judge.judge([bad])
    legal = bits(verdict.legal or b"")

    assert 0 == verdict.kept
    assert {bad, EOS} == set(range(thinker.columns)).difference(legal)
    assert Verdict(1) == judge.judge([plain]) == judge.judge([good])
    judge.kept([good])
    assert judge.active and judge.forced(1) == said(thinker, '"')


def test_an_end_while_thinking_is_not_legal(thinker: Vocabulary) -> None:
    judge = judge_of(thinker, said(thinker, OPEN))
    verdict = judge.judge([*said(thinker, "hm"), EOS])

    assert 2 == verdict.kept
    assert EOS not in bits(verdict.legal or b"") and 3 < len(bits(verdict.legal or b""))
    judge.kept(said(thinker, "hm"))
    assert "thinking" in judge.result().error and not judge.result().satisfied


def test_thinking_may_be_opened_by_the_first_token_only_and_only_if_it_is_asked_for(
    thinker: Vocabulary,
) -> None:
    opening = thinker.tokenizer.id_of(OPEN) or 0
    judge = judge_of(thinker)

    assert opening in bits(judge.judge([5]).legal or b"")
    assert [] == judge.forced(7)
    assert Verdict(3) == judge.judge([opening, *said(thinker, "hm")])
    judge.kept(said(thinker, "{"))
    assert opening not in bits(judge.judge([opening]).legal or b"")
    quiet = GrammarJudge(grammar_of(thinker, text=OBJECT), (), thinking=False)
    assert opening not in bits(quiet.judge([opening]).legal or b"")
    assert said(thinker, '{"a')[:2] == quiet.forced(2)


def test_an_answer_that_goes_on_is_heard_first(vocabulary: Vocabulary) -> None:
    judge = judge_of(vocabulary)
    judge.begin([*said(vocabulary, "{"), *said(vocabulary, '"a": 1')])

    assert Verdict(1, ended=True) == judge.judge(said(vocabulary, "}"))
    assert not judge.ended
    done = judge_of(vocabulary)
    done.begin([*said(vocabulary, '{"a": 1}'), EOS])
    assert done.ended
    with pytest.raises(GrammarError, match="does not satisfy"):
        judge_of(vocabulary).begin(said(vocabulary, "[1"))


def test_an_answer_that_was_cut_off_inside_is_not_satisfied(vocabulary: Vocabulary) -> None:
    judge = judge_of(vocabulary)
    judge.kept(said(vocabulary, '{"a": 1'))
    result = judge.result(forced=5, removed=2, redrawn=1)

    assert (False, "json-schema", 5, 2, 1) == (
        result.satisfied, result.kind, result.forced, result.removed, result.redrawn,
    )  # fmt: skip
    assert "before the constraint was satisfied" in result.error


def test_where_a_constraint_cannot_be_followed_what_was_legal_stands(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, tokens = judge_of(vocabulary), said(vocabulary, '{"a": 1}')
    advance = Matcher.advance

    def fault(self: Matcher, behind: Sequence[int]) -> None:
        advance(self, behind)
        if [*behind] == tokens[5:6]:
            raise ConstraintError("The constraint cannot be followed any further: too many states.")

    monkeypatch.setattr(Matcher, "advance", fault)
    verdict = judge.judge(tokens)

    assert (5, None, False) == (verdict.kept, verdict.legal, verdict.ended)
    assert "too many states" in verdict.fault
    assert not judge.kept(tokens[:5]) and "goes on" == judge.state


def test_a_matcher_that_failed_has_not_stopped(vocabulary: Vocabulary) -> None:
    """The library says of both that they have stopped."""
    names = {f"name{number}": {"type": "string"} for number in range(700)}
    body = {"json_schema": {"type": "object", "properties": names, "additionalProperties": False}}
    inner = LLMatcher(vocabulary.library, json.dumps({"grammars": [body]}), log_level=0)
    matcher = Matcher(inner, vocabulary.columns)
    with pytest.raises(ConstraintError, match="cannot be followed"):
        matcher.advance(said(vocabulary, "{"))

    assert not matcher.stopped and not matcher.accepting


def test_drafts_that_the_constraint_cannot_be_followed_along_are_no_fault_of_the_answer(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, tokens = judge_of(vocabulary), said(vocabulary, '{"a": 1}')
    too_large = said(vocabulary, "9")[0]
    allows = Matcher.allows

    def fault(self: Matcher, token: int) -> bool:
        if token == too_large:
            raise ConstraintError("The constraint cannot be followed any further: too many states.")
        return allows(self, token)

    monkeypatch.setattr(Matcher, "allows", fault)
    assert 6 == judge.legal([*tokens[:6], too_large, *tokens[6:]])
    assert len(tokens) == judge.legal([*tokens, EOS])
    assert Verdict(len(tokens), ended=True) == judge.judge(tokens)
    assert judge.kept(tokens)
    assert judge.result().satisfied and "" == judge.result().error


def test_behind_thinking_nothing_is_left_to_be_made(
    thinker: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a grammar is compiled in the middle of an answer, nor is every token looked at."""
    judge = judge_of(thinker)
    looked: list[int] = []

    def look(self: Tokenizer, token: int) -> bytes:
        looked.append(token)
        return TOKEN_BYTES(self, token)

    monkeypatch.setattr("flarechat.engine.grammar.compiled._library_matcher", None)
    monkeypatch.setattr(Tokenizer, "token_bytes", look)
    tokens = [thinker.tokenizer.id_of(OPEN) or 0, *said(thinker, "hm")]
    verdict = judge.judge([*tokens, EOS])

    assert len(looked) < 40
    assert 3 == verdict.kept and not judge.kept(tokens) and "thinking" == judge.state
    assert bits(verdict.legal or b"") == [
        token for token in range(thinker.columns) if judge.legal([token])
    ]
