"""Prompts that another slot has the beginning of: copied, not computed, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from flarechat.engine.residents import Residents
from flarechat.protocol import Request, Sampling, Speculation, Started
from tests.engine.captures import captured
from tests.engine.conftest import Desk
from tests.engine.qwen38.test_end_to_end import fresh_desk
from tests.engine.qwen38.test_restless import tokens_of
from tests.engine.test_flights import late
from tests.engine.test_schedules import assert_holds

Make = Callable[..., Desk]
GREEDY = Sampling(temperature=0)
TEXT = "hello the hello in the hello"


@pytest.fixture
def desk(learned_desk: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Engines that prefill in small chunks."""
    monkeypatch.setattr("flarechat.engine.engine.PREFILL_CHUNK", 5)
    return learned_desk


def counting(made: Desk) -> list[int]:
    """The tokens that each chunk computes from now on."""
    computed: list[int] = []
    prefill = made.engine.executor.prefill

    def counted(lanes: Any, inputs: torch.Tensor, plan: Any) -> None:
        computed.append(inputs.shape[1])
        prefill(lanes, inputs, plan)

    made.engine.executor.prefill = counted  # type: ignore[method-assign]
    return computed


def fan(made: Desk, count: int, **fields: object) -> list[Request]:
    """So many requests with one prompt and different seeds, answered together."""
    asked = []
    for seed in range(count):
        sampling = Sampling(temperature=1.0, top_k=20, seed=seed)
        asked.append(made.request(TEXT, sampling=sampling, max_tokens=20, **fields))
        made.engine.submit(asked[-1])
    made.run()
    return asked


@pytest.mark.parametrize("kind", [lambda d: d, late, captured])
def test_a_fan_computes_its_prompt_once(desk: Make, kind: Callable[[Desk], Desk]) -> None:
    made = kind(desk(lanes=4))
    computed = counting(made)
    asked = fan(made, 4)
    prompt = made.finished(asked[0].id).usage.prompt_tokens

    assert prompt - 1 == sum(computed)
    restored = [made.finished(request.id).usage.restored_tokens for request in asked]
    assert [0, prompt - 1, prompt - 1, prompt - 1] == restored
    assert 4 == len({made.finished(request.id).text for request in asked})
    for request in asked:
        alone, _ = desk().answer(replace(request, id="alone"))
        assert alone.text == made.finished(request.id).text
    for slot in range(4):
        assert_holds(made.engine, slot, desk().engine)


def test_those_that_wait_for_a_lane_have_it_restored_or_copied(desk: Make) -> None:
    made = desk(lanes=2)
    computed = counting(made)
    asked = fan(made, 4)

    assert made.finished(asked[0].id).usage.prompt_tokens - 1 == sum(computed)
    for request in asked:
        assert desk().answer(replace(request, id="alone"))[0].text == made.finished(request.id).text


def test_a_request_without_mtp_gives_its_prompt_to_one_with_it(desk: Make) -> None:
    # Without snapshots: a first round that is recalled would offer no drafts.
    made = desk(lanes=2, prefix_cache=0)
    hows = [Speculation(mtp=False), Speculation(history_drafts=False, adaptive=False)]
    asked = [made.request(TEXT, sampling=GREEDY, max_tokens=20, speculation=how) for how in hows]
    for request in asked:
        made.engine.submit(request)
    made.run()
    alone, rounds = desk().answer(replace(asked[1], id="alone"))

    assert alone.text == made.finished(asked[1].id).text
    ours = made.rounds(asked[1].id)
    assert sum(r.accepted for r in rounds) == sum(r.accepted for r in ours) > 0
    for slot in range(2):
        assert_holds(made.engine, slot, desk().engine)


@pytest.mark.parametrize("kind", [lambda d: d, late, captured])
def test_a_slot_that_is_playing_gives_the_beginning_it_shares(
    desk: Make, kind: Callable[[Desk], Desk]
) -> None:
    made = kind(desk(lanes=2))
    first = made.request(TEXT, sampling=GREEDY, max_tokens=60)
    made.engine.submit(first)
    for _ in range(14):
        made.engine.step()
    assert made.engine.playing and made.rounds(first.id)
    second = made.request(TEXT + " l", sampling=GREEDY, max_tokens=20)
    made.engine.submit(second)
    made.run()
    (started,) = [e for e in made.of(second.id) if isinstance(e, Started)]

    assert started.restored_tokens > 10
    for request in (first, second):
        alone, _ = desk().answer(replace(request, id="alone"))
        assert alone.text == made.finished(request.id).text
    for slot in range(2):
        assert_holds(made.engine, slot, desk().engine)


def test_a_copy_that_fails_ends_the_one_it_was_for(
    desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = desk(lanes=2)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(made.engine.executor, "copy", fail)
    asked = fan(made, 2)

    assert ["length", "error"] == [made.finished(request.id).reason for request in asked]
    alone, _ = desk().answer(replace(asked[0], id="alone"))
    assert alone.text == made.finished(asked[0].id).text


def test_a_recurrence_is_copied_whole_while_it_stands_at_the_prompts_end() -> None:
    prompt = " ".join(str(5 + 7 * n % 240) for n in range(40))
    hows = [Speculation(draft_tokens=k, adaptive=False) for k in (7, 3, 0)]
    made = fresh_desk("nvfp4", lanes=4)
    made.engine.language = replace(made.engine.language, encode_chat=tokens_of)
    computed = counting(made)
    asked = [
        made.request(
            prompt, sampling=Sampling(temperature=1.0, top_k=20, seed=seed), max_tokens=12,
            speculation=how, thinking=False,
        )
        for seed, how in enumerate(hows)
    ]  # fmt: skip
    for request in asked:
        made.engine.submit(request)
    made.run()

    assert 39 == sum(computed)
    assert [0, 39, 39] == [made.finished(r.id).usage.restored_tokens for r in asked]
    for request in asked:
        fresh = fresh_desk("nvfp4")
        fresh.engine.language = replace(fresh.engine.language, encode_chat=tokens_of)
        alone, rounds = fresh.answer(replace(request, id="alone"))
        said = [[t for r in each for t in r.tokens] for each in (rounds, made.rounds(request.id))]
        assert alone.text == made.finished(request.id).text
        assert said[0] == said[1]


def test_a_recurrence_that_went_on_gives_nothing() -> None:
    def whole(held: int, rows: int) -> int:
        return rows if rows == held else 0

    residents = Residents(3, whole)
    residents.hold(0, [1, 2, 3])
    residents.hold(2, [1, 2])

    assert (0, 3) == residents.source(1, [1, 2, 3, 4])
    assert (2, 2) == residents.source(1, [1, 2, 3, 4], moving={0})
    assert 0 == residents.source(1, [1, 2, 3, 4], moving={0, 2})[1]
    assert 0 == Residents(1, whole).source(0, [1, 2])[1]
