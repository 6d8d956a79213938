"""Turns samples into rows: medians, paired ratios and doubts. Owns every figure of the report.

A ratio pairs an arm with the baseline on the same workload in the same repeat, so that a slow
minute of the machine hits both sides. Prints nothing and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from flarechat.bench.arms import BASELINE, Arm
from flarechat.bench.samples import Sample, add_up
from flarechat.bench.workloads import Workload
from flarechat.protocol import SpeculationSummary

NO_DRAFTER = "no drafts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median with the least and the most of its samples."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median=median(values), low=min(values), high=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One arm on one workload, over all repeats.

    `ratio` is None for the baseline, without one, and where `note` says that the arm had nothing
    that could offer a draft. `same_text` compares with the baseline of the same repeat.
    """

    workload: str
    category: str
    arm: str
    samples: int
    rate: Spread
    ratio: Spread | None
    note: str
    first_token_ms: float
    prefill_rate: float
    reasons: tuple[str, ...]
    loops: bool
    repetition_asked: bool
    same_text: bool | None
    speculation: SpeculationSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """One arm over all workloads; `worst` and `best` are the rows with those ratios."""

    arm: str
    rate: float
    ratio: float | None
    worst: Row | None
    best: Row | None
    speculation: SpeculationSummary


def rows_of(
    samples: Sequence[Sample], arms: Sequence[Arm], workloads: Sequence[Workload]
) -> list[Row]:
    """A row for every workload and arm that has at least one sample, in that order."""
    rows = []
    for workload in workloads:
        here = [s for s in samples if s.workload == workload.name]
        baseline = {s.repeat: s for s in here if s.arm == BASELINE}
        for arm in arms:
            mine = [s for s in here if s.arm == arm.name]
            if mine:
                rows.append(_row(workload, arm, mine, baseline))
    return rows


def _row(workload: Workload, arm: Arm, mine: Sequence[Sample], baseline: dict[int, Sample]) -> Row:
    speculation = add_up(mine).summary()
    note = NO_DRAFTER if arm.learned_only and not speculation.offered else ""
    pairs = [] if arm.name == BASELINE else [(s, baseline.get(s.repeat)) for s in mine]
    ratios = [s.rate / other.rate for s, other in pairs if other and other.rate]
    texts = [s.text == other.text for s, other in pairs if other]
    return Row(
        workload=workload.name,
        category=workload.category,
        arm=arm.name,
        samples=len(mine),
        rate=Spread.of([s.rate for s in mine]),
        ratio=Spread.of(ratios) if ratios and not note else None,
        note=note,
        first_token_ms=median(s.timings.first_token_ms for s in mine),
        prefill_rate=median(s.prefill_rate for s in mine),
        reasons=tuple(sorted({s.reason for s in mine})),
        loops=any(s.loops for s in mine),
        repetition_asked=workload.repetition_asked,
        same_text=all(texts) if texts else None,
        speculation=speculation,
    )


def arms_of(
    rows: Sequence[Row], samples: Iterable[Sample], arms: Sequence[Arm]
) -> list[ArmSummary]:
    """One line an arm: the median of its rows, its worst and its best row."""
    kept = list(samples)
    summaries = []
    for arm in arms:
        mine = [row for row in rows if row.arm == arm.name]
        if not mine:
            continue
        by_ratio = sorted((row for row in mine if row.ratio), key=_ratio)
        summaries.append(
            ArmSummary(
                arm=arm.name,
                rate=median(row.rate.median for row in mine),
                ratio=median(map(_ratio, by_ratio)) if by_ratio else None,
                worst=by_ratio[0] if by_ratio else None,
                best=by_ratio[-1] if by_ratio else None,
                speculation=add_up(s for s in kept if s.arm == arm.name).summary(),
            )
        )
    return summaries


def _ratio(row: Row) -> float:
    return row.ratio.median if row.ratio else 0.0
