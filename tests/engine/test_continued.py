"""Answers that were cut off and go on, and prompts made of the very tokens that were said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import pytest

from flarechat.protocol import (
    Delta,
    Finished,
    Message,
    Ready,
    Request,
    Round,
    Sampling,
    Speculation,
    Started,
)
from tests.engine.conftest import Desk

WARM = Sampling(
    temperature=0.9, top_k=40, repetition_penalty=1.2, presence_penalty=0.5,
    frequency_penalty=0.3, seed=11,
)  # fmt: skip
GREEDY = Sampling(temperature=0)
COUNT = 30
Make = Callable[..., Desk]


def tokens_of(rounds: Sequence[Round]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(r.tokens for r in rounds))


def fingerprint(desk: Desk) -> str:
    (ready,) = [e for e in desk.events if isinstance(e, Ready)]
    return ready.model.fingerprint


def started(desk: Desk, request: str) -> Started:
    return [e for e in desk.of(request) if isinstance(e, Started)][-1]


def shown(desk: Desk, request: str) -> str:
    return "".join(e.text for e in desk.of(request) if isinstance(e, Delta))


def said(text: str, tokens: Sequence[int], model: str) -> Message:
    return Message(role="assistant", content=text, tokens=tuple(tokens), model=model)


def asked(name: str, *messages: Message, **fields: object) -> Request:
    user = Message(role="user", content="tell a tale, the hello one")
    fields = {"sampling": WARM, "max_tokens": COUNT, **fields}
    return Request(id=name, messages=(user, *messages), **fields)  # type: ignore[arg-type]


def cut(desk: Desk, length: int, **fields: object) -> Message:
    """An answer that its budget cut off."""
    request = asked(f"cut{length}", max_tokens=length, **fields)
    finished, rounds = desk.answer(request)
    return said(finished.text, tokens_of(rounds), fingerprint(desk))


@pytest.mark.parametrize("sampling", [WARM, GREEDY])
@pytest.mark.parametrize("fresh", [True, False])
def test_an_answer_that_goes_on_says_what_it_would_have_said(
    desk: Make, sampling: Sampling, fresh: bool
) -> None:
    """By match: same seed, same places, and what was said counts as said for the penalties."""
    made = desk()
    whole, rounds = made.answer(asked("whole", sampling=sampling))
    for length in (1, 7, 8, 16, 29):
        begun = cut(made, length, sampling=sampling)
        other = desk() if fresh else made
        request = asked(f"on{length}", begun, sampling=sampling, max_tokens=COUNT - length)
        finished, more = other.answer(request)
        start = started(other, request.id)

        assert tokens_of(rounds) == (*begun.tokens, *tokens_of(more))
        assert (whole.text, "length") == (finished.text, finished.reason)
        assert begun.tokens == start.continued
        assert whole.text == begun.content[: start.said] + shown(other, request.id)
        assert COUNT - length == finished.usage.completion_tokens
        assert (start.restored_tokens == 0) == fresh


def test_going_on_twice_is_going_on(desk: Make) -> None:
    made, begun = desk(), None
    whole, rounds = made.answer(asked("whole"))
    for step in range(3):
        finished, more = made.answer(asked(f"s{step}", *([begun] if begun else []), max_tokens=10))
        before = begun.tokens if begun else ()
        begun = said(finished.text, (*before, *tokens_of(more)), fingerprint(made))

    assert begun is not None
    assert tokens_of(rounds) == begun.tokens
    assert whole.text == begun.content


def test_what_was_cancelled_goes_on_as_if_it_had_not_been(desk: Make) -> None:
    made = desk()
    whole, rounds = made.answer(asked("whole"))
    made.engine.submit(asked("part"))
    while len(made.rounds("part")) < 5:
        made.engine.step()
    made.engine.cancel("part")
    part = tokens_of(made.rounds("part"))
    begun = said(made.finished("part").text, part, fingerprint(made))
    finished, more = made.answer(asked("on", begun, max_tokens=COUNT - len(part)))

    assert "cancelled" == made.finished("part").reason
    assert tokens_of(rounds) == (*part, *tokens_of(more))
    assert whole.text == finished.text


def test_a_stop_string_is_found_across_the_cut(desk: Make) -> None:
    made = desk()
    _, rounds = made.answer(asked("whole"))
    pieces = made.engine.language.tokenizer.decode(tokens_of(rounds))
    stop = pieces[9:12]
    assert pieces.index(stop) == 9
    ended, _ = made.answer(asked("ended", stop=(stop,)))
    held = cut(made, 10, stop=(stop,))
    assert held.content.endswith(stop[:1])
    finished, _ = made.answer(asked("on", held, stop=(stop,)))
    start = started(made, "on")

    assert (ended.text, "stop", stop) == (finished.text, finished.reason, finished.stop)
    assert finished.text == held.content[: start.said] + shown(made, "on")


def test_a_stop_string_that_was_said_before_it_was_one_ends_nothing(desk: Make) -> None:
    made = desk()
    whole, _ = made.answer(asked("whole"))
    begun = cut(made, 20)
    stop = begun.content[3:6]
    assert 1 == whole.text.count(stop)
    finished, _ = made.answer(asked("on", begun, stop=(stop,), max_tokens=COUNT - 20))

    assert (whole.text, "length") == (finished.text, finished.reason)


def test_an_answer_of_another_model_goes_on_by_its_text(desk: Make) -> None:
    made = desk()
    begun = said("hello in the", (265, 105, 110), "another")
    finished, rounds = made.answer(asked("on", begun))
    tokenizer = made.engine.language.tokenizer

    assert tuple(tokenizer.encode_plain("hello in the")) == started(made, "on").continued
    assert finished.text.startswith("hello in the")
    assert finished.text == "hello in the" + shown(made, "on")
    assert COUNT == len(tokens_of(rounds))


def test_an_answer_that_no_longer_fits_is_refused_in_a_sentence(desk: Make) -> None:
    made = desk(context=48)
    begun = cut(made, 500)
    finished, _ = made.answer(asked("on", begun))

    assert finished.error is not None
    assert "the context holds 47" in finished.error.message


@pytest.mark.parametrize("sampling", [WARM, GREEDY])
def test_the_next_prompt_begins_with_the_prompt_and_the_answer_before(
    desk: Make, sampling: Sampling
) -> None:
    """A random model says tokens that no tokenizer would make of its text."""
    made = desk()
    encode, tokenizer = made.engine.language.encode_chat, made.engine.language.tokenizer
    messages: tuple[Message, ...] = (Message(role="user", content="hello"),)
    recoded, before = 0, [0]
    for turn in range(3):
        prompt = encode(messages, True)
        finished, rounds = made.answer(
            Request(id=f"t{turn}", messages=messages, sampling=sampling, max_tokens=12)
        )
        answer, tokens = (
            said(finished.text, tokens_of(rounds), fingerprint(made)),
            tokens_of(rounds),
        )
        recoded += tokenizer.encode_plain(finished.text) != list(tokens)
        messages = (*messages, answer, Message(role="user", content="in the"))
        following = encode(messages, True)

        assert [*prompt, *tokens] == following[: len(prompt) + len(tokens)]
        assert len(before) - 1 <= started(made, f"t{turn}").restored_tokens < len(prompt)
        before = [*prompt, *tokens]
    assert recoded


def test_continuing_with_drafts_is_counted_as_generated_only_once(desk: Make) -> None:
    """The budget is of new tokens, at every width."""
    made = desk()
    begun = cut(made, 12, sampling=GREEDY)
    for drafts in (0, 3, 7):
        law = Speculation(draft_tokens=drafts, adaptive=False)
        request = asked(f"d{drafts}", begun, sampling=GREEDY, max_tokens=9, speculation=law)
        finished, rounds = made.answer(request)

        assert 9 == len(tokens_of(rounds)) == finished.usage.completion_tokens
        assert "length" == finished.reason


def test_a_finish_that_was_never_played_says_nothing(desk: Make) -> None:
    made = desk()
    made.engine.submit(asked("one"))
    made.engine.submit(asked("two"))
    made.engine.cancel("two")

    assert Finished.unplayed("two", "cancelled") == made.finished("two")
