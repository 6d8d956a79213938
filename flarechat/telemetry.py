"""Adds up rounds: the one place that turns Round events into totals, rates and medians.

The engine uses it for `finished`, the panels for their live figures and bench for its tables, so
all three print the same numbers. Knows no tensor and no widget.
"""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from statistics import median

from flarechat.protocol import (
    DepthTotals,
    HistoryTotals,
    Round,
    SourceTotals,
    SpeculationSummary,
)


def summed(first: SpeculationSummary, then: SpeculationSummary) -> SpeculationSummary:
    """The totals of both; what a width costs is what it cost last."""
    rounds, emitted = first.rounds + then.rounds, first.emitted + then.emitted
    offered, accepted = first.offered + then.offered, first.accepted + then.accepted
    depths, names = _by_depth(first, then), sorted({*first.by_source, *then.by_source})
    return SpeculationSummary(
        rounds=rounds,
        offered=offered,
        accepted=accepted,
        emitted=emitted,
        clipped=first.clipped + then.clipped,
        mean_acceptance_length=emitted / rounds if rounds else 0.0,
        draft_acceptance_rate=accepted / offered if offered else 0.0,
        acceptance_histogram=tuple(
            a + b
            for a, b in zip_longest(
                first.acceptance_histogram, then.acceptance_histogram, fillvalue=0
            )
        ),
        by_depth=depths,
        by_source={name: _of_source(name, first, then) for name in names},
        cost_ms_by_width=first.cost_ms_by_width | then.cost_ms_by_width,
        history=_lookups(first.history, then.history),
        context=_lookups(first.context, then.context),
        repair_ms=round(first.repair_ms + then.repair_ms, 3),
    )


def _by_depth(*both: SpeculationSummary) -> tuple[DepthTotals, ...]:
    offered, accepted = Counter[int](), Counter[int]()
    for at in (at for summary in both for at in summary.by_depth):
        offered[at.depth] += at.offered
        accepted[at.depth] += at.accepted
    return tuple(
        DepthTotals(depth=depth, offered=offered[depth], accepted=accepted[depth])
        for depth in sorted(offered)
    )


def _of_source(name: str, *both: SpeculationSummary) -> SourceTotals:
    found = [summary.by_source[name] for summary in both if name in summary.by_source]
    return SourceTotals(
        offered=sum(source.offered for source in found),
        accepted=sum(source.accepted for source in found),
        emitted=sum(source.emitted for source in found),
    )


def _lookups(first: HistoryTotals, then: HistoryTotals) -> HistoryTotals:
    return HistoryTotals(
        lookups=first.lookups + then.lookups,
        hits8=first.hits8 + then.hits8,
        hits4=first.hits4 + then.hits4,
    )


class RoundTotals:
    """Running totals over rounds. Owns every count; `summary` derives the rates."""

    def __init__(self) -> None:
        self.rounds = self.offered = self.accepted = self.emitted = self.clipped = 0
        self.decode_ms = self.repair_ms = 0.0
        self.accepted_counts: Counter[int] = Counter()
        self.offered_at: Counter[int] = Counter()
        self.accepted_at: Counter[int] = Counter()
        self.source_offered: Counter[str] = Counter()
        self.source_accepted: Counter[str] = Counter()
        self.source_emitted: Counter[str] = Counter()
        self.width_ms: dict[int, list[float]] = {}
        self.width_emitted: Counter[int] = Counter()

    def add(self, played: Round) -> None:
        """Count one round."""
        self.rounds += 1
        self.offered += played.offered
        self.accepted += played.accepted
        self.emitted += played.emitted
        self.clipped += played.clipped
        self.decode_ms += played.ms
        self.repair_ms += played.repair_ms
        self.accepted_counts[played.accepted] += 1
        for depth, source in enumerate(played.draft_sources, start=1):
            self.offered_at[depth] += 1
            self.source_offered[source] += 1
            if depth <= played.accepted:
                self.accepted_at[depth] += 1
                self.source_accepted[source] += 1
        self.source_emitted.update(played.sources)
        self.width_ms.setdefault(played.width, []).append(played.ms)
        self.width_emitted[played.width] += played.emitted

    def tokens_per_second(self) -> float:
        """Emitted tokens over the rounds' time; 0 before the first round."""
        return 1e3 * self.emitted / self.decode_ms if self.decode_ms else 0.0

    def cost_ms(self, width: int) -> float | None:
        """Median whole-round time of a width in ms, None when never played."""
        samples = self.width_ms.get(width)
        return median(samples) if samples else None

    def summary(
        self, history: HistoryTotals | None = None, context: HistoryTotals | None = None
    ) -> SpeculationSummary:
        """The totals with their rates, as `finished` reports them."""
        deepest = max(self.offered_at, default=0)
        names = sorted(set(self.source_offered) | set(self.source_emitted))
        return SpeculationSummary(
            rounds=self.rounds,
            offered=self.offered,
            accepted=self.accepted,
            emitted=self.emitted,
            clipped=self.clipped,
            mean_acceptance_length=self.emitted / self.rounds if self.rounds else 0.0,
            draft_acceptance_rate=self.accepted / self.offered if self.offered else 0.0,
            acceptance_histogram=tuple(
                self.accepted_counts[a] for a in range(max(self.accepted_counts, default=-1) + 1)
            ),
            by_depth=tuple(
                DepthTotals(depth=d, offered=self.offered_at[d], accepted=self.accepted_at[d])
                for d in range(1, deepest + 1)
            ),
            by_source={
                name: SourceTotals(
                    offered=self.source_offered[name],
                    accepted=self.source_accepted[name],
                    emitted=self.source_emitted[name],
                )
                for name in names
            },
            cost_ms_by_width={
                str(width): round(median(samples), 3)
                for width, samples in sorted(self.width_ms.items())
            },
            history=history or HistoryTotals(),
            context=context or HistoryTotals(),
            repair_ms=round(self.repair_ms, 3),
        )
