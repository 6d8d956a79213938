"""The figures of a bench: medians, paired ratios, doubts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flarechat.bench.arms import parse_arms
from flarechat.bench.report import remarks
from flarechat.bench.runner import Measured, measure
from flarechat.bench.samples import Sample
from flarechat.bench.summary import Row, arms_of, rows_of
from flarechat.bench.workloads import load_workloads
from flarechat.config import Settings
from tests.bench.bench_doors import FEW, TEXT, Doors

SETTINGS = Settings(seed=1)
ARMS = parse_arms(FEW, SETTINGS.speculation())
WORKLOADS = load_workloads("chat,repeat")


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    into = Measured()
    measure(SETTINGS, ARMS, WORKLOADS, 2, doors=Doors(), into=into, notice=lambda _: None)
    return into.samples


def row(rows: list[Row], workload: str, arm: str) -> Row:
    return next(r for r in rows if (r.workload, r.arm) == (workload, arm))


def test_a_ratio_is_paired_with_the_same_repeat(samples: list[Sample]) -> None:
    slow = [
        replace(s, timings=replace(s.timings, tokens_per_second=s.rate / 10)) if s.repeat else s
        for s in samples
    ]

    fixed = row(rows_of(slow, ARMS, WORKLOADS), "chat", "fixed-3")

    # COPIED emits 4 tokens in 25 ms, PLAIN 4 in 40 ms; a machine ten times slower changes nothing.
    assert fixed.ratio is not None
    assert (1.6, 1.6, 1.6) == pytest.approx((fixed.ratio.low, fixed.ratio.median, fixed.ratio.high))
    assert (16.0, 88.0, 160.0) == pytest.approx(
        (fixed.rate.low, fixed.rate.median, fixed.rate.high)
    )


def test_the_totals_of_a_row_keep_the_identity(samples: list[Sample]) -> None:
    for each in rows_of(samples, ARMS, WORKLOADS):
        s = each.speculation

        assert s.emitted == s.accepted + s.rounds - s.clipped
        assert s.offered == sum(d.offered for d in s.by_depth)
        assert s.accepted == sum(source.accepted for source in s.by_source.values())


def test_an_arm_without_anything_to_offer_gets_a_note_instead_of_a_ratio(
    samples: list[Sample],
) -> None:
    rows = rows_of(samples, ARMS, WORKLOADS)
    adaptive = row(rows, "chat", "adaptive")
    summary = next(a for a in arms_of(rows, samples, ARMS) if a.arm == "adaptive")

    assert ("no drafts", None) == (adaptive.note, adaptive.ratio)
    assert (None, None) == (summary.ratio, summary.worst)
    assert "No ratio for adaptive:" in " ".join(remarks(rows, arms_of(rows, samples, ARMS)))


def test_an_arm_with_copies_that_found_none_still_gets_its_ratio(samples: list[Sample]) -> None:
    plain = [s for s in samples if s.arm == "off"]
    as_history = [replace(s, arm="adaptive+history") for s in plain]

    found = row(rows_of([*plain, *as_history], ARMS, WORKLOADS), "chat", "adaptive+history")

    assert found.ratio is not None
    assert 1.0 == found.ratio.median


def test_text_is_compared_with_the_baseline_of_the_same_repeat(samples: list[Sample]) -> None:
    changed = [
        replace(s, text="other") if (s.arm, s.repeat) == ("fixed-3", 1) else s for s in samples
    ]

    rows = rows_of(changed, ARMS, WORKLOADS)

    assert TEXT == samples[0].text
    assert (None, False, True) == tuple(
        row(rows, "chat", arm).same_text for arm in ("off", "fixed-3", "adaptive+history")
    )
    assert "Text differs from off: fixed-3/chat, fixed-3/repeat." in remarks(rows, [])


def test_a_looping_answer_is_pointed_out_unless_it_was_asked_for(samples: list[Sample]) -> None:
    looping = []
    for s in samples:
        tokens = tuple([*range(20)] * 4)
        looping.append(replace(s, rounds=(replace(s.rounds[0], tokens=tokens),)))

    rows = rows_of(looping, ARMS, WORKLOADS)

    assert all(r.loops for r in rows)
    (line,) = [r for r in remarks(rows, []) if "repeat themselves" in r]
    assert line.startswith("Answers to chat repeat")


def test_without_the_baseline_there_is_no_ratio(samples: list[Sample]) -> None:
    rows = rows_of([s for s in samples if s.arm != "off"], ARMS, WORKLOADS)

    assert {None} == {r.ratio for r in rows}


def test_the_worst_row_is_named(samples: list[Sample]) -> None:
    slowed = [
        replace(s, timings=replace(s.timings, tokens_per_second=50.0))
        if (s.workload, s.arm) == ("repeat", "fixed-3")
        else s
        for s in samples
    ]
    rows = rows_of(slowed, ARMS, WORKLOADS)

    assert "Worst row: 0.50x repeat with fixed-3." in remarks(rows, arms_of(rows, slowed, ARMS))


def test_a_busy_machine_is_told_by_plain_rounds_that_cost_more_in_another_arm(
    samples: list[Sample],
) -> None:
    def busy(factor: float) -> list[str]:
        shown = [
            replace(s, rounds=tuple(replace(r, ms=r.ms * factor) for r in s.rounds))
            if s.arm == "fixed-3"
            else s
            for s in samples
        ]
        rows = rows_of(shown, ARMS, WORKLOADS)
        return [r for r in remarks(rows, arms_of(rows, shown, ARMS)) if "busy" in r]

    assert [] == busy(1.1)
    (line,) = busy(1.5)
    assert line.startswith("A plain round took 10 ms in one arm and 15 in another")
