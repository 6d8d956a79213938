"""What the panels show of the turn under way, as one frozen view.

Owns the live figures that round totals do not keep: speed over time, the last copy, first-token
time, the width-one baseline. Counts nothing twice: every total comes from telemetry.RoundTotals.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from flarechat.protocol import (
    Event,
    Finished,
    ModelInfo,
    Progress,
    Round,
    Speculation,
    SpeculationSummary,
    Started,
)
from flarechat.telemetry import RoundTotals
from flarechat.ui.held import Held
from flarechat.ui.prefill import Prefill

COPIES = ("history", "context")
SPEED_WINDOW_MS = 1000.0
SPARK_STEP_MS = 250.0
SPARK_LENGTH = 64
WIDTH_BUCKETS = ((1, 1), (2, 5), (6, 8))


@dataclass(frozen=True, slots=True)
class WidthCost:
    """Rounds of one bucket of widths; speed follows from the median time."""

    label: str
    rounds: int = 0
    ms: float = 0.0
    tokens_per_round: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.tokens_per_round / self.ms if self.ms else 0.0


@dataclass(frozen=True, slots=True)
class Copies:
    """Rounds that offered copied drafts: how many, tokens kept, and the last one."""

    rounds: int = 0
    accepted: int = 0
    longest: int = 0
    last_offered: int = 0
    last_accepted: int = 0
    last_source: str = ""
    last_origin: str = ""

    def after(self, played: Round) -> Copies:
        """These figures with one more round counted."""
        offered = sum(source in COPIES for source in played.draft_sources)
        if not offered:
            return self
        accepted = sum(source in COPIES for source in played.draft_sources[: played.accepted])
        source = next(source for source in played.draft_sources if source in COPIES)
        return Copies(
            rounds=self.rounds + 1,
            accepted=self.accepted + accepted,
            longest=max(self.longest, accepted),
            last_offered=offered,
            last_accepted=accepted,
            last_source=source,
            last_origin=played.origin,
        )


@dataclass(frozen=True, slots=True)
class View:
    """Everything the panels read, fixed at one moment.

    `reached[i]` counts rounds that offered a draft at depth i + 1 and kept all before it. `off`
    says why nothing drafts, `mtp_off` why the model's head does not; "" where they do. `lanes`
    is how many answers the last round was played for.
    """

    summary: SpeculationSummary = field(default_factory=SpeculationSummary)
    now: float = 0.0
    turn: float = 0.0
    plain: float = 0.0
    speeds: tuple[float, ...] = ()
    first_token_ms: float = 0.0
    prefill: float = 0.0
    prompt: Prefill = field(default_factory=Prefill)
    costs: tuple[WidthCost, ...] = ()
    reached: tuple[int, ...] = ()
    copies: Copies = field(default_factory=Copies)
    reason: str = ""
    off: str = ""
    mtp_off: str = ""
    lanes: int = 1
    held: Held | None = None

    @property
    def gain(self) -> float:
        """Turn speed over the speed at width one; 0 until width one was measured."""
        return self.turn / self.plain if self.plain else 0.0


def width_costs(totals: RoundTotals) -> tuple[WidthCost, ...]:
    """The rounds of each width bucket, its median time and its yield."""
    costs = []
    for low, high in WIDTH_BUCKETS:
        label = str(low) if low == high else f"{low}-{high}" if low == 2 else f"{low}+"
        widths = [width for width in totals.width_ms if low <= width <= high]
        samples = sorted(ms for width in widths for ms in totals.width_ms[width])
        if not samples:
            costs.append(WidthCost(label))
            continue
        emitted = sum(totals.width_emitted[width] for width in widths)
        half = len(samples) // 2
        middle = samples[half] if len(samples) % 2 else (samples[half - 1] + samples[half]) / 2
        costs.append(WidthCost(label, len(samples), middle, emitted / len(samples)))
    return tuple(costs)


def why_no_mtp(
    model: ModelInfo | None, speculation: Speculation, *, wanted: bool, refused: bool
) -> str:
    """Why no MTP head drafts for a request, in few words; "" when one does or is still to come.

    `wanted` says whether the engine was started with MTP, `refused` whether it had something to
    say about a head it left out.
    """
    if model is not None and model.mtp is None:
        if not wanted:
            return "off (--no-mtp)"
        return "refused, see /show info" if refused else "no MTP file for this model"
    return "" if speculation.mtp else "off (/set mtp on)"


def why_off(speculation: Speculation, mtp_off: str) -> str:
    """Why a request cannot draft at all, in few words; "" when it can."""
    if speculation.draft_tokens == 0:
        return "draft tokens set to 0"
    if speculation.history_drafts or not mtp_off:
        return ""
    return "history off, no MTP head" if speculation.mtp else "MTP and history are off"


class Meter:
    """Follows the events of one answer, from when it was asked for; `view` freezes them with the
    given totals. `plain` is the speed at width one, measured here or before; `forced`, `removed`
    and `redrawn` are what a grammar did to the rounds.
    """

    def __init__(self, clock: Callable[[], float], plain: float = 0.0) -> None:
        self._clock = clock
        self.plain = plain
        self._sent_at = clock()
        self._started: Started | None = None
        self._started_at = 0.0
        self._prefill = self._first_token_ms = 0.0
        self.prompt = Prefill()
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_ms = 0.0
        self._speeds: deque[float] = deque(maxlen=SPARK_LENGTH)
        self._step_ms, self._step_tokens = 0.0, 0
        self._copies = Copies()
        self._reached: Counter[int] = Counter()
        self._reason, self._lanes = "", 1
        self.forced = self.removed = self.redrawn = 0

    def note(self, event: Event) -> None:
        """Take in one event of the request under way."""
        if isinstance(event, Started):
            self._started, self._started_at = event, self._clock()
            restored, place = event.restored_tokens, event.restored_from
            self.prompt = Prefill(event.prompt_tokens, restored, place)
        elif isinstance(event, Progress):
            spent = self._clock() - self._started_at
            self._compute(event.done - self.prompt.restored)
            self._prefill = self.prompt.computed / spent if spent > 0 else 0.0
        elif isinstance(event, Round):
            self._note_round(event)
        elif isinstance(event, Finished):
            self._first_token_ms = event.timings.first_token_ms
            fresh = event.usage.prompt_tokens - event.usage.restored_tokens
            ms = event.timings.prefill_ms
            self._prefill = 1e3 * fresh / ms if ms else 0.0

    def _compute(self, computed: int) -> None:
        self.prompt = replace(self.prompt, computed=max(computed, 0))

    def _note_round(self, played: Round) -> None:
        if self.prompt.computed != self.prompt.fresh:
            self._compute(self.prompt.fresh)
        if not self._first_token_ms:
            self._first_token_ms = 1e3 * (self._clock() - self._sent_at)
        self._recent.append((played.ms, played.emitted))
        self._recent_ms += played.ms
        while len(self._recent) > 1 and self._recent_ms - self._recent[0][0] >= SPEED_WINDOW_MS:
            self._recent_ms -= self._recent.popleft()[0]
        self._step_ms += played.ms
        self._step_tokens += played.emitted
        if self._step_ms >= SPARK_STEP_MS:
            self._speeds.append(1e3 * self._step_tokens / self._step_ms)
            self._step_ms, self._step_tokens = 0.0, 0
        self._reached.update(range(1, min(played.offered, played.accepted + 1) + 1))
        self._copies = self._copies.after(played)
        self._reason, self._lanes = played.reason, played.lanes
        self.forced += played.forced
        self.removed += played.removed
        self.redrawn += played.redrawn

    @property
    def prefill(self) -> float:
        """Prompt tokens computed a second; 0 until measured."""
        return self._prefill

    @property
    def speculation(self) -> Speculation | None:
        """How the request under way, or the last one, may draft; None before the first."""
        return self._started.speculation if self._started else None

    def view(self, totals: RoundTotals) -> View:
        """The figures of this moment, over `totals`."""
        costs = width_costs(totals)
        if costs[0].rounds:
            self.plain = costs[0].tokens_per_second
        tokens = sum(emitted for _, emitted in self._recent)
        return View(
            summary=totals.summary(),
            now=1e3 * tokens / self._recent_ms if self._recent_ms else 0.0,
            turn=totals.tokens_per_second(),
            plain=self.plain,
            speeds=tuple(self._speeds),
            first_token_ms=self._first_token_ms,
            prefill=self._prefill,
            prompt=self.prompt,
            costs=costs,
            reached=tuple(self._reached[d] for d in sorted(self._reached)),
            copies=self._copies,
            reason=self._reason,
            lanes=self._lanes,
        )
