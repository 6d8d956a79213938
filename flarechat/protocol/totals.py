"""Totals of a request's rounds: what was offered, accepted and emitted, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTotals:
    """Drafts of one source over a request, and tokens emitted from it."""

    offered: int = 0
    accepted: int = 0
    emitted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthTotals:
    """Drafts at one depth (1 is the first of a round)."""

    depth: int
    offered: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTotals:
    """Look-ups of the copy indexes: how many, and how many hit by key length.

    A copy that goes on from the round before, launched before that was read, is no look-up and no
    hit; its drafts count by source as any other's.
    """

    lookups: int = 0
    hits8: int = 0
    hits4: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationSummary:
    """Totals of a request's rounds.

    emitted = accepted + rounds - clipped; `mean_acceptance_length` is emitted / rounds, the
    bonus included; `draft_acceptance_rate` is accepted / offered, 0 without offers;
    `acceptance_histogram[a]` counts rounds that accepted a drafts; `by_depth` and `by_source`
    add up to the totals; `cost_ms_by_width` is the median whole-round time of each width;
    `repair_ms` is the time of all rounds that went into running kept rows again.
    """

    rounds: int = 0
    offered: int = 0
    accepted: int = 0
    emitted: int = 0
    clipped: int = 0
    mean_acceptance_length: float = 0.0
    draft_acceptance_rate: float = 0.0
    acceptance_histogram: tuple[int, ...] = ()
    by_depth: tuple[DepthTotals, ...] = ()
    by_source: dict[str, SourceTotals] = field(default_factory=dict)
    cost_ms_by_width: dict[str, float] = field(default_factory=dict)
    history: HistoryTotals = HistoryTotals()
    context: HistoryTotals = HistoryTotals()
    repair_ms: float = 0.0
