"""RoundPlayer: stages drafts, asks the controller, builds the plan and has one round played.

Owns the host's half of a round: `launch` sends it off, `collect` waits for its frame. A second one
may be launched in between. Knows answers' tokens and settings, no queue and no text.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flarechat.engine.answer import Answer, Played
from flarechat.engine.contracts import Drafter, Executor
from flarechat.engine.controller import Choice, Controller
from flarechat.engine.frame import Frame, LaneRecord, read
from flarechat.engine.judging import judged
from flarechat.engine.offer import Offer, runs_chain
from flarechat.engine.plan import LANE_COUNTS, LawShape, Plan, extent_for
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.protocol import SPECULATIVE_TOKENS, TokenLogprob

if TYPE_CHECKING:
    from torch import Tensor

RECALLED = "the same prompt was answered before"


def lanes_for(answers: int) -> int:
    """The lane count in which so many answers are played."""
    return next(n for n in LANE_COUNTS if n >= answers)


@dataclass(frozen=True, slots=True)
class Flight:
    """A round under way: its lanes' answers and offers, why it is what it is, and its frame.

    `began` is when the host set about it; `settled` is False where something else, such as a
    prefill, ran just before it. `heard` is what its pass gave for the pending tokens of its lanes,
    if any of them began with it; the pass of one that was `recalled` was made before.
    """

    answers: tuple[Answer, ...]
    offers: tuple[Offer, ...]
    choice: Choice
    frame: Frame
    began: float
    settled: bool
    heard: tuple[Tensor, Tensor] | None = None
    recalled: bool = False

    def offered(self) -> Sequence[Offer]:
        """The offers as they were put up, which is known once the rounds before are read."""
        if all(offer.expects is None for offer in self.offers):
            return self.offers
        pairs = zip(self.offers, self.answers, strict=True)
        return [offer.where(answer.context, answer.pending) for offer, answer in pairs]


class LaneError(Exception):
    """One answer's drafts could not be staged; nothing was launched."""

    def __init__(self, answer: Answer, failure: Exception) -> None:
        super().__init__(str(failure))
        self.answer, self.failure = answer, failure


class RoundPlayer:
    """Plays rounds of up to four lanes over one slot pool, of at most `capacity` rows each.

    With `plain_start` the first round of an answer offers no drafts, so that its slot stands right
    behind the prompt once.
    """

    def __init__(
        self, pool: SlotPool, drafter: Drafter, executor: Executor, controller: Controller,
        spell: Callable[[int], str], capacity: int = SPECULATIVE_TOKENS, *,
        plain_start: bool = False,
    ) -> None:  # fmt: skip
        self.plain_start = plain_start
        self.pool, self.drafter, self.executor = pool, drafter, executor
        self.controller, self.spell, self.capacity = controller, spell, capacity
        self.flights: deque[Flight] = deque()
        self._last_shape: tuple[int, int, bool, int] | None = None
        self._disturbed, self._ended = False, 0.0

    def unsettle(self) -> None:
        """Something else ran (a prefill): the next round's time is not an ordinary sample."""
        self._disturbed = True

    def due(self, playing: Sequence[Answer]) -> list[Answer]:
        """The answers that a round may be launched for now: none while they must be read first.

        A round that is under way may end an answer, or take it further; the next can go on from
        it on the device unless the host has to judge what it said, to look for copies of it that do
        not go on from its own, or to learn what a probe cost. Nor while the budget could narrow it:
        a round is as wide as it would be if those before were read.
        """
        if not self.flights:
            return list(playing)
        if len(self.flights) >= self.executor.depth or self.flights[-1].choice.probe:
            return []
        return [] if any(self._holds_up(answer) for answer in playing) else list(playing)

    def launch(self, answers: Sequence[Answer]) -> None:
        """Stage and choose one round over `answers`, and have it played. LaneError where one of
        them cannot be staged."""
        began = time.perf_counter()
        rows = self.capacity // lanes_for(len(answers))
        offers = tuple(self._staged(answer, rows - 1) for answer in answers)
        known = max(a.context for a in answers)
        context = max(a.context + self._out(a) for a in answers)
        choice = self._choose(answers, offers, context)
        plan = self._plan(answers, choice, known + self._unread())
        frame = self.executor.play(self._lanes(answers), plan)
        heard = self.executor.heard(len(answers)) if any(map(self._begins, answers)) else None
        settled, self._disturbed = not self._disturbed, False
        self.flights.append(Flight(tuple(answers), offers, choice, frame, began, settled, heard))

    def recall(self, answer: Answer, hidden: Tensor, logits: Tensor) -> None:
        """Have the first round of an answer played on what a pass over its pending token gave
        before: hidden [F] and logits [V]. Nothing is drafted, and nothing learned of its time."""
        began = time.perf_counter()
        offers, choice = (self._stage(answer, 0),), Choice(0, RECALLED)
        plan = self._plan([answer], choice, answer.context)
        lanes = Lanes(self.pool, (answer.slot,))
        frame = self.executor.recall(lanes, plan, hidden, logits)
        self.flights.append(Flight((answer,), offers, choice, frame, began, False, recalled=True))
        self.unsettle()

    def collect(self) -> list[tuple[Answer, Played]]:
        """Wait for the oldest round under way and have it judged; the answers and what they got.

        Its time counts drafting, the pass, acceptance, commit and judging, from when the round
        before was over if it was launched sooner.
        """
        flight = self.flights.popleft()
        answers, choice = flight.answers, flight.choice
        read_of = zip(answers, read(flight.frame), strict=False)
        judgements = [judged(self.executor, answer, record) for answer, record in read_of]
        records = [judgement.record for judgement in judgements]
        offers = flight.offered()
        began, self._ended = max(flight.began, self._ended), time.perf_counter()
        ms = 1e3 * (self._ended - began)
        if not flight.recalled:
            self._learn(flight, offers, records, ms)
        return [
            (
                answer,
                Played(
                    record,
                    offers[lane],
                    choice if offers[lane] is flight.offers[lane] else _broken_off(choice),
                    ms,
                    len(answers),
                    self._logprobs(flight.frame, lane, record, answer.request.logprobs),
                    flight.frame.repair_ms,
                    self._heard(flight, lane, answer),
                    judgement.redrawn,
                    judgement.failure,
                ),
            )
            for lane, (answer, record, judgement) in enumerate(
                zip(answers, records, judgements, strict=True)
            )
        ]

    def under_way(self, answer: Answer) -> bool:
        """Whether a round that was not read yet names the answer."""
        return any(answer in flight.answers for flight in self.flights)

    def _begins(self, answer: Answer) -> bool:
        """Whether no round of the answer was played or is under way."""
        return not answer.generated and not self.under_way(answer)

    def _heard(self, flight: Flight, lane: int, answer: Answer) -> tuple[Tensor, Tensor] | None:
        """What a flight heard of a lane whose answer began with it."""
        if flight.heard is None or answer.generated:
            return None
        hidden, logits = flight.heard
        return hidden[lane], logits[lane]

    def _out(self, answer: Answer) -> int:
        """Rounds under way that name the answer; each brings it a token at least, or its end."""
        return sum(answer in flight.answers for flight in self.flights)

    def _unread(self) -> int:
        """The most tokens that rounds under way can bring an answer."""
        return sum(flight.choice.draft_tokens + 1 for flight in self.flights)

    def _holds_up(self, answer: Answer) -> bool:
        """Whether the rounds under way have to be read before the answer's next is launched."""
        if answer.judged or answer.left <= self._unread() + answer.request.speculation.draft_tokens:
            return True
        return self.drafter.awaits(answer.slot, self._copied(answer))

    def _copied(self, answer: Answer) -> int:
        """Drafts of the answer in the one round under way, if they are copies and nothing else."""
        if len(self.flights) != 1 or answer not in self.flights[0].answers:
            return 0
        flight = self.flights[0]
        offer = flight.offers[flight.answers.index(answer)]
        how = flight.choice.drafting, flight.choice.draft_tokens
        copied = offer.copied(*how)
        return copied if copied == offer.drafted(*how) else 0

    def _staged(self, answer: Answer, most: int) -> Offer:
        try:
            return self._stage(answer, most)
        except Exception as failure:
            raise LaneError(answer, failure) from failure

    def _stage(self, answer: Answer, most: int) -> Offer:
        most = min(most, answer.request.speculation.draft_tokens, answer.left - 1)
        if self.plain_start and self._begins(answer):
            most = 0
        forced = answer.forced(most) if most > 0 else ()
        copied, legal = self._copied(answer), answer.legal
        return self.drafter.stage(answer.slot, most, copied, forced=forced, legal=legal)

    def _choose(self, answers: Sequence[Answer], offers: Sequence[Offer], context: int) -> Choice:
        pairs = zip((answer.request.speculation for answer in answers), offers, strict=True)
        drafting = [s for s, offer in pairs if s.copies or s.learned or offer.forced]
        if not drafting:
            return Choice(0, "drafting is off")
        adaptive = all(s.adaptive for s in drafting)
        return self.controller.choose(offers, context, adaptive=adaptive)

    def _plan(self, answers: Sequence[Answer], choice: Choice, context: int) -> Plan:
        """The round's plan; no lane has consumed more than `context` tokens before it."""
        matches = {answer.match for answer in answers}
        acceptance = "mixed" if len(matches) > 1 else ("match" if matches.pop() else "ratio")
        return Plan(
            choice.draft_tokens,
            extent_for(context + choice.draft_tokens + 1, self.pool.context + SCRATCH_ROWS),
            LawShape.of((a.request.sampling for a in answers), self.pool.vocabulary),
            acceptance,
            max(a.request.logprobs for a in answers),
            choice.drafting,
            self.absorbs(answers),
            any(answer.amendable for answer in answers),
        )

    def absorbs(self, answers: Sequence[Answer]) -> bool:
        """Whether the drafter's own state is kept up in a pass over these answers."""
        learned = any(answer.request.speculation.learned for answer in answers)
        return learned or self.drafter.always_absorbs

    def _lanes(self, answers: Sequence[Answer]) -> Lanes:
        """Lanes for the answers, filled up to a lane count with slots that are not playing."""
        slots = [answer.slot for answer in answers]
        count = lanes_for(len(slots))
        idle = [slot for slot in range(self.pool.slots) if slot not in slots]
        return Lanes(self.pool, (*slots, *idle[: count - len(slots)]))

    def _learn(
        self, flight: Flight, offers: Sequence[Offer], records: Sequence[LaneRecord], ms: float
    ) -> None:
        """What the round tells the controller; lanes that had ended before it tell nothing."""
        choice, lanes = flight.choice, len(offers)
        played = [i for i in range(lanes) if records[i].emitted]
        context = max(flight.answers[i].context for i in played) if played else 0
        shape = (lanes, choice.draft_tokens, runs_chain(choice.drafting), context // 512)
        settled = flight.settled and self._last_shape == shape
        self._last_shape = shape
        if played:
            offers = [o if i in played else Offer() for i, o in enumerate(offers)]
            accepted = [r.accepted for r in records]
            self.controller.record(offers, choice, accepted, ms, context, settled=settled)

    def _logprobs(
        self, frame: Frame, lane: int, record: LaneRecord, alternatives: int
    ) -> tuple[TokenLogprob, ...]:
        """The lane's emitted tokens with their log-probabilities, as asked."""
        if frame.logprobs is None or not alternatives:
            return ()
        chosen = frame.logprobs.chosen[lane].tolist()
        top, ids = frame.logprobs.top[lane].tolist(), frame.logprobs.top_ids[lane].tolist()
        return tuple(
            TokenLogprob(
                id=token,
                token=self.spell(token),
                logprob=chosen[row],
                top=tuple(
                    TokenLogprob(id=i, token=self.spell(i), logprob=value)
                    for i, value in list(zip(ids[row], top[row], strict=True))[:alternatives]
                ),
            )
            for row, token in enumerate(record.tokens)
        )


def _broken_off(choice: Choice) -> Choice:
    """The choice as a lane sees it whose copy did not go on."""
    if choice.drafting not in ("copies", "both"):
        return choice
    return replace(choice, reason="the copy broke off in the round before")
