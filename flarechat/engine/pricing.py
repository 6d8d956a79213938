"""What the controller knows: how long drafts survive and what a round costs.

Owns the exponential means and their rules (clamping, seeding, probes apart). Knows no policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flarechat.protocol import MAX_DRAFT_TOKENS

SURVIVAL_PRIOR = {
    "grammar": 1.0, "history8": 0.85, "context8": 0.85, "history4": 0.6, "context4": 0.6,
    "mtp": 0.62,
}  # fmt: skip
_PRIOR_COUNT = 4
_SURVIVAL_FLOOR_RATE = 0.08
# A chain drafts every round: a shorter memory would make its rates stray far enough to drop it.
_SURVIVAL_FLOOR_RATES = {"mtp": 0.04}
_COST_RATE = 0.2
_COST_STEP = 0.25
_STALL = 4.0
_STALLS_BELIEVED = 3
_MOST_MS, _MOST_COUNT = 1e9, 1 << 31
_ROW_SLOPE, _CHAIN_SLOPE = 0.08, 0.05
_STALE_ROUNDS = 64
_TRUSTED_PROBES = 3
_CHAIN, _FORCED = "mtp", "grammar"


@dataclass(slots=True)
class Mean:
    """An exponential mean that starts as a plain average; `seen` is its last sample's round,
    `settled` that of the last settled one, or of the first.
    """

    value: float = 0.0
    count: int = 0
    seen: int = 0
    settled: int = 0
    stalls: int = 0

    def add(self, sample: float, floor_rate: float) -> None:
        """Move towards `sample` by 1/count, but at least by `floor_rate`."""
        self.count += 1
        self.value += max(1.0 / self.count, floor_rate) * (sample - self.value)


class Survival:
    """P(draft at depth d is kept | the one before was), by the draft's kind and its depth.

    Depth is the place in the round: of a copy's key length, or of the MTP chain, which runs
    through copied drafts as well. Forced drafts in front do not count: what goes on from them
    survives no worse than what begins a round.
    """

    def __init__(self) -> None:
        self.means: dict[str, list[Mean]] = {}
        self._rates: dict[str, list[float]] = {}

    def observe(self, kinds: Sequence[str], accepted: int) -> None:
        """One lane's drafts: depths up to accepted + 1 were reached, as far as offered."""
        for place, (kind, depth) in enumerate(_depths(kinds[: accepted + 1])):
            self._rates.pop(kind, None)
            floor = _SURVIVAL_FLOOR_RATES.get(kind, _SURVIVAL_FLOOR_RATE)
            means = self.means.setdefault(kind, [])
            while len(means) <= depth:
                means.append(Mean())
            means[depth].add(1.0 if place < accepted else 0.0, floor)

    def rates(self, kind: str, depths: int) -> list[float]:
        """The conditional rates at depths 0, 1, …; thin depths lean on the one before."""
        known = self._rates.get(kind)
        if known is None or len(known) < depths:
            known = self._rates[kind] = self._worked_out(kind, max(depths, MAX_DRAFT_TOKENS))
        return known[:depths]

    def _worked_out(self, kind: str, depths: int) -> list[float]:
        rates, rate = [], SURVIVAL_PRIOR.get(kind, 0.5)
        means = self.means.get(kind, [])
        for depth in range(depths):
            if depth < len(means):
                weight = means[depth].count / (means[depth].count + _PRIOR_COUNT)
                rate = weight * means[depth].value + (1 - weight) * rate
            rates.append(rate)
        return rates

    def expected(self, kinds: Sequence[str]) -> list[float]:
        """E[tokens of a round] with the first 0, 1, … of these drafts: 1 + p1 + p1 p2 + …"""
        rates = {kind: self.rates(kind, len(kinds)) for kind in dict.fromkeys(kinds)}
        totals, reach = [1.0], 1.0
        for kind, depth in _depths(kinds):
            reach *= rates[kind][depth]
            totals.append(totals[-1] + reach)
        return totals

    def state(self) -> dict[str, list[list[float]]]:
        """The means by kind and depth, for the session file."""
        return {k: [[round(m.value, 4), m.count] for m in means] for k, means in self.means.items()}

    def load(self, state: Any) -> None:
        """Take means back; kinds that do not parse are left out."""
        self._rates.clear()
        for kind, rows in (state if isinstance(state, dict) else {}).items():
            try:
                means = [Mean(float(value), int(count)) for value, count in rows]
            except (ValueError, TypeError, OverflowError):
                continue
            if all(0 <= m.value <= 1 and 0 <= m.count < _MOST_COUNT for m in means):
                self.means[str(kind)] = means


def _depths(kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Each draft's kind and depth, which those that are forced do not add to for others."""
    forced = 0
    for place, kind in enumerate(kinds):
        forced += kind == _FORCED
        yield kind, place if kind == _FORCED else place - forced


class CostKey(NamedTuple):
    """A round's price class: lanes, width, the power-of-two bucket of its context, and whether
    the MTP chain drafted."""

    lanes: int
    width: int
    bucket: int
    learned: bool = False

    @classmethod
    def of(cls, lanes: int, width: int, context: int, *, learned: bool = False) -> CostKey:
        """The class of a round at `context` consumed tokens."""
        bucket = max(512, 1 << max(context - 1, 1).bit_length())
        return cls(lanes, width, bucket, learned)

    @classmethod
    def parse(cls, name: str) -> CostKey:
        """The key of a name; ValueError for anything else."""
        parts = name.split("/")
        lanes, width, bucket = (int(part) for part in parts[:3])
        if parts[3:] not in ([], [_CHAIN]):
            raise ValueError(f"{name!r} is no price class")
        return cls(lanes, width, bucket, bool(parts[3:]))

    def name(self) -> str:
        """lanes/width/bucket, and /mtp where the chain drafted."""
        plain = f"{self.lanes}/{self.width}/{self.bucket}"
        return f"{plain}/{_CHAIN}" if self.learned else plain

    def bulk(self) -> float:
        """What such a round is guessed to cost, in rounds of width 1."""
        slope = _ROW_SLOPE + (_CHAIN_SLOPE if self.learned else 0.0)
        return 1 + slope * (self.width - 1)

    def distance(self, other: CostKey) -> tuple[int, int, int]:
        """How little a measured class tells of this one: by bucket, then width and chain."""
        unlike = self.learned != other.learned and min(self.width, other.width) > 1
        return (
            abs(other.bucket.bit_length() - self.bucket.bit_length()),
            abs(other.width - self.width) + unlike,
            other.width,
        )


@dataclass(slots=True)
class CostTable:
    """Whole-round milliseconds by price class; probes are kept apart from ordinary means."""

    ordinary: dict[CostKey, Mean] = field(default_factory=dict)
    probes: dict[CostKey, Mean] = field(default_factory=dict)
    rounds: int = 0
    _near: dict[CostKey, CostKey | None] = field(default_factory=dict, repr=False)
    _classes: int = 0

    def observe(self, key: CostKey, ms: float, *, settled: bool, probe: bool) -> None:
        """One round's time. Unsettled ones (after a plan change) only seed an empty class, and
        then at most a quarter above what its neighbours make likely; but where plans change all
        the time, they are followed once no settled one came for long.

        A sample is clamped to a quarter around the mean; one four times the mean is a stall and
        does not count, until so many come in a row that they are the truth. A class that only
        probes saw for long goes on from what they found.
        """
        self.rounds += 1
        likely = None if settled else self.ms(key)
        mean = (self.probes if probe else self.ordinary).setdefault(key, Mean())
        if mean.count and not settled and self.rounds - mean.settled <= _STALE_ROUNDS:
            return
        newer = None if probe else self._newer(mean, self.probes.get(key))
        if newer is not None:
            mean.value, mean.count = newer.value, 1
        if mean.count and ms > _STALL * mean.value:
            mean.stalls += 1
            if mean.stalls < _STALLS_BELIEVED:
                return
            mean.value, mean.count = 0.0, 0
        mean.stalls = 0
        if likely is not None:
            ms = min(ms, likely * (1 + _COST_STEP))
        if settled or not mean.count:
            mean.settled = self.rounds
        if mean.count:
            ms = min(max(ms, mean.value * (1 - _COST_STEP)), mean.value * (1 + _COST_STEP))
        mean.add(ms, _COST_RATE)
        mean.seen = self.rounds

    def ms(self, key: CostKey) -> float | None:
        """The class's price: measured, else estimated from its neighbours, else None."""
        own = self._measured(key)
        if own is not None:
            return own
        near = self._nearest(key)
        if near is None:
            return None
        other, ms = near
        return ms * key.bulk() / other.bulk()

    def age(self, key: CostKey) -> int | None:
        """Rounds since the class was last sampled, by any round; None when it never was."""
        means = [t[key] for t in (self.ordinary, self.probes) if key in t and t[key].count]
        return min(self.rounds - m.seen for m in means) if means else None

    def _measured(self, key: CostKey) -> float | None:
        mean, probe = self.ordinary.get(key), self.probes.get(key)
        if mean is None or not mean.count:
            mean = probe
        elif probe is not None:
            mean = self._newer(mean, probe) or mean
        return mean.value if mean is not None and mean.count else None

    def _newer(self, mean: Mean | None, probe: Mean | None) -> Mean | None:
        """The probes' mean, where it is to be believed in place of an ordinary one that is old."""
        if mean is None or not mean.count or probe is None or probe.count < _TRUSTED_PROBES:
            return None
        return probe if self.rounds - mean.seen > _STALE_ROUNDS and probe.seen > mean.seen else None

    def _nearest(self, key: CostKey) -> tuple[CostKey, float] | None:
        """The closest measured class of as many lanes; looked up anew when there are more."""
        classes = len(self.ordinary) + len(self.probes)
        if classes != self._classes:
            self._near.clear()
            self._classes = classes
        if key not in self._near:
            known = [k for k in {*self.ordinary, *self.probes} if k.lanes == key.lanes]
            measured = [k for k in known if self._measured(k) is not None]
            self._near[key] = min(measured, key=key.distance, default=None)
        other = self._near[key]
        ms = None if other is None else self._measured(other)
        return None if other is None or ms is None else (other, ms)

    def state(self) -> dict[str, list[float]]:
        """The ordinary means, for the session file."""
        return {k.name(): [round(m.value, 4), m.count] for k, m in self.ordinary.items() if m.count}

    def load(self, state: Any) -> None:
        """Take means back; entries that do not parse are left out."""
        for name, entry in (state if isinstance(state, dict) else {}).items():
            try:
                key = CostKey.parse(name)
                value, count = float(entry[0]), int(entry[1])
            except (ValueError, TypeError, LookupError, OverflowError, AttributeError):
                continue
            if 0 < value < _MOST_MS and 0 < count < _MOST_COUNT:
                self.ordinary[key] = Mean(value, count, self.rounds, self.rounds)
