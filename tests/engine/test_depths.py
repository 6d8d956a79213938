"""A fixed width plays the same rounds, record by record, whether or not two may be under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flarechat.engine.frame import Frame, LaneRecord, read
from flarechat.protocol import Finished, Sampling, Speculation
from tests.engine.conftest import Desk
from tests.engine.test_flights import FIXED, GREEDY, Late, late, tokens_of

Make = Callable[..., Desk]


@pytest.fixture
def desk(learned_desk: Make) -> Make:
    return learned_desk


def recorded(made: Desk, monkeypatch: pytest.MonkeyPatch, **fields: object) -> list[LaneRecord]:
    """The records of one answer's rounds, but those in which it had ended before."""
    records: list[LaneRecord] = []

    def reading(frame: Frame) -> list[LaneRecord]:
        found = read(frame)
        records.extend(r for r in found if r.emitted)
        return found

    with monkeypatch.context() as patch:
        patch.setattr("flarechat.engine.player.read", reading)
        made.ask("hello the", **fields)
    return records


@pytest.mark.parametrize("k", range(8))
@pytest.mark.parametrize(
    ("acceptance", "temperature"), [("match", 0.0), ("match", 0.9), ("ratio", 0.9)]
)
@pytest.mark.parametrize("budget", [1, 7, 40, 100])
def test_a_fixed_widths_records_are_those_of_one_round_at_a_time(
    desk: Make, monkeypatch: pytest.MonkeyPatch, k: int, acceptance: str, temperature: float,
    budget: int,
) -> None:  # fmt: skip
    """To the last round, whether the budget ends the answer or, of 100 tokens, a terminal one."""
    how = Speculation(history_drafts=False, adaptive=False, draft_tokens=k, acceptance=acceptance)
    sampling = Sampling(temperature=temperature, top_k=20, seed=11)
    fields = {"sampling": sampling, "max_tokens": budget, "speculation": how}
    # No prefix is kept: the first round of a prompt that is recalled is another one.
    slow, quick = desk(prefix_cache=0), late(desk(prefix_cache=0))
    if budget == 100:
        said = slow.ask("hello the", **fields)[1]
        eos = tokens_of(said)[-1 if temperature == 0 else 60]
        for made in (slow, quick):
            made.engine.language = replace(made.engine.language, eos=(eos,))
    expected = recorded(slow, monkeypatch, **fields)
    ended = slow.events[-1]

    assert expected == recorded(quick, monkeypatch, **fields)
    assert isinstance(ended, Finished)
    assert ("stop" if budget == 100 else "length") == ended.reason
    assert (2 if budget > 2 * (k + 1) else 1) == quick.engine.executor.most  # type: ignore[attr-defined]


def test_nothing_is_launched_ahead_that_the_budget_could_narrow(desk: Make) -> None:
    for k in range(8):
        how = replace(FIXED, draft_tokens=k)
        made = late(desk())
        _, rounds = made.ask("hello", sampling=GREEDY, max_tokens=40, speculation=how)
        executor = made.engine.executor
        assert isinstance(executor, Late)
        read_before, left = 0, 40
        for n, (plan, out) in enumerate(zip(executor.plans, executor.before, strict=True)):
            left -= sum(r.emitted for r in rounds[read_before : n - out])
            read_before = n - out
            # Whatever the round under way brings, there is room for a pending token and K drafts.
            assert not out or left - executor.plans[n - 1].width >= k + 1
            assert plan.width <= k + 1
        assert len(rounds) == len(executor.plans)


def test_a_prompt_of_one_token_is_read_once_before_its_chain_begins(desk: Make) -> None:
    # No prefix is kept: the first round of a prompt that is recalled is another one.
    slow, quick = desk(prefix_cache=0), late(desk(prefix_cache=0))
    for made in (slow, quick):
        alone = made.engine.language.tokenizer.encode("hello")[:1]
        encode = {"encode_chat": lambda *_, alone=alone: alone}
        made.engine.language = replace(made.engine.language, **encode)
        made.ask("hello", sampling=GREEDY, max_tokens=30, speculation=FIXED)

    told = [[(r.width, r.offered, r.tokens) for r in made.rounds("r1")] for made in (slow, quick)]
    assert told[0] == told[1]
    assert [1, 4, 4] == [width for width, *_ in told[0][:3]]
