"""Puts every workload to every arm and collects samples. Owns the order of the measurement.

Each pass (one arm of one repeat) opens a fresh engine: the history ring keeps every answer the
loaded model gave, so an engine that had met a prompt before would copy its own answer and look
far faster than it is. One warm-up turn follows, unrelated to the prompts. The order of the arms
turns round from repeat to repeat (ABCD, DCBA, …), so a machine that gets slower as it warms up
favours nobody. The seed belongs to the workload: all arms and repeats draw the same. An arm that
may not draft with an MTP head is given an engine that loaded none: plain decoding pays for nothing.
Knows the engine door only; a table and a file are others' business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flarechat.bench.arms import Arm
from flarechat.bench.samples import Sample
from flarechat.bench.workloads import Workload
from flarechat.config import Settings
from flarechat.errors import EngineError
from flarechat.protocol import (
    EngineDoor,
    Failed,
    Finished,
    Message,
    ModelInfo,
    Ready,
    Request,
    Round,
    Speculation,
)

WARM_UP = "Count from one to twenty in words."
WARM_UP_TOKENS = 24
Doors = Callable[[bool], EngineDoor]
Notice = Callable[[str], None]


@dataclass(slots=True)
class Measured:
    """What a bench has so far; it grows while the bench runs, so an interrupt loses nothing.

    `model` is one with an MTP head, if any engine had one; `left_out` names the arms that were
    not played, since a head was asked for and none is loaded.
    """

    model: ModelInfo | None = None
    samples: list[Sample] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    headless: bool = False
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's rounds and its end."""

    rounds: tuple[Round, ...]
    finished: Finished


def wait_ready(door: EngineDoor) -> Ready:
    """Block until the engine takes requests; raise what stopped it."""
    while True:
        for event in door.wait(1.0):
            if isinstance(event, Ready):
                return event
            if isinstance(event, Failed):
                raise event.error.exception()


def ask(door: EngineDoor, request: Request) -> Answer:
    """Put one request to the door and wait for its end; an interrupt cancels it."""
    door.submit(request)
    rounds: list[Round] = []
    try:
        while True:
            for event in door.wait(1.0):
                if isinstance(event, Failed):
                    raise event.error.exception()
                if isinstance(event, Round) and event.request == request.id:
                    rounds.append(event)
                if isinstance(event, Finished) and event.request == request.id:
                    return Answer(tuple(rounds), checked(event))
    except KeyboardInterrupt:
        door.cancel(request.id)
        raise


def checked(finished: Finished) -> Finished:
    """The end of an answer that counts; any other end is raised."""
    if finished.error:
        raise finished.error.exception()
    if finished.reason in ("error", "cancelled"):
        raise EngineError(f"The engine ended {finished.request} with reason {finished.reason}.")
    return finished


def pass_order(arms: Sequence[Arm], repeats: int) -> list[tuple[int, Arm]]:
    """(repeat, arm) in measuring order: forwards in even repeats, backwards in odd ones."""
    return [
        (repeat, arm)
        for repeat in range(repeats)
        for arm in (arms if repeat % 2 == 0 else tuple(reversed(arms)))
    ]


def measure(
    settings: Settings,
    arms: Sequence[Arm],
    workloads: Sequence[Workload],
    repeats: int,
    *,
    doors: Doors,
    into: Measured,
    notice: Notice,
) -> None:
    """Run every pass, adding samples to `into` as they come.

    `doors` opens an engine, with an MTP head or without one.
    """
    said: set[str] = set()
    for repeat, arm in pass_order(arms, repeats):
        if _is_left_out(arm, into):
            continue
        notice(f"repeat {repeat + 1}/{repeats}  {arm.name}")
        learned = arm.speculation.learned
        door = doors(learned)
        try:
            ready = wait_ready(door)
            into.headless |= (learned or arm.learned_only) and ready.model.mtp is None
            if into.model is None or into.model.mtp is None:
                into.model = ready.model
            for sentence in ready.notices:
                if sentence not in said:
                    said.add(sentence)
                    notice(sentence)
            if not _is_left_out(arm, into):
                _play_pass(settings, door, into, arm, workloads, repeat, notice)
        finally:
            door.close()
    into.complete = True


def _is_left_out(arm: Arm, into: Measured) -> bool:
    """Whether the arm needs an MTP head and the model is known to have none; noted if so."""
    if not (arm.learned_only and into.headless):
        return False
    if arm.name not in into.left_out:
        into.left_out.append(arm.name)
    return True


def _play_pass(
    settings: Settings,
    door: EngineDoor,
    into: Measured,
    arm: Arm,
    workloads: Sequence[Workload],
    repeat: int,
    notice: Notice,
) -> None:
    """One arm over all workloads; the controller's state goes from answer to answer."""
    assert into.model is not None, "wait_ready comes first"
    build = Requests(settings, into.model, arm.speculation)
    state = ask(door, build.warm_up(f"warm-{arm.name}-{repeat}")).finished.controller
    for index, workload in enumerate(workloads):
        request = build.request(f"{arm.name}-{workload.name}-{repeat}", index, workload, state)
        answer = ask(door, request)
        state = answer.finished.controller
        sample = sample_of(arm.name, workload, repeat, request, answer)
        into.samples.append(sample)
        notice(
            f"repeat {repeat + 1}  {arm.name}  {workload.name}  "
            f"{sample.usage.completion_tokens} tokens  {sample.rate:.1f} tok/s"
        )


@dataclass(frozen=True, slots=True)
class Requests:
    """Builds the requests of one pass: the settings' law with the workload's seed."""

    settings: Settings
    model: ModelInfo
    speculation: Speculation

    def warm_up(self, name: str) -> Request:
        """A short answer nobody counts."""
        warm = Workload(
            name="warm-up", category="warm-up", prompt=WARM_UP, max_tokens=WARM_UP_TOKENS
        )
        return self.request(name, 0, warm, None)

    def request(
        self, name: str, index: int, workload: Workload, state: dict[str, Any] | None
    ) -> Request:
        """The request of one workload; `index` decides its seed."""
        sampling = self.settings.sampling(self.model.recommended)
        system = self.settings.system
        opening = (Message(role="system", content=system),) if system else ()
        return Request(
            id=name,
            messages=(*opening, Message(role="user", content=workload.prompt)),
            sampling=replace(sampling, seed=(self.settings.seed or 0) + index),
            speculation=self.speculation,
            max_tokens=min(workload.max_tokens, self.settings.max_tokens),
            stop=self.settings.stop,
            controller=state,
            private=True,
        )


def sample_of(
    arm: str, workload: Workload, repeat: int, request: Request, answer: Answer
) -> Sample:
    """The sample of one answer."""
    finished = answer.finished
    assert request.sampling.seed is not None, "bench requests carry a seed"
    return Sample(
        arm=arm,
        workload=workload.name,
        repeat=repeat,
        seed=request.sampling.seed,
        reason=finished.reason,
        text=finished.text,
        usage=finished.usage,
        timings=finished.timings,
        history=finished.speculation.history,
        context=finished.speculation.context,
        rounds=answer.rounds,
    )
