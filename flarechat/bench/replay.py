"""Plays recorded rounds again under other widths, without a model. Owns the simulation.

Every recorded round is a stretch of text: the drafts offered, how many of them were right, and
one token of the target's own. A narrower policy walks the same stretch in several rounds, in
which a draft is as right as it was; a wider one sees no more than what was offered. So nothing
about acceptance is guessed: what the MTP chain would have put where a copy was recorded is not
known, and no policy asks for it. Only times are, as the median of the recorded rounds of a width
with the chain and without, in a straight line between widths that were recorded. A recording of
fixed width shows most; one of an adaptive width hides what lies past the widths it chose, and
the report counts those rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console

from flarechat.bench.recording import Trace
from flarechat.bench.report import table
from flarechat.engine.controller import Choice, Controller
from flarechat.engine.offer import FORCED, LEARNED, Offer, runs_chain
from flarechat.errors import UsageError
from flarechat.protocol import Round
from flarechat.telemetry import RoundTotals

LIVE = "as recorded"
CONTROLLER = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCost:
    """What a policy would have cost; the tokens are the same for all."""

    policy: str
    rounds: int
    tokens: int
    ms: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return 1e3 * self.tokens / self.ms if self.ms else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One label's rounds under every policy.

    `regret` is how much longer the recorded choice took than the best fixed width, as a share;
    negative when it was better than any. `hidden` rounds accepted all they offered and were
    narrower than the widest, so a wider policy might have gained there unseen.
    """

    label: str
    measured_ms: float
    live: PolicyCost
    fixed: tuple[PolicyCost, ...]
    controller: PolicyCost
    best_fixed: str
    regret: float
    hidden: int


class Policy(Protocol):
    """Chooses K and a way of drafting for an offer, and may learn from what came of it."""

    def choose(self, offer: Offer, context: int) -> Choice:
        """K, at most what is offered."""

    def learn(self, offer: Offer, choice: Choice, accepted: int, ms: float, context: int) -> None:
        """A round was played."""


@dataclass(frozen=True, slots=True)
class FixedWidth:
    """Every draft on offer, up to `draft_tokens`."""

    draft_tokens: int

    def choose(self, offer: Offer, context: int) -> Choice:
        drafts, copied = (f("both", self.draft_tokens) for f in (offer.drafted, offer.copied))
        copies = "copies" if drafts == copied else "both"
        drafting = (copies if copied else "mtp") if drafts else "none"
        return Choice(drafts, "fixed width", drafting=drafting)

    def learn(self, offer: Offer, choice: Choice, accepted: int, ms: float, context: int) -> None:
        """Nothing to learn."""


class LiveController:
    """The engine's own controller, learning as it would have."""

    def __init__(self) -> None:
        self.controller = Controller()
        self._last: tuple[int, bool] | None = None

    def choose(self, offer: Offer, context: int) -> Choice:
        return self.controller.choose([offer], context, barred=("mtp",) if offer.count else ())

    def learn(self, offer: Offer, choice: Choice, accepted: int, ms: float, context: int) -> None:
        shape = (choice.draft_tokens, runs_chain(choice.drafting))
        settled = shape == self._last
        self.controller.record([offer], choice, [accepted], ms, context, settled=settled)
        self._last = shape


class Prices:
    """Milliseconds of a round by width, with the MTP chain and without, from recorded rounds."""

    def __init__(self, rounds: Iterable[Round]) -> None:
        plain, chain = RoundTotals(), RoundTotals()
        for played in rounds:
            (chain if LEARNED in played.draft_sources else plain).add(played)
        if 1 not in plain.width_ms:
            raise UsageError(
                "The recording holds no plain round, so narrow widths have no time.",
                "Record one beside it, with `flarechat bench --arms off,fixed --json FILE`.",
            )
        self.plain = _medians(plain)
        self.chain = {1: self.plain[1], **_medians(chain)}

    def ms(self, width: int, *, chain: bool = False) -> float:
        """The median of this width, or a line between its recorded neighbours; past the widest
        that was recorded with the chain, or without, what the other took."""
        own, other = (self.chain, self.plain) if chain else (self.plain, self.chain)
        median = own if width <= max(own) else other
        if width in median:
            return median[width]
        below = max(w for w in median if w < width)
        above = min(w for w in median if w > width)
        share = (width - below) / (above - below)
        return median[below] * (1 - share) + median[above] * share


def _medians(totals: RoundTotals) -> dict[int, float]:
    return {width: totals.cost_ms(width) or 0.0 for width in sorted(totals.width_ms)}


def replay_recording(traces: Sequence[Trace]) -> tuple[Replay, ...]:
    """A replay for every label that offered drafts; prices come from all rounds of the file."""
    prices = Prices(played for trace in traces for played in trace.rounds)
    labels = dict.fromkeys(trace.label for trace in traces)
    replays = []
    for label in labels:
        rounds = [played for trace in traces if trace.label == label for played in trace.rounds]
        if any(played.offered for played in rounds):
            replays.append(_replay(label, rounds, prices))
    if not replays:
        raise UsageError(
            "The recording holds no offered draft, so every policy plays the same rounds.",
            "Record a turn with drafts, for example one that edits or repeats a text.",
        )
    return tuple(replays)


def _replay(label: str, rounds: Sequence[Round], prices: Prices) -> Replay:
    widest = max(played.offered for played in rounds)
    fixed = tuple(play(f"width {k + 1}", FixedWidth(k), rounds, prices) for k in range(widest + 1))
    best = min(fixed, key=lambda policy: policy.ms)
    live = PolicyCost(
        policy=LIVE,
        rounds=len(rounds),
        tokens=sum(played.accepted + 1 for played in rounds),
        ms=sum(_recorded_ms(played, prices) for played in rounds),
    )
    return Replay(
        label=label,
        measured_ms=sum(played.ms for played in rounds),
        live=live,
        fixed=fixed,
        controller=play(CONTROLLER, LiveController(), rounds, prices),
        best_fixed=best.policy,
        regret=live.ms / best.ms - 1,
        hidden=sum(0 < played.offered == played.accepted < widest for played in rounds),
    )


def play(name: str, policy: Policy, rounds: Sequence[Round], prices: Prices) -> PolicyCost:
    """Walk every stretch under a policy."""
    count, tokens, ms = 0, 0, 0.0
    for played in rounds:
        walked, took = walk(played, policy, prices)
        count, tokens, ms = count + walked, tokens + played.accepted + 1, ms + took
    return PolicyCost(policy=name, rounds=count, tokens=tokens, ms=ms)


def walk(played: Round, policy: Policy, prices: Prices) -> tuple[int, float]:
    """Rounds and milliseconds that a policy needs for the text of one recorded round."""
    drafts, right = played.draft_sources, played.accepted
    left, context, count, ms = right + 1, played.context, 0, 0.0
    while left > 0:
        offer = _offer(drafts, played.match_length)
        choice = policy.choose(offer, context)
        accepted = min(choice.draft_tokens, right)
        took = prices.ms(choice.draft_tokens + 1, chain=runs_chain(choice.drafting))
        policy.learn(offer, choice, accepted, took, context)
        walked = accepted + 1
        drafts, right = drafts[walked:], max(right - walked, 0)
        left, context, count, ms = left - walked, context + walked, count + 1, ms + took
    return count, ms


def _offer(drafts: Sequence[str], match_length: int) -> Offer:
    """What was offered of drafts with these sources: forced ones, copies, then the chain's."""
    copied, forced = sum(source != LEARNED for source in drafts), drafts.count(FORCED)
    learned = len(drafts) if copied < len(drafts) else 0
    if copied == forced:
        return Offer(count=forced, learned=learned, forced=forced)
    return Offer(drafts[forced], copied, match_length, learned=learned, forced=forced)


def _recorded_ms(played: Round, prices: Prices) -> float:
    return prices.ms(played.width, chain=LEARNED in played.draft_sources)


def print_replay(out: Console, replays: Sequence[Replay]) -> None:
    """A table and a verdict for every label."""
    columns = ("policy", "rounds", "tok/round", "ms", "tok/s", "against recorded")
    for replay in replays:
        made = table(f"Replay of {replay.label}", columns, left=1)
        for policy in (replay.live, *replay.fixed, replay.controller):
            made.add_row(
                policy.policy, str(policy.rounds), f"{policy.tokens / policy.rounds:.2f}",
                f"{policy.ms:.0f}", f"{policy.rate:.1f}", f"{replay.live.ms / policy.ms:.2f}x",
            )  # fmt: skip
        out.print(made)
        for line in verdict(replay):
            out.print(line)


def verdict(replay: Replay) -> list[str]:
    """The regret in words, and what the figures rest on."""
    share = f"{abs(replay.regret):.1%}"
    side = f"{share} slower than" if replay.regret > 0 else f"{share} faster than"
    lines = [
        f"Regret: the recorded choice was {'as fast as' if share == '0.0%' else side} "
        f"the best fixed one, {replay.best_fixed}.",
        f"Times are medians by width; the rounds really took {replay.measured_ms:.0f} ms.",
    ]
    if replay.hidden:
        lines.append(
            f"{replay.hidden} rounds accepted every draft of less than the widest offer: a wider "
            "policy may have gained there, which this recording cannot tell."
        )
    return lines
