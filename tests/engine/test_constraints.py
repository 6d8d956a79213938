"""Answers under a constraint, through the engine: always valid, by `match` the same at every width,
however rounds are run, and with states that are those of the tokens that stand."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from flarechat.engine.controller import Choice, Controller
from flarechat.engine.grammar import GrammarJudge, Matcher, compile_constraint
from flarechat.engine.offer import Offer
from flarechat.errors import ConstraintError
from flarechat.protocol import (
    Called,
    Constraint,
    Delta,
    Finished,
    Message,
    Request,
    Round,
    Sampling,
    Speculation,
    Started,
    Tool,
)
from tests.engine.captures import captured
from tests.engine.conftest import Desk
from tests.engine.constrained import OBJECT, require_object, tokens_of
from tests.engine.qwen38.test_end_to_end import fresh_desk
from tests.engine.test_flights import Late, late
from tests.engine.test_schedules import assert_holds
from tests.models import tiny

Make = Callable[..., Desk]
COPY, ADVANCE = Matcher.copy, Matcher.advance
WARM = Sampling(temperature=1.0, seed=11)
LAW = Sampling(temperature=0.9, top_k=40, top_p=0.95, repetition_penalty=1.1, seed=5)
WORDS = r"(hello|the|in|a)( (hello|the|in|a)){6}\."
WORD = Constraint(kind="regex", text=WORDS)


@pytest.fixture
def desk(learned_desk: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Engines that prefill in small chunks."""
    monkeypatch.setattr("flarechat.engine.engine.PREFILL_CHUNK", 5)
    return learned_desk


def fixed(draft_tokens: int, **how: object) -> Speculation:
    return Speculation(draft_tokens=draft_tokens, adaptive=False, **how)  # type: ignore[arg-type]


def require_totals(finished: Finished, rounds: Sequence[Round]) -> None:
    total, result = finished.speculation, finished.constraint
    assert result is not None
    assert total.emitted == total.accepted + total.rounds - total.clipped
    assert total.emitted == finished.usage.completion_tokens == len(tokens_of(rounds))
    assert sum(s.emitted for s in total.by_source.values()) == total.emitted
    assert sum(s.accepted for s in total.by_source.values()) == total.accepted
    assert sum(r.redrawn for r in rounds) == result.redrawn
    assert sum(r.forced for r in rounds) == result.forced
    forced = total.by_source.get("grammar")
    assert (forced.emitted if forced else 0) == result.forced


@pytest.mark.parametrize("kind", [lambda d: d, late, captured], ids=["eager", "late", "captured"])
@pytest.mark.parametrize("sampling", [WARM, LAW, Sampling(temperature=0)], ids=["w", "law", "0"])
def test_match_says_the_same_at_every_width(
    desk: Make, kind: Callable[[Desk], Desk], sampling: Sampling
) -> None:
    made = kind(desk())
    plain, rounds = made.ask(
        "hello", sampling=sampling, constraint=OBJECT, max_tokens=90, speculation=fixed(0)
    )
    require_object(plain.text)
    assert plain.constraint and plain.constraint.satisfied and "stop" == plain.reason
    assert plain.constraint.redrawn > 5
    widths = (7,) if kind is captured else (1, 3, 7)
    for how in (*map(fixed, widths), fixed(7, mtp=False), Speculation()):
        again, wide = made.ask(
            "hello", sampling=sampling, constraint=OBJECT, max_tokens=90, speculation=how
        )
        assert tokens_of(rounds) == tokens_of(wide)
        assert plain.text == again.text
        require_totals(again, wide)
        assert again.constraint and again.constraint.forced > 10
        assert len(wide) < len(rounds)
    if isinstance(made.engine.executor, Late):
        assert all(plan.judged for plan in made.engine.executor.plans)
        assert 1 == made.engine.executor.most
        made.ask("hello", max_tokens=3, logprobs=1)
        assert not made.engine.executor.plans[-1].judged
    assert_holds(made.engine, 0, desk().engine)


@pytest.mark.parametrize("kind", [lambda d: d, late, captured], ids=["eager", "late", "captured"])
@pytest.mark.parametrize("lanes", [2, 4])
def test_lanes_under_a_constraint_and_without_one_play_together(
    desk: Make, kind: Callable[[Desk], Desk], lanes: int
) -> None:
    made, asked = kind(desk(lanes=lanes)), []
    for n in range(lanes):
        fields: dict[str, Any] = {"constraint": (OBJECT, None, WORD, None)[n]}
        fields["sampling"] = replace(LAW, seed=n, temperature=0.5 + n / 4)
        asked.append(made.request("hello the", max_tokens=70, **fields))
        made.engine.submit(asked[-1])
    made.run()

    for request in asked:
        alone = replace(request, id="alone", speculation=Speculation(draft_tokens=0))
        assert desk().answer(alone)[0].text == made.finished(request.id).text
    require_object(made.finished(asked[0].id).text)
    if lanes == 4:
        assert re.fullmatch(WORDS, made.finished(asked[2].id).text)
    for slot in range(lanes):
        assert_holds(made.engine, slot, desk().engine)


def test_by_ratio_every_answer_is_valid_and_copies_are_cut_to_what_is_legal(desk: Make) -> None:
    made, removed, texts = desk(), 0, set()
    for seed in range(12):
        finished, rounds = made.ask(
            "hello", sampling=replace(WARM, seed=seed), constraint=OBJECT, max_tokens=90,
            speculation=Speculation(acceptance="ratio"),
        )  # fmt: skip
        require_object(finished.text)
        require_totals(finished, rounds)
        removed += sum(r.removed for r in rounds)
        texts.add(finished.text)

    assert len(texts) > 6
    assert removed


def test_rounds_without_copies_have_removed_none(
    desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, seen = desk(), list[int]()

    def choose(self: Controller, offers: Sequence[Offer], *_: object, **__: object) -> Choice:
        seen.append(offers[0].removed)
        return Choice(offers[0].learned, "the chain alone", drafting="mtp")

    monkeypatch.setattr(Controller, "choose", choose)
    for seed in range(12):
        finished, rounds = made.ask(
            "hello", sampling=replace(WARM, seed=seed), constraint=OBJECT, max_tokens=90
        )
        assert not any(r.removed for r in rounds)
        assert finished.constraint and 0 == finished.constraint.removed
        if any(seen):
            break

    assert any(seen)


def test_an_answer_that_the_budget_cuts_off_is_told_as_incomplete(desk: Make) -> None:
    made = desk()
    finished, rounds = made.ask("hello", sampling=WARM, constraint=OBJECT, max_tokens=20)

    assert "length" == finished.reason and 20 == len(tokens_of(rounds))
    assert finished.constraint and not finished.constraint.satisfied
    assert "before the constraint was satisfied" in finished.constraint.error
    assert finished.error is None
    assert_holds(made.engine, 0, desk().engine)


@pytest.mark.parametrize("cut", [4, 17, 30])
def test_an_answer_goes_on_under_its_constraint(desk: Make, cut: int) -> None:
    made = desk()
    whole, rounds = made.ask("hello", sampling=WARM, constraint=OBJECT, max_tokens=90)
    begun = Message(
        role="assistant", content=made.engine.language.tokenizer.decode(tokens_of(rounds)[:cut]),
        tokens=tuple(tokens_of(rounds)[:cut]), model=fingerprint(made),
    )  # fmt: skip
    request = made.request("hello", sampling=WARM, constraint=OBJECT, max_tokens=90)
    finished, more = made.answer(replace(request, messages=(*request.messages, begun)))

    assert whole.text == finished.text
    assert tokens_of(rounds)[cut:] == tokens_of(more)
    assert finished.constraint and finished.constraint.satisfied


@pytest.mark.parametrize("constraint", [OBJECT, WORD], ids=["schema", "regex"])
def test_an_answer_that_is_whole_goes_on_with_nothing(desk: Make, constraint: Constraint) -> None:
    made = desk()
    whole, rounds = made.ask("hello", sampling=WARM, constraint=constraint, max_tokens=90)
    begun = Message(
        role="assistant", content=whole.text, tokens=tuple(tokens_of(rounds)),
        model=fingerprint(made),
    )  # fmt: skip
    request = made.request("hello", sampling=WARM, constraint=constraint, max_tokens=90)
    finished, more = made.answer(replace(request, messages=(*request.messages, begun)))

    assert not more and (whole.text, "stop") == (finished.text, finished.reason)
    assert finished.error is None and finished.constraint and finished.constraint.satisfied
    assert not made.engine.busy
    again, rounds_again = made.ask("hello", sampling=WARM, constraint=constraint, max_tokens=90)
    assert tokens_of(rounds) == tokens_of(rounds_again) and whole.text == again.text


def test_an_answer_that_does_not_fit_its_constraint_does_not_go_on(desk: Make) -> None:
    made = desk()
    request = made.request("hello", constraint=OBJECT)
    begun = Message(role="assistant", content='{"other": 1')
    finished, rounds = made.answer(replace(request, messages=(*request.messages, begun)))

    assert not rounds and finished.error and "GrammarError" == finished.error.kind
    assert "does not satisfy" in finished.error.message


def fingerprint(made: Desk) -> str:
    from flarechat.protocol import Ready

    (ready,) = [e for e in made.events if isinstance(e, Ready)]
    return ready.model.fingerprint


def test_a_stop_string_within_what_is_legal_comes_first(desk: Make) -> None:
    made = desk()
    whole, _ = made.ask("hello", sampling=WARM, constraint=WORD, max_tokens=60)
    finished, rounds = made.ask(
        "hello", sampling=WARM, constraint=WORD, max_tokens=60, stop=(whole.text[5:8],)
    )

    assert whole.text.partition(whole.text[5:8])[0] == finished.text
    assert (finished.stop, finished.reason) == (whole.text[5:8], "stop")
    assert finished.constraint and not finished.constraint.satisfied
    assert finished.usage.completion_tokens == len(tokens_of(rounds))
    assert_holds(made.engine, 0, desk().engine)


def test_a_text_that_a_stop_string_was_taken_out_of_is_not_told_as_whole(desk: Make) -> None:
    made = desk()
    finished, _ = made.ask("hello", sampling=WARM, constraint=OBJECT, max_tokens=90, stop=("}",))

    assert ("}", "stop") == (finished.stop, finished.reason) and "}" not in finished.text
    assert finished.constraint and not finished.constraint.satisfied
    assert "stop string '}'" in finished.constraint.error


def test_a_cancelled_answer_leaves_what_it_had_said(desk: Make) -> None:
    made = late(desk())
    request = made.request("hello", sampling=WARM, constraint=OBJECT, max_tokens=90)
    made.engine.submit(request)
    while len(made.rounds(request.id)) < 3:
        made.engine.step()
    made.engine.cancel(request.id)
    finished = made.finished(request.id)

    assert "cancelled" == finished.reason
    assert finished.constraint and not finished.constraint.satisfied
    assert_holds(made.engine, 0, desk().engine)


def test_log_probabilities_are_told_of_redrawn_tokens_too(desk: Make) -> None:
    made = desk()
    finished, rounds = made.ask(
        "hello", sampling=WARM, constraint=OBJECT, max_tokens=90, logprobs=2
    )

    assert any(r.redrawn for r in rounds)
    for r in rounds:
        assert list(r.tokens) == [said.id for said in r.logprobs]
        assert all(said.logprob <= said.top[0].logprob for said in r.logprobs)
    require_object(finished.text)


def test_a_constraint_that_cannot_be_enforced_is_refused_and_nobody_else_waits(
    desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, free = desk(lanes=2), threading.Event()

    def slow(constraint: Constraint, *rest: Any) -> Any:
        free.wait(20)
        return compile_constraint(constraint, *rest)

    monkeypatch.setattr("flarechat.engine.grammars.compile_constraint", slow)
    bad = Constraint(kind="json-schema", text='{"not": {"type": "string"}}')
    held = [made.request("hello", constraint=c) for c in (bad, WORD)]
    gone = made.request("hello", constraint=OBJECT)
    for request in (*held, gone):
        made.engine.submit(request)
    other = made.request("hello", max_tokens=8)
    made.engine.submit(other)
    while not any(isinstance(e, Finished) for e in made.of(other.id)):
        made.engine.step()
    assert "length" == made.finished(other.id).reason and made.engine.busy
    made.engine.cancel(gone.id)
    free.set()
    made.run()
    refused = made.finished(held[0].id)

    assert refused.error and "GrammarError" == refused.error.kind and "not" in refused.error.message
    assert re.fullmatch(WORDS, made.finished(held[1].id).text)
    assert "cancelled" == made.finished(gone.id).reason


def test_a_constraint_and_tools_together_are_refused(roomy: Desk) -> None:
    finished, _ = roomy.ask("hello", constraint=WORD, tools=(Tool(name="clock"),))

    assert finished.error and "GrammarError" == finished.error.kind


@pytest.mark.parametrize("sampling", [WARM, Sampling(temperature=0)], ids=["warm", "0"])
def test_a_constraint_that_grows_too_large_ends_its_answer_alone_and_at_one_place(
    desk: Make, monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    """Wherever in a round the fault falls, and whatever was drafted."""
    made = desk(lanes=2)
    _, rounds = made.ask("hello", sampling=sampling, constraint=OBJECT, max_tokens=90)
    told, tokenizer = tokens_of(rounds), made.engine.language.tokenizer
    for last in (1, 9, 12, 21):
        texts = set()
        fail_behind(monkeypatch, tuple(told[:last]))
        for how in (fixed(0), fixed(7), Speculation()):
            held = made.request(
                "hello", sampling=sampling, constraint=OBJECT, max_tokens=90, speculation=how
            )
            other = made.request("the", max_tokens=12)
            for request in (held, other):
                made.engine.submit(request)
            made.run()
            finished = made.finished(held.id)
            assert "error" == finished.reason and finished.error and finished.constraint
            assert ConstraintError.__name__ == finished.error.kind
            assert "too large" in finished.error.message
            assert (False, finished.error.message) == (
                finished.constraint.satisfied, finished.constraint.error
            )  # fmt: skip
            assert made.finished(other.id).error is None
            texts.add((finished.text, tuple(tokens_of(made.rounds(held.id)))))
        assert {(tokenizer.decode(told[: last - 1]), tuple(told[: last - 1]))} == texts


def fail_behind(monkeypatch: pytest.MonkeyPatch, told: tuple[int, ...]) -> None:
    """Have no matcher followed behind these tokens."""
    said: WeakKeyDictionary[Matcher, tuple[int, ...]] = WeakKeyDictionary()

    def copy(self: Matcher) -> Matcher:
        other = COPY(self)
        said[other] = said.get(self, ())
        return other

    def advance(self: Matcher, tokens: Sequence[int]) -> None:
        ADVANCE(self, tokens)
        said[self] = (*said.get(self, ()), *tokens)
        if said[self] == told:
            raise ConstraintError("The constraint cannot be followed any further: too large.")

    monkeypatch.setattr(Matcher, "copy", copy)
    monkeypatch.setattr(Matcher, "advance", advance)


def test_a_lane_that_cannot_be_staged_ends_its_answer_alone(
    desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = desk(lanes=2)
    alone, _ = made.ask("the", max_tokens=30, sampling=WARM)

    def failing(self: GrammarJudge, limit: int) -> list[int]:
        raise ValueError("the copy cannot be read")

    monkeypatch.setattr(GrammarJudge, "forced", failing)
    requests = [made.request("hello", constraint=OBJECT)]
    requests.append(made.request("the", max_tokens=30, sampling=WARM))
    for request in requests:
        made.engine.submit(request)
    made.run()
    failed, other = (made.finished(request.id) for request in requests)

    assert failed.error and "cannot be read" in failed.error.message
    assert other.error is None and alone.text == other.text
    assert not made.engine.busy


LOOK = Tool(
    name="look", parameters={"type": "object", "properties": {"at": {"enum": ["the inn", "a"]}},
                             "required": ["at"]},
)  # fmt: skip


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """The tiny model with room for definitions of tools."""
    folder: Path = tmp_path_factory.mktemp("roomy")
    made = tiny.write(folder / "roomy.gguf", extra={"llama.context_length": 1024})
    return Desk(made.path, folder / "cache", dtype="float32", lanes=2)


@pytest.mark.parametrize("choice", ["required", "look"])
def test_tools_that_have_to_be_called_are_called(roomy: Desk, choice: str) -> None:
    request = roomy.request(
        "hello", sampling=WARM, tools=(LOOK, Tool(name="clock")), tool_choice=choice,
        max_tokens=400,
    )  # fmt: skip
    finished, rounds = roomy.answer(request)
    called = [e for e in roomy.of(request.id) if isinstance(e, Called)]
    shown = [e.text for e in roomy.of(request.id) if isinstance(e, Delta) and e.channel == "tool"]

    assert called and all(e.call is not None for e in called)
    assert [f"{request.id}-{n}" for n in range(1, len(called) + 1)] == [
        e.call.id for e in called if e.call
    ]
    for e in called:
        assert e.call
        assert e.call.name in (("look",) if choice == "look" else ("look", "clock"))
        if e.call.name == "look":
            assert e.call.arguments["at"] in ("the inn", "a")
        assert e.call.text in "".join(shown)
    assert "" == finished.text and "stop" == finished.reason
    assert finished.constraint and ("tools", True) == (
        finished.constraint.kind, finished.constraint.satisfied
    )  # fmt: skip
    assert any(r.forced for r in rounds)


def test_a_call_that_the_budget_cuts_off_is_told_as_such(roomy: Desk) -> None:
    request = roomy.request(
        "hello", sampling=WARM, tools=(LOOK,), tool_choice="required", max_tokens=20
    )
    finished, _ = roomy.answer(request)
    (called,) = [e for e in roomy.of(request.id) if isinstance(e, Called)]

    assert called.call is None and "cut off" in called.error
    assert "length" == finished.reason
    assert finished.constraint and not finished.constraint.satisfied


def test_tools_that_may_be_called_leave_text_free_and_none_shows_nothing(roomy: Desk) -> None:
    prompts = []
    for choice in ("auto", "none"):
        request = roomy.request(
            "hello", sampling=WARM, tools=(LOOK,), tool_choice=choice, max_tokens=12
        )
        finished, _ = roomy.answer(request)
        (started,) = [e for e in roomy.of(request.id) if isinstance(e, Started)]
        prompts.append(started.prompt_tokens)
        assert finished.constraint is None and finished.error is None
    bare, _ = roomy.ask("hello", sampling=WARM, max_tokens=12)

    assert prompts[0] > 100 > prompts[1] == bare.usage.prompt_tokens


def test_a_recurrent_target_with_its_head_says_the_same_under_a_constraint() -> None:
    texts = []
    for how in (fixed(0), fixed(7), Speculation()):
        made = fresh_desk("bf16")
        request = Request(
            id="r", messages=(Message(role="user", content="abc"),), sampling=LAW,
            constraint=OBJECT, thinking=False, max_tokens=90, speculation=how,
        )  # fmt: skip
        finished, rounds = made.answer(request)
        require_object(finished.text)
        require_totals(finished, rounds)
        assert any(r.redrawn for r in rounds)
        assert finished.usage.context - 1 == len(made.engine.residents.held(0))
        texts.append(tokens_of(rounds))

    assert texts[0] == texts[1] == texts[2]


def test_a_snapshot_behind_an_amended_round_is_of_what_stands() -> None:
    """A recurrence that ran past the stop string comes back from memory as it was at it."""
    used, fresh = fresh_desk("bf16"), fresh_desk("bf16", prefix_cache=0)
    law = {"sampling": LAW, "thinking": False, "speculation": fixed(7)}
    told = used.ask("abc", max_tokens=40, **law)[0].text
    for at in range(2, 30):
        request = used.request("abc", max_tokens=40, stop=(told[at : at + 2],), **law)
        finished, rounds = used.answer(request)
        if rounds[-1].clipped:
            break
    held = [*used.engine.residents.held(0)]
    used.ask("something else", max_tokens=4, **law)
    for made in (used, fresh):
        made.engine.language = replace(made.engine.language, encode_chat=lambda *_: [*held, 70, 71])
    on = replace(request, id="on", stop=())
    (again, more), (alone, others) = used.answer(on), fresh.answer(on)
    (started,) = [e for e in used.of("on") if isinstance(e, Started)]

    assert rounds[-1].clipped and len(held) == finished.usage.context - 1
    assert ("memory", len(held)) == (started.restored_from, started.restored_tokens)
    assert tokens_of(others) == tokens_of(more) and alone.text == again.text


def test_what_was_redrawn_is_all_that_others_copy(desk: Make) -> None:
    made = desk()
    _, rounds = made.ask("hello", sampling=WARM, constraint=OBJECT, max_tokens=90)
    copies = made.engine.drafter.copies  # type: ignore[attr-defined]
    (history,) = [source for source in copies.sources if source.name == "history"]
    said = tokens_of(rounds)
    shown = [history.find(0, said[at : at + 8], 7) for at in range(0, len(said) - 16, 3)]

    for at, copy in zip(range(0, len(said) - 16, 3), shown, strict=True):
        assert copy is not None
        assert list(copy.tokens) == said[at + 8 : at + 8 + len(copy.tokens)]
