"""What the controller knows: how long drafts survive and what a round costs.

Owns the exponential means and their rules (clamping, seeding, probes apart). Knows no policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SURVIVAL_PRIOR = {"history8": 0.85, "context8": 0.85, "history4": 0.6, "context4": 0.6}
_SURVIVAL_FLOOR_RATE = 0.08
_COST_RATE = 0.2
_COST_STEP = 0.25
_STALL = 4.0
_STALLS_BELIEVED = 3
_MOST_MS, _MOST_COUNT = 1e9, 1 << 31
_ROW_SLOPE = 0.08
_STALE_ROUNDS = 64
_TRUSTED_PROBES = 3


@dataclass(slots=True)
class Mean:
    """An exponential mean that starts as a plain average; `seen` is its last sample's round."""

    value: float = 0.0
    count: int = 0
    seen: int = 0
    stalls: int = 0

    def add(self, sample: float, floor_rate: float) -> None:
        """Move towards `sample` by 1/count, but at least by `floor_rate`."""
        self.count += 1
        self.value += max(1.0 / self.count, floor_rate) * (sample - self.value)


class Survival:
    """P(draft at depth d is kept | the one before was), by draft kind and depth."""

    def __init__(self) -> None:
        self.means: dict[str, list[Mean]] = {}

    def observe(self, kind: str, offered: int, accepted: int) -> None:
        """One lane's round: depths up to accepted + 1 were reached, as far as offered."""
        means = self.means.setdefault(kind, [])
        while len(means) < offered:
            means.append(Mean())
        for depth in range(min(accepted + 1, offered)):
            means[depth].add(1.0 if depth < accepted else 0.0, _SURVIVAL_FLOOR_RATE)

    def rate(self, kind: str, depth: int) -> float:
        """The conditional rate at a depth (0 first); thin depths lean on the one before."""
        prior = SURVIVAL_PRIOR.get(kind, 0.5) if depth == 0 else self.rate(kind, depth - 1)
        means = self.means.get(kind, [])
        if depth >= len(means):
            return prior
        mean = means[depth]
        weight = min(mean.count, 4) / 4
        return weight * mean.value + (1 - weight) * prior

    def expected(self, kind: str, depth: int) -> float:
        """E[tokens of a round] with `depth` drafts of a kind: 1 + p1 + p1 p2 + …"""
        total = reach = 1.0
        for place in range(depth):
            reach *= self.rate(kind, place)
            total += reach
        return total

    def state(self) -> dict[str, list[list[float]]]:
        """The means by kind and depth, for the session file."""
        return {k: [[round(m.value, 4), m.count] for m in means] for k, means in self.means.items()}

    def load(self, state: Any) -> None:
        """Take means back; kinds that do not parse are left out."""
        for kind, rows in (state if isinstance(state, dict) else {}).items():
            try:
                means = [Mean(float(value), int(count)) for value, count in rows]
            except (ValueError, TypeError, OverflowError):
                continue
            if all(0 <= m.value <= 1 and 0 <= m.count < _MOST_COUNT for m in means):
                self.means[str(kind)] = means


@dataclass(frozen=True, slots=True)
class CostKey:
    """A round's price class: lanes, width and the power-of-two bucket of its context."""

    lanes: int
    width: int
    bucket: int

    @classmethod
    def of(cls, lanes: int, width: int, context: int) -> CostKey:
        return cls(lanes, width, max(512, 1 << max(context - 1, 1).bit_length()))

    def name(self) -> str:
        return f"{self.lanes}/{self.width}/{self.bucket}"


@dataclass(slots=True)
class CostTable:
    """Whole-round milliseconds by price class; probes are kept apart from ordinary means."""

    ordinary: dict[CostKey, Mean] = field(default_factory=dict)
    probes: dict[CostKey, Mean] = field(default_factory=dict)
    rounds: int = 0

    def observe(self, key: CostKey, ms: float, *, settled: bool, probe: bool) -> None:
        """One round's time. Unsettled ones (after a plan change) only seed an empty class, and
        then at most a quarter above what its neighbours make likely.

        A sample is clamped to a quarter around the mean; one four times the mean is a stall and
        does not count, until so many come in a row that they are the truth.
        """
        self.rounds += 1
        likely = None if settled else self.ms(key)
        mean = (self.probes if probe else self.ordinary).setdefault(key, Mean())
        if mean.count and not settled:
            return
        if mean.count and ms > _STALL * mean.value:
            mean.stalls += 1
            if mean.stalls < _STALLS_BELIEVED:
                return
            mean.value, mean.count = 0.0, 0
        mean.stalls = 0
        if likely is not None:
            ms = min(ms, likely * (1 + _COST_STEP))
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
        return ms * max(0.3, 1 + _ROW_SLOPE * (key.width - other.width))

    def age(self, key: CostKey) -> int | None:
        """Rounds since the class was last sampled, by any round; None when it never was."""
        means = [t[key] for t in (self.ordinary, self.probes) if key in t and t[key].count]
        return min(self.rounds - m.seen for m in means) if means else None

    def _measured(self, key: CostKey) -> float | None:
        mean, probe = self.ordinary.get(key), self.probes.get(key)
        if mean is None or not mean.count:
            return probe.value if probe is not None and probe.count else None
        stale = self.rounds - mean.seen > _STALE_ROUNDS
        if stale and probe is not None and probe.count >= _TRUSTED_PROBES:
            return probe.value if probe.seen > mean.seen else mean.value
        return mean.value

    def _nearest(self, key: CostKey) -> tuple[CostKey, float] | None:
        """The closest measured class of as many lanes: same bucket first, then width."""
        known = [k for k in {*self.ordinary, *self.probes} if k.lanes == key.lanes]
        priced = [(k, ms) for k in known if (ms := self._measured(k)) is not None]
        return min(
            priced,
            key=lambda item: (
                abs(item[0].bucket.bit_length() - key.bucket.bit_length()),
                abs(item[0].width - key.width),
                item[0].width,
            ),
            default=None,
        )

    def state(self) -> dict[str, list[float]]:
        """The ordinary means, for the session file."""
        return {k.name(): [round(m.value, 4), m.count] for k, m in self.ordinary.items() if m.count}

    def load(self, state: Any) -> None:
        """Take means back; entries that do not parse are left out."""
        for name, entry in (state if isinstance(state, dict) else {}).items():
            try:
                lanes, width, bucket = (int(part) for part in name.split("/"))
                value, count = float(entry[0]), int(entry[1])
            except (ValueError, TypeError, LookupError, OverflowError, AttributeError):
                continue
            if 0 < value < _MOST_MS and 0 < count < _MOST_COUNT:
                self.ordinary[CostKey(lanes, width, bucket)] = Mean(value, count, self.rounds)
