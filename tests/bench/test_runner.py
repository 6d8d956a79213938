"""The order of a bench and what it puts to the engine."""

from __future__ import annotations

import dataclasses

import pytest

from flarechat.bench.arms import parse_arms
from flarechat.bench.runner import WARM_UP, Measured, measure, pass_order
from flarechat.bench.workloads import load_workloads
from flarechat.config import Settings
from flarechat.errors import ModelError
from flarechat.protocol import Request
from tests.bench.bench_doors import FEW, Doors
from tests.fakes import BARE

SETTINGS = Settings(seed=40, temperature=0.5)
ARMS = parse_arms(FEW, SETTINGS.speculation())
WORKLOADS = load_workloads("chat,code")


def played(doors: Doors, repeats: int = 2) -> Measured:
    into = Measured()
    measure(SETTINGS, ARMS, WORKLOADS, repeats, doors=doors, into=into, notice=lambda _: None)
    return into


def counted(doors: Doors) -> list[Request]:
    return [request for engine in doors.opened for request in engine.requests[1:]]


def test_the_arms_turn_round_from_repeat_to_repeat() -> None:
    order = [(repeat, arm.name) for repeat, arm in pass_order(ARMS[:2], 3)]

    assert [
        (0, "off"),
        (0, "fixed-3"),
        (1, "fixed-3"),
        (1, "off"),
        (2, "off"),
        (2, "fixed-3"),
    ] == order


def test_every_pass_has_an_engine_of_its_own_so_that_no_answer_is_copied_from_an_arm() -> None:
    doors = Doors()

    played(doors)

    assert 8 == len(doors.opened)
    assert all(engine.closed for engine in doors.opened)


def test_arms_of_the_head_alone_are_left_out_where_none_is_loaded() -> None:
    doors = Doors(model=BARE, notices=("No head.",))
    said: list[str] = []
    into = Measured()
    arms = parse_arms("adaptive,off,fixed-3,adaptive+history", SETTINGS.speculation())
    measure(SETTINGS, arms, WORKLOADS, 2, doors=doors, into=into, notice=said.append)

    assert ["adaptive", "fixed-3"] == into.left_out
    assert {"off", "adaptive+history"} == {sample.arm for sample in into.samples}
    assert 8 == len(into.samples) and 5 == len(doors.opened)
    assert all(engine.closed for engine in doors.opened)
    assert 1 == said.count("No head.")
    assert into.complete


def test_plain_decoding_gets_an_engine_without_a_head_and_leaves_no_arm_out() -> None:
    doors, into = Doors(), Measured()
    arms = parse_arms("off,fixed-3", SETTINGS.speculation())
    measure(SETTINGS, arms, WORKLOADS, 2, doors=doors, into=into, notice=lambda _: None)

    assert [False, True, True, False] == [engine.model.mtp is not None for engine in doors.opened]
    assert [] == into.left_out
    assert into.model is not None and into.model.mtp is not None


def test_an_arm_of_the_head_is_left_out_where_the_user_wants_no_head() -> None:
    doors, into = Doors(), Measured()
    arms = parse_arms("off,fixed-3", dataclasses.replace(SETTINGS, mtp=False).speculation())
    measure(SETTINGS, arms, WORKLOADS, 2, doors=doors, into=into, notice=lambda _: None)

    assert ["fixed-3"] == into.left_out
    assert {"off"} == {sample.arm for sample in into.samples}


def test_every_engine_warms_up_once_and_nobody_counts_it() -> None:
    doors = Doors()

    measured = played(doors)

    assert [[WARM_UP]] * 8 == [[e.requests[0].messages[-1].content] for e in doors.opened]
    assert 16 == len(measured.samples) == len(counted(doors))
    assert measured.complete


def test_a_workload_draws_the_same_in_every_arm_and_repeat() -> None:
    doors = Doors()

    played(doors)
    seeds: dict[str, set[int | None]] = {}
    for request in counted(doors):
        seeds.setdefault(request.messages[-1].content, set()).add(request.sampling.seed)

    assert [{40}, {41}] == [seeds[w.prompt] for w in WORKLOADS]


def test_requests_carry_the_settings_over_the_recommendation() -> None:
    doors = Doors()

    played(doors, repeats=1)
    (sampling,) = {(r.sampling.temperature, r.sampling.top_k) for r in counted(doors)}

    assert (0.5, 50) == sampling


def test_max_tokens_cuts_a_workload_short_but_never_prolongs_it() -> None:
    for most, expected in ((50, [50, 50]), (1000, [96, 160])):
        doors = Doors()
        measure(
            Settings(max_tokens=most), ARMS[:1], WORKLOADS, 1,
            doors=doors, into=Measured(), notice=lambda _: None,
        )  # fmt: skip

        assert expected == [request.max_tokens for request in counted(doors)]


def test_the_controller_goes_from_answer_to_answer_within_a_pass_only() -> None:
    doors = Doors()

    played(doors, repeats=1)

    for engine in doors.opened:
        assert [None, {"scripted": True}, {"scripted": True}] == [
            request.controller for request in engine.requests
        ]
        assert all(request.private for request in engine.requests)


def test_a_sample_keeps_every_round() -> None:
    measured = played(Doors(), repeats=1)
    sample = next(s for s in measured.samples if s.arm == "adaptive+history")

    assert [(3, 2, 3), (1, 0, 1)] == [(r.width, r.accepted, r.emitted) for r in sample.rounds]
    assert sample.usage.completion_tokens == sum(r.emitted for r in sample.rounds)


def test_an_interrupt_cancels_the_request_keeps_the_samples_and_closes_the_engine() -> None:
    doors, into = Doors(interrupt_after=2), Measured()

    with pytest.raises(KeyboardInterrupt):
        measure(SETTINGS, ARMS, WORKLOADS, 1, doors=doors, into=into, notice=lambda _: None)

    (engine,) = doors.opened
    assert ["chat"] == [s.workload for s in into.samples]
    assert ["off-code-0"] == engine.cancelled
    assert (True, False) == (engine.closed, into.complete)


def test_an_engine_that_cannot_start_raises_its_own_error() -> None:
    doors = Doors(failure=ModelError("The file x.gguf is cut short.", "Pull it again."))

    with pytest.raises(ModelError, match="cut short"):
        played(doors)

    assert doors.opened[0].closed
