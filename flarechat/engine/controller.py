"""The controller: records of rounds in, the next width and the reason for it out. No torch.

It plays the K that maximises E/T: E the tokens a round is expected to emit, from the survival of
drafts by kind and depth; T the measured time of a whole round by lanes, width and context. Probes
look past the choice, up and down to zero; a budget of their own pays for them, they back off, and
their samples stay apart from the ordinary means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flarechat.engine.pricing import CostKey, CostTable, Survival

_PROBE_SHARE = 0.03
_PROBE_EVERY = 64
_PROBE_EVERY_MOST = 512
_PROBE_CAP_ROUNDS = 4
_NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class Offer:
    """What a lane could put to the target: `count` drafts of one source.

    `match_length` is the key that found a copy, `origin` the request it was copied from.
    """

    source: str = "none"
    count: int = 0
    match_length: int = 0
    origin: str = ""

    @property
    def kind(self) -> str:
        """The class whose survival is tracked: source and key length."""
        return f"{self.source}{self.match_length or ''}"


@dataclass(frozen=True, slots=True)
class Choice:
    """K for the next round, and why."""

    draft_tokens: int
    reason: str
    probe: bool = False


class Controller:
    """Owns the means, the probe budget and the choice. One a loaded model; kept across turns."""

    def __init__(self, device_fingerprint: str = "") -> None:
        self.device_fingerprint = device_fingerprint
        self.survival, self.costs = Survival(), CostTable()
        self._probe_ms = 0.0
        self._probe_every = _PROBE_EVERY
        self._since_probe = 0
        self._probe_gain = 0.0

    def choose(self, offers: Sequence[Offer], context: int, *, adaptive: bool = True) -> Choice:
        """The next round's K for lanes with these offers at `context` consumed tokens."""
        most = max((offer.count for offer in offers), default=0)
        if most == 0:
            return Choice(0, "no draft to offer")
        if not adaptive:
            return Choice(most, f"fixed width: all {most} drafts on offer")
        gains = {k: self._gain(offers, context, k) for k in range(most + 1)}
        best = max(gains, key=lambda k: (gains[k], -k))
        probe = self._probe(offers, context, best, most)
        if probe is not None:
            return probe
        return Choice(best, self._reason(offers, context, best, most))

    def record(
        self, offers: Sequence[Offer], choice: Choice, accepted: Sequence[int], ms: float,
        context: int, *, settled: bool = True,
    ) -> None:  # fmt: skip
        """Learn from a played round: per lane its offer and the drafts accepted.

        `settled` is False for the first round after a prefill or with another plan: its time
        only seeds a price class that has none.
        """
        for offer, kept in zip(offers, accepted, strict=True):
            offered = min(offer.count, choice.draft_tokens)
            if offered:
                self.survival.observe(offer.kind, offered, min(kept, offered))
        key = CostKey.of(len(offers), choice.draft_tokens + 1, context)
        if choice.probe:
            self._settle_probe(offers, choice, ms)
        self.costs.observe(key, ms, settled=settled or choice.probe, probe=choice.probe)
        if not choice.probe:
            self._since_probe += 1
            self._probe_ms = min(self._probe_ms + _PROBE_SHARE * ms, _PROBE_CAP_ROUNDS * ms)

    def state(self) -> dict[str, Any]:
        """What a session keeps: plain JSON."""
        return {
            "device": self.device_fingerprint,
            "survival": self.survival.state(),
            "costs": self.costs.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Start from a saved state where nothing is known yet; costs only of this very device."""
        if not self.survival.means:
            self.survival.load(state.get("survival"))
        if state.get("device") == self.device_fingerprint and not self.costs.ordinary:
            self.costs.load(state.get("costs"))

    def _expected(self, offers: Sequence[Offer], depth: int) -> float:
        return sum(self.survival.expected(o.kind, min(o.count, depth)) for o in offers)

    def _ms(self, offers: Sequence[Offer], context: int, depth: int) -> float | None:
        return self.costs.ms(CostKey.of(len(offers), depth + 1, context))

    def _gain(self, offers: Sequence[Offer], context: int, depth: int) -> float:
        """E/T in tokens a millisecond; with no time known at all, rows are assumed cheap."""
        ms = self._ms(offers, context, depth)
        return self._expected(offers, depth) / (1 + 0.08 * depth if ms is None else ms)

    def _reason(self, offers: Sequence[Offer], context: int, best: int, most: int) -> str:
        other = 0 if best else most
        mine, theirs = self._figures(offers, context, best), self._figures(offers, context, other)
        if best == 0:
            return f"drafts would not pay: {mine} without, {theirs} with {most}"
        cut = "" if best == most else f", {most} on offer"
        return f"{best} drafts{cut}: {mine} against {theirs} without"

    def _figures(self, offers: Sequence[Offer], context: int, depth: int) -> str:
        ms = self._ms(offers, context, depth)
        tokens = f"{self._expected(offers, depth):.1f} tokens"
        return tokens if ms is None else f"{tokens} in {ms:.0f} ms"

    def _probe(self, offers: Sequence[Offer], context: int, best: int, most: int) -> Choice | None:
        """A look past the choice, if one is due and the budget pays its expected loss."""
        if self._since_probe < self._probe_every:
            return None
        ages = {
            depth: self.costs.age(CostKey.of(len(offers), depth + 1, context))
            for depth in {best + 1, best - 1, 0, most} - {best}
            if 0 <= depth <= most and self._loss(offers, context, best, depth) <= self._probe_ms
        }
        if not ages:
            return None
        depth = max(ages, key=lambda d: (_NEVER if ages[d] is None else ages[d], -d))
        age = ages[depth]
        last = "never measured" if age is None else f"last measured {age} rounds ago"
        self._probe_gain = self._gain(offers, context, best)
        return Choice(depth, f"probe: width {depth + 1} was {last}", probe=True)

    def _loss(self, offers: Sequence[Offer], context: int, best: int, depth: int) -> float:
        """Milliseconds a probe of `depth` is expected to cost beyond playing the best."""
        ms = self._ms(offers, context, depth)
        if ms is None:
            return 0.0
        worth = self._expected(offers, depth) / self._gain(offers, context, best)
        return max(ms - worth, 0.0)

    def _settle_probe(self, offers: Sequence[Offer], choice: Choice, ms: float) -> None:
        """Pay for the probe; probe less often while probes find nothing better."""
        tokens, gain = self._expected(offers, choice.draft_tokens), self._probe_gain
        better = gain > 0 and tokens / ms > gain
        lost = ms - tokens / gain if gain > 0 else ms
        self._probe_ms = max(self._probe_ms - max(lost, 0.0), 0.0)
        longer = min(2 * self._probe_every, _PROBE_EVERY_MOST)
        self._probe_every = _PROBE_EVERY if better else longer
        self._since_probe = 0
