"""RoundPlayer: stages drafts, asks the controller, builds the plan and has one round played.

Owns the host's half of a round. Knows answers' tokens and settings, no queue and no text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from flarechat.engine.answer import Answer, Played
from flarechat.engine.contracts import Drafter, Executor
from flarechat.engine.controller import Choice, Controller
from flarechat.engine.frame import Frame, LaneRecord, read
from flarechat.engine.offer import Offer, runs_chain
from flarechat.engine.plan import LawShape, Plan, extent_for
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.protocol import TokenLogprob

LANE_COUNTS = (1, 2, 4)


class RoundPlayer:
    """Plays rounds of up to four lanes over one slot pool."""

    def __init__(
        self, pool: SlotPool, drafter: Drafter, executor: Executor, controller: Controller,
        spell: Callable[[int], str],
    ) -> None:  # fmt: skip
        self.pool, self.drafter, self.executor = pool, drafter, executor
        self.controller, self.spell = controller, spell
        self._last_shape: tuple[int, int, bool, int] | None = None

    def unsettle(self) -> None:
        """Something else ran (a prefill): the next round's time is not an ordinary sample."""
        self._last_shape = None

    def play(self, answers: Sequence[Answer]) -> list[Played]:
        """One round; the time counts drafting, the pass, acceptance and commit."""
        began = time.perf_counter()
        offers = [self._stage(answer) for answer in answers]
        context = max(len(a.prompt) + len(a.generated) - 1 for a in answers)
        choice = self._choose(answers, offers, context)
        frame = self.executor.play(self._lanes(answers), self._plan(answers, choice, context))
        records = read(frame)[: len(answers)]
        ms = 1e3 * (time.perf_counter() - began)
        self._learn(offers, choice, records, ms, context)
        return [
            Played(
                record,
                offers[lane],
                choice,
                ms,
                len(answers),
                self._logprobs(frame, lane, record, answers[lane].request.logprobs),
                frame.repair_ms,
            )
            for lane, record in enumerate(records)
        ]

    def _stage(self, answer: Answer) -> Offer:
        most = answer.request.speculation.draft_tokens
        return self.drafter.stage(answer.slot, min(most, answer.left - 1))

    def _choose(self, answers: Sequence[Answer], offers: Sequence[Offer], context: int) -> Choice:
        speculations = [answer.request.speculation for answer in answers]
        drafting = [s for s in speculations if s.copies or s.learned]
        if not drafting:
            return Choice(0, "drafting is off")
        adaptive = all(s.adaptive for s in drafting)
        return self.controller.choose(offers, context, adaptive=adaptive)

    def _plan(self, answers: Sequence[Answer], choice: Choice, context: int) -> Plan:
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
        )

    def absorbs(self, answers: Sequence[Answer]) -> bool:
        """Whether the drafter's own state is kept up in a pass over these answers."""
        learned = any(answer.request.speculation.learned for answer in answers)
        return learned or self.drafter.always_absorbs

    def _lanes(self, answers: Sequence[Answer]) -> Lanes:
        """Lanes for the answers, filled up to a lane count with slots that are not playing."""
        slots = [answer.slot for answer in answers]
        count = next(n for n in LANE_COUNTS if n >= len(slots))
        idle = [slot for slot in range(self.pool.slots) if slot not in slots]
        return Lanes(self.pool, (*slots, *idle[: count - len(slots)]))

    def _learn(
        self, offers: Sequence[Offer], choice: Choice, records: Sequence[LaneRecord], ms: float,
        context: int,
    ) -> None:  # fmt: skip
        chain = runs_chain(choice.drafting)
        shape = (len(offers), choice.draft_tokens, chain, context // 512)
        accepted = [record.accepted for record in records]
        settled = self._last_shape == shape
        self.controller.record(offers, choice, accepted, ms, context, settled=settled)
        self._last_shape = shape

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
