"""Engine: serves requests on one loaded model, a chunk of prefill and a round at a time.

Owns the queue, the slots' bookings and the order of work. It decides nothing about tokens (the
page does) and nothing about widths (the controller does).
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from flarechat.engine.answer import Answer, Emit, Played
from flarechat.engine.bookings import Bookings
from flarechat.engine.contracts import Drafter, Executor
from flarechat.engine.controller import Controller
from flarechat.engine.grammar import Vocabulary
from flarechat.engine.grammars import Grammars
from flarechat.engine.keeper import Keeper
from flarechat.engine.language import Language
from flarechat.engine.plan import Plan, extent_for
from flarechat.engine.player import LaneError, RoundPlayer
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.engine.snapshot_tree import Store
from flarechat.errors import EngineError, FlarechatError
from flarechat.protocol import (
    SPECULATIVE_TOKENS,
    ErrorInfo,
    Finished,
    Progress,
    Request,
    Started,
)

PREFILL_CHUNK = 256
# With nothing to do but to wait for a grammar, the engine looks for commands so often.
_WAIT_S = 0.02


class Engine:
    """One model serving up to `pool.slots` requests at once; `step` does the next bit of work."""

    def __init__(
        self, drafter: Drafter, executor: Executor, pool: SlotPool,
        language: Language, controller: Controller, emit: Emit, keeper: Keeper,
        capacity: int = SPECULATIVE_TOKENS,
    ) -> None:  # fmt: skip
        self.drafter, self.executor, self.pool = drafter, executor, pool
        self.language, self.controller, self.emit = language, controller, emit
        self.bookings = Bookings(pool, drafter, executor, keeper)
        self.residents = self.bookings.residents
        self.waiting: deque[Request] = deque()
        self.prefilling: deque[Answer] = deque()
        self.playing: list[Answer] = []
        vocabulary = Vocabulary(language.tokenizer, pool.vocabulary, language.eos)
        self.grammars = Grammars(vocabulary, language.form, self.waiting)
        spell = language.tokenizer.token
        self.player = RoundPlayer(
            pool, drafter, executor, controller, spell, capacity, plain_start=keeper.plain_start
        )

    # A process begins and ends.

    @property
    def store(self) -> Store | None:
        """Where snapshots lie beside memory, if anywhere."""
        return self.bookings.keeper.store

    def begin(self) -> None:
        """Look through the snapshots on disk, behind what comes next."""
        if self.store is not None:
            self.store.begin()

    def close(self, seconds: float) -> bool:
        """Write the snapshots that are still to be written, for so long at most; whether all of
        them were."""
        return self.store is None or self.store.close(seconds)

    # Requests come and go.

    def submit(self, request: Request) -> None:
        """Queue a request; its grammar is made meanwhile."""
        self.waiting.append(request)
        self.grammars.begin(request)

    def cancel(self, request: str) -> None:
        """End a request now; what it emitted stays, rounds that are under way included."""
        for answer in (*self.playing, *self.prefilling):
            if answer.request.id == request:
                if self.player.under_way(answer):
                    self._drain()
                if answer.reason is None:
                    answer.reason = "cancelled"
                    self._close(answer)
        for queued in [r for r in self.waiting if r.id == request]:
            self.waiting.remove(queued)
            self._refuse(queued, None)

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self.waiting or self.prefilling or self.playing or self.player.flights)

    def step(self) -> None:
        """Admit what fits, prefill one chunk, launch the rounds that may be, read the oldest.

        A round under way is read before a prompt is set about: its time is its own, and its text
        does not wait for the prompt.
        """
        if self.prefilling or (self._next() and self._free_slots()):
            self._drain()
        self._admit()
        if not (self.prefilling or self.playing or self.player.flights):
            self.grammars.wait(self.waiting, _WAIT_S)
        if self.prefilling:
            self._guarded(self._prefill_chunk, [self.prefilling[0]])
        while answers := self.player.due(self.playing):
            self._guarded(partial(self.player.launch, answers), answers)
        self._collect()

    def _guarded(self, work: Callable[[], None], concerned: Sequence[Answer]) -> None:
        """Run a piece of work; its failure ends the requests concerned and nothing else, once
        the rounds that were under way are read. That of one lane ends its request alone."""
        try:
            work()
        except LaneError as error:
            self._drain()
            self._fail([error.answer], error.failure)
        except Exception as failure:
            self._drain()
            self._fail(concerned, failure)

    def _fail(self, concerned: Sequence[Answer], failure: Exception) -> None:
        error = ErrorInfo.of(_told("in the middle of an answer", failure))
        for answer in concerned:
            if answer in self.playing or answer in self.prefilling:
                answer.reason = "error"
                self._close(answer, error)

    def _drain(self) -> None:
        """Read every round under way."""
        while self.player.flights:
            self._collect()

    def _collect(self) -> None:
        """Read the oldest round under way: what it brought becomes final. One that failed ends
        its requests, a lane that cannot be read its own; what later rounds bring them is not
        theirs any more."""
        if not self.player.flights:
            return
        concerned = self.player.flights[0].answers
        try:
            collected = self.player.collect()
        except Exception as failure:
            self._fail(concerned, failure)
            return
        for answer, played in collected:
            try:
                if answer in self.playing:
                    self._settle(answer, played)
            except Exception as failure:
                self._fail([answer], failure)

    def _admit(self) -> None:
        while (request := self._next()) and (free := self._free_slots()):
            self.waiting.remove(request)
            try:
                prompt, begun = self.language.prompt(request, self.pool.context - 1)
                self._open(request, prompt, begun, free)
            except Exception as failure:
                self._refuse(request, _told("at the message", failure))

    def _next(self) -> Request | None:
        """The first request that waits for nothing but a slot."""
        return next(filter(self.grammars.ready, self.waiting), None)

    def _free_slots(self) -> list[int]:
        taken = {answer.slot for answer in (*self.prefilling, *self.playing)}
        taken |= {answer.slot for flight in self.player.flights for answer in flight.answers}
        return [slot for slot in range(self.pool.slots) if slot not in taken]

    def _open(self, request: Request, prompt: list[int], begun: int, free: list[int]) -> None:
        since, asked = time.perf_counter(), len(prompt) - begun
        grammar = self.grammars.judge(request, prompt[:asked], prompt[asked:])
        slot, restored, place = self.bookings.claim(free, prompt, self._moving())
        sampling, speculation = request.sampling, request.speculation
        auto = sampling.seed is not None or sampling.temperature == 0
        match = speculation.acceptance == "match" or (speculation.acceptance == "auto" and auto)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        budget = min(request.max_tokens, self.pool.context - len(prompt))
        answer = Answer(
            request, slot, prompt, budget=budget, restored=restored, match=match, seed=seed,
            eos=self.language.eos, tokenizer=self.language.tokenizer, begun=begun, since=since,
            grammar=grammar, form=self.language.form() if request.offered else None,
        )  # fmt: skip
        if self.bookings.keeper.tree.budget:
            answer.opening = self.language.opening(request, prompt)
        self.bookings.begin(answer)
        if request.controller:
            self.controller.load(request.controller)
        self.prefilling.append(answer)
        self.emit(
            Started(
                request=request.id,
                prompt_tokens=len(prompt),
                restored_tokens=restored,
                restored_from=place,
                context=self.pool.context,
                max_tokens=budget,
                acceptance="match" if match else "ratio",
                sampling=replace(sampling, seed=seed),
                speculation=speculation,
                notices=self._notices(),
                continued=tuple(answer.continued),
                said=len(answer.text),
                thought=len(answer.thinking),
            )
        )
        if answer.whole:
            answer.reason = "stop"
            self._close(answer)

    def _notices(self) -> tuple[str, ...]:
        return () if self.store is None else self.store.notices()

    def _moving(self) -> set[int]:
        """Slots that rounds play."""
        return {answer.slot for answer in self.playing}

    # Prefill and rounds.

    def _prefill_chunk(self) -> None:
        """Absorb the next chunk of one prompt; all but its last token, which stays pending."""
        answer = self.prefilling[0]
        total = len(answer.prompt) - 1
        self.bookings.look_again(answer, self._moving())
        start, end = answer.prefilled, min(answer.prefilled + PREFILL_CHUNK, total)
        if start < answer.opening < end:
            end = answer.opening
        if start < end:
            lanes = Lanes(self.pool, (answer.slot,))
            inputs = torch.tensor([answer.prompt[start:end]])
            self.residents.forget(answer.slot)
            extent = extent_for(end, self.pool.context + SCRATCH_ROWS)
            plan = Plan(end - start - 1, extent, absorb=self.player.absorbs([answer]))
            self.executor.prefill(lanes, inputs, plan)
            self.residents.hold(answer.slot, answer.prompt[:end])
            answer.prefilled = end
            self.bookings.take(answer)
            self.player.unsettle()
        # The pending token counts as read with the last chunk.
        done = end + (end == total)
        self.emit(Progress(request=answer.request.id, done=done, total=total + 1))
        if end == total:
            self.executor.wait()
            answer.prefill_done()
            for other in [other for other in self.prefilling if other is not answer]:
                self._guarded(partial(self.bookings.share, answer, other), [other])
            recalled = self.bookings.recall(answer)
            self.pool.start(answer.slot)
            self.prefilling.popleft()
            self.playing.append(answer)
            if recalled is not None:
                self.player.recall(answer, *recalled)
                self._drain()

    def _settle(self, answer: Answer, played: Played) -> None:
        """A lane's judged record becomes final: its tokens are committed, and the answer ends where
        its judges could go no further."""
        if played.failure is not None and not played.record.emitted:
            raise played.failure
        event, deltas = answer.take(played)
        self.drafter.commit(answer.slot, event.tokens)
        for told in (event, *deltas):
            self.emit(told)
        if played.failure is not None:
            raise played.failure
        if played.heard is not None:
            behind = played.record.consumed == len(answer.prompt)
            whole = behind and not self.player.under_way(answer)
            self.bookings.remember(answer, *played.heard, whole=whole)
        if answer.reason is not None:
            self._close(answer)

    def _close(self, answer: Answer, error: ErrorInfo | None = None) -> None:
        """End an answer: settle its slot, say what it came to, free the slot."""
        slot = answer.slot
        if error is None:
            if answer not in self.prefilling:
                self.bookings.settle(answer)
                self.bookings.take(answer)
        else:
            self.residents.forget(slot)
        self.pool.release(slot)
        totals = self.drafter.close(slot)
        self.playing = [a for a in self.playing if a is not answer]
        self.prefilling = deque(a for a in self.prefilling if a is not answer)
        for event in answer.finish(*totals, self.controller.state(), error, self._notices()):
            self.emit(event)

    def _refuse(self, request: Request, error: FlarechatError | None) -> None:
        """End a request that never got a slot: cancelled, or refused with an error."""
        info = None if error is None else ErrorInfo.of(error)
        self.emit(Finished.unplayed(request.id, "error" if info else "cancelled", info))


def _told(where: str, failure: Exception) -> FlarechatError:
    """What the user is told of a failure, also of one that nobody foresaw."""
    if isinstance(failure, FlarechatError):
        return failure
    what = (str(failure).splitlines() or [type(failure).__name__])[0]
    return EngineError(
        f"The model failed {where}: {what}",
        "Send the message again; `flarechat doctor` shows memory and versions.",
    )
