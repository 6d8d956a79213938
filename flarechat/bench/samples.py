"""One measured answer. Owns what a bench keeps of it and what can be read off it.

A sample keeps every round, so that a table, a replay and a doubt can be settled from the same
record. Knows no door and no table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flarechat.protocol import HistoryTotals, Round, Timings, Usage
from flarechat.telemetry import RoundTotals

LOOP_GRAM = 8
LOOP_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer of one arm to one workload, in one repeat."""

    arm: str
    workload: str
    repeat: int
    seed: int
    reason: str
    text: str
    usage: Usage
    timings: Timings
    history: HistoryTotals
    context: HistoryTotals
    rounds: tuple[Round, ...]

    @property
    def rate(self) -> float:
        """Emitted tokens a second of decoding; prefill is not in it."""
        return self.timings.tokens_per_second

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second, those restored from a cache left out; 0 if none was computed."""
        computed = self.usage.prompt_tokens - self.usage.restored_tokens
        return 1e3 * computed / self.timings.prefill_ms if self.timings.prefill_ms else 0.0

    @property
    def loops(self) -> bool:
        """Whether the answer repeats itself, which makes copied drafts look good."""
        tokens = [token for played in self.rounds for token in played.tokens]
        return repeated_share(tokens) >= LOOP_SHARE


def repeated_share(tokens: Sequence[int], gram: int = LOOP_GRAM) -> float:
    """The share of `gram`-token windows that occurred before in the same answer."""
    windows = [tuple(tokens[i : i + gram]) for i in range(len(tokens) - gram + 1)]
    return 1 - len(set(windows)) / len(windows) if len(windows) > gram else 0.0


def add_up(samples: Iterable[Sample]) -> RoundTotals:
    """The totals over all rounds of some samples."""
    totals = RoundTotals()
    for sample in samples:
        for played in sample.rounds:
            totals.add(played)
    return totals
