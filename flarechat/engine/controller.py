"""The controller: records of rounds in, the next plan's drafts and the reason for them out.

It plays the number of drafts K and the way of drafting (copies, the MTP chain, copies continued
by the chain, or nothing) that maximise E/T: E the tokens a round is expected to emit, from the
survival of drafts by kind and depth; T the measured time of a whole round by lanes, width,
context and whether the chain ran. Probes look past the choice, up and down to zero and to other
ways of drafting; a budget of their own pays for them, they back off, and their samples stay
apart from the ordinary means. The first comes early, as a guessed price may be far off. No torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flarechat.engine.offer import DRAFTING, Offer, runs_chain
from flarechat.engine.pricing import CostKey, CostTable, Survival
from flarechat.protocol import MAX_DRAFT_TOKENS

_PROBE_SHARE = 0.03
_PROBE_EVERY, _PROBE_FIRST = 64, 8
_PROBE_EVERY_MOST = 512
_PROBE_CAP_ROUNDS = 4
_NEVER = 1 << 60
# Which way a fixed width takes, of those with as many drafts: the last.
_FULLEST = ("none", "mtp", "copies", "both")


@dataclass(frozen=True, slots=True)
class Choice:
    """K for the next round, how it is drafted, and why."""

    draft_tokens: int
    reason: str
    probe: bool = False
    drafting: str = "none"


class _Option(NamedTuple):
    """One way to play the next round: the tokens of all lanes it should bring, and its price.

    `ms` is None while no round of so many lanes was ever timed; rows are then assumed cheap.
    `gain` is E/T in tokens a millisecond.
    """

    drafting: str
    draft_tokens: int
    tokens: float
    key: CostKey
    ms: float | None
    gain: float

    def figures(self, *, units: bool = True) -> str:
        """E and T in words."""
        tokens = f"{self.tokens:.1f}{' tok' if units else ''}"
        return tokens if self.ms is None else f"{tokens} in {self.ms:.0f}{' ms' if units else ''}"

    def kinds(self, offers: Sequence[Offer]) -> str:
        """How many drafts of which kind, at most in a lane, in words."""
        copies = [offer.copied(self.drafting, self.draft_tokens) for offer in offers]
        given = [min(o.forced, count) for o, count in zip(offers, copies, strict=True)]
        forced, lanes = max(given), len(offers)
        copied = max(count - sure for count, sure in zip(copies, given, strict=True))
        learned = self.draft_tokens - forced - copied
        if lanes > 1:
            learned = self.draft_tokens if runs_chain(self.drafting) else 0
        counts = {"forced": forced, "copied": copied, "mtp": learned}
        *kinds, last = (kind for kind, count in counts.items() if count)
        if lanes == 1:
            return " + ".join(f"{counts[kind]} {kind}" for kind in (*kinds, last))
        named = f"{', '.join(kinds)} or {last}" if kinds else last
        return f"{'up to ' if kinds else ''}{self.draft_tokens} {named}"

    def name(self, offers: Sequence[Offer]) -> str:
        """The drafts in words."""
        if self.draft_tokens == 0:
            return "no draft"
        return f"{self.kinds(offers)} {'draft' if self.draft_tokens == 1 else 'drafts'}"


class Controller:
    """Owns the means, the probe budget and the choice. One a loaded model; kept across turns."""

    def __init__(self, device_fingerprint: str = "") -> None:
        self.device_fingerprint = device_fingerprint
        self.survival, self.costs = Survival(), CostTable()
        self._probe_ms = 0.0
        self._probe_every = _PROBE_FIRST
        self._since_probe = 0
        self._probe_gain = 0.0

    def choose(
        self, offers: Sequence[Offer], context: int, *, adaptive: bool = True,
        barred: Collection[str] = (),
    ) -> Choice:  # fmt: skip
        """The next round's K and way of drafting, none of `barred`, for lanes with these offers
        at `context` consumed tokens. Without `adaptive` all that can be drafted is."""
        options = self._options(offers, context, barred)
        if len(options) == 1:
            return Choice(0, "no draft to offer")
        if not adaptive:
            full = max(options, key=lambda o: (o.draft_tokens, _FULLEST.index(o.drafting)))
            return _chosen(full, f"fixed width: {full.name(offers)}")
        best = max(options, key=_merit)
        probe = self._probe(options, best, offers)
        return probe or _chosen(best, _reason(options, best, offers))

    def record(
        self, offers: Sequence[Offer], choice: Choice, accepted: Sequence[int], ms: float,
        context: int, *, settled: bool = True,
    ) -> None:  # fmt: skip
        """Learn from a played round: per lane its offer and the drafts accepted.

        `settled` is False for the first round after a prefill or with another plan: its time
        only seeds a price class that has none.
        """
        drafting, depth = choice.drafting, choice.draft_tokens
        for offer, kept in zip(offers, accepted, strict=True):
            self.survival.observe(offer.kinds(drafting, depth), kept)
        if choice.probe:
            self._settle_probe(offers, choice, ms)
        key = CostKey.of(len(offers), depth + 1, context, learned=runs_chain(drafting))
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

    def _expected(self, offers: Sequence[Offer], drafting: str, most: int) -> list[float]:
        """Tokens of all lanes with 0, 1, … `most` drafts each, as far as each has some."""
        lanes = [self.survival.expected(offer.kinds(drafting, most)) for offer in offers]
        if len(lanes) == 1 and len(lanes[0]) == most + 1:
            return lanes[0]
        return [sum(e[min(depth, len(e) - 1)] for e in lanes) for depth in range(most + 1)]

    def _options(
        self, offers: Sequence[Offer], context: int, barred: Collection[str]
    ) -> list[_Option]:
        """Every K in every way that drafts something of its own, plain decoding among them."""
        return [o for w in DRAFTING if w not in barred for o in self._of_way(offers, context, w)]

    def _of_way(self, offers: Sequence[Offer], context: int, drafting: str) -> Iterator[_Option]:
        most = max((o.drafted(drafting, MAX_DRAFT_TOKENS) for o in offers), default=0)
        chain, lanes = runs_chain(drafting), len(offers)
        first = CostKey.of(lanes, 1, context, learned=chain)
        expected = self._expected(offers, drafting, most)
        copies = [o.copied(drafting, MAX_DRAFT_TOKENS) for o in offers]
        any_copies = any(copies)
        for depth in [0] if drafting == "none" else range(1, most + 1):
            if drafting == "both" and not (any_copies and _continued(offers, copies, depth)):
                continue
            key = CostKey(lanes, depth + 1, first.bucket, chain)
            ms, tokens = self.costs.ms(key), expected[depth]
            gain = tokens / (key.bulk() if ms is None else ms)
            yield _Option(drafting, depth, tokens, key, ms, gain)

    def _probe(
        self, options: Sequence[_Option], best: _Option, offers: Sequence[Offer]
    ) -> Choice | None:
        """A look past the choice, if one is due and the budget pays its expected loss."""
        if self._since_probe < self._probe_every:
            return None
        ages = {
            option: age
            for option in _looks(options, best)
            if self._loss(option, best) <= self._probe_ms
            and ((age := self.costs.age(option.key)) is None or age >= self._probe_every)
        }
        if not ages:
            return None
        option = max(ages, key=lambda o: (_NEVER if ages[o] is None else ages[o], -o.draft_tokens))
        age = ages[option]
        last = "never timed" if age is None else f"last timed {age} rounds ago"
        self._probe_gain = best.gain
        reason = f"probe: {option.name(offers)}, {last}"
        return _chosen(option, reason, probe=True)

    def _loss(self, option: _Option, best: _Option) -> float:
        """Milliseconds a probe is expected to cost beyond playing the best."""
        return 0.0 if option.ms is None else max(option.ms - option.tokens / best.gain, 0.0)

    def _settle_probe(self, offers: Sequence[Offer], choice: Choice, ms: float) -> None:
        """Pay for the probe; probe less often while probes find nothing better."""
        tokens = self._expected(offers, choice.drafting, choice.draft_tokens)[-1]
        gain = self._probe_gain
        better = gain > 0 and tokens / ms > gain
        lost = ms - tokens / gain if gain > 0 else ms
        self._probe_ms = max(self._probe_ms - max(lost, 0.0), 0.0)
        longer = min(2 * self._probe_every, _PROBE_EVERY_MOST)
        self._probe_every = _PROBE_EVERY if better else longer
        self._since_probe = 0


def _continued(offers: Sequence[Offer], copies: Sequence[int], depth: int) -> bool:
    """Whether the chain goes on from a lane's copies within `depth` drafts."""
    pairs = zip(offers, copies, strict=True)
    return any(min(offer.learned, depth) > min(copied, depth) for offer, copied in pairs)


def _chosen(option: _Option, reason: str, *, probe: bool = False) -> Choice:
    return Choice(option.draft_tokens, reason, probe, option.drafting)


def _merit(option: _Option) -> tuple[float, int, int]:
    """By E/T; of equals the narrowest, and copies before the chain."""
    return option.gain, -option.draft_tokens, -DRAFTING.index(option.drafting)


def _looks(options: Sequence[_Option], best: _Option) -> list[_Option]:
    """Where a probe may look: a draft more or less, none, and every way's best and widest."""
    looks = {o for o in options if o.drafting == best.drafting and _apart(o, best) == 1}
    for drafting in DRAFTING:
        way = [o for o in options if o.drafting == drafting]
        if way:
            looks |= {max(way, key=_merit), max(way, key=lambda o: o.draft_tokens)}
    return [o for o in options if o in looks and o != best]


def _apart(one: _Option, other: _Option) -> int:
    return abs(one.draft_tokens - other.draft_tokens)


def _reason(options: Sequence[_Option], best: _Option, offers: Sequence[Offer]) -> str:
    """Why the best is: its figures beside those of what it is an alternative to.

    Short enough, with one lane, for the two lines that a panel has for it.
    """
    what, copies = best.name(offers), best.drafting == "copies"
    most = max(o.draft_tokens for o in options if o.drafting == best.drafting)
    if copies and best.draft_tokens < most and not any(offer.forced for offer in offers):
        what = f"{best.draft_tokens} of {most} copied drafts"
    others, how = options[:1], "without"
    if best.draft_tokens == 0:
        others = options[1:]
        how = f"with {max(others, key=_merit).kinds(offers)}"
    elif copies and (chains := [o for o in options if runs_chain(o.drafting)]):
        others, how = chains, "with mtp"
    return f"{what}: {best.figures()} vs {max(others, key=_merit).figures(units=False)} {how}"
