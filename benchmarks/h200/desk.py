"""An engine in this process, and every event it said with the time it was said at.

Owns the clock of an answer: it starts when the last chunk of the prompt has left the device and
stops when the last round's record was read. An event is also made the line that the engine process
would write, so the host's work is all there. Knows no table.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flarechat.bench.arms import Arm
from flarechat.engine.boot import boot_engine
from flarechat.engine.controller import Controller
from flarechat.protocol import (
    Boot,
    Event,
    Finished,
    Loading,
    Message,
    Progress,
    Ready,
    Request,
    Round,
    Sampling,
    Started,
    encode,
)

Turn = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every engine of a run is booted with; `boot` are further fields of Boot. With `stand_in`
    captured rounds are called ones, behind the seam that the tests have for want of a GPU."""

    model: str
    cache: str
    device: str
    dtype: str
    mtp_file: str | None = None
    boot: tuple[tuple[str, Any], ...] = ()
    stand_in: bool = False

    @property
    def cuda(self) -> bool:
        """Whether a GPU is measured."""
        return self.device.startswith("cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One answer. `began` and `ended` are host seconds of its decoding, `times` of each round."""

    request: str
    finished: Finished
    rounds: tuple[Round, ...]
    times: tuple[float, ...]
    restored: int
    began: float
    ended: float

    @property
    def emitted(self) -> int:
        """Tokens of the answer."""
        return sum(played.emitted for played in self.rounds)

    @property
    def seconds(self) -> float:
        """From the first round's start to the last frame."""
        return self.ended - self.began

    @property
    def rate(self) -> float:
        """Emitted tokens a second of decoding."""
        return self.emitted / self.seconds if self.seconds > 0 else 0.0

    @property
    def tokens(self) -> tuple[int, ...]:
        """Their ids."""
        return tuple(token for played in self.rounds for token in played.tokens)


class Desk:
    """An engine with one executor, for sections that talk to it directly."""

    def __init__(
        self, setup: Setup, *, executor: str = "auto", lanes: int = 1, mtp: bool = True
    ) -> None:
        self.setup, self.lanes = setup, lanes
        self.events: list[tuple[float, Event]] = []
        self.on_round: Callable[[Round], None] | None = None
        played = "eager" if setup.stand_in else executor
        self.allocated_before = torch.cuda.memory_allocated() if setup.cuda else 0
        began = time.perf_counter()
        self.engine = boot_engine(
            Boot(
                model=setup.model, cache=setup.cache, device=setup.device, dtype=setup.dtype,
                lanes=lanes, mtp=mtp, mtp_file=setup.mtp_file if mtp else None,
                executor=played, **{"prefix_cache": 0, **dict(setup.boot)},
            ),
            self._hear,
        )  # fmt: skip
        self.boot_seconds = time.perf_counter() - began
        (self.ready,) = (e for _, e in self.events if isinstance(e, Ready))
        loading = [e for _, e in self.events if isinstance(e, Loading) and e.stage == "graphs"]
        self.graphs = max((e.total for e in loading), default=0)
        if setup.stand_in and executor == "graph":
            from tests.engine.captures import graph_of

            graph = graph_of(self, learned=self.drafts)  # type: ignore[arg-type]
            self.engine.executor = self.engine.player.executor = graph
        self._count = 0
        gc.collect()
        gc.freeze()

    @property
    def boot_figures(self) -> dict[str, Any]:
        """How it came up, for the record."""
        seconds = round(self.boot_seconds, 2)
        return {"executor": self.executor.name, "boot_seconds": seconds, "graphs": self.graphs}

    @property
    def executor(self) -> Any:
        """How its rounds are played."""
        return self.engine.executor

    @property
    def drafts(self) -> bool:
        """Whether an MTP head is loaded."""
        return self.ready.model.mtp is not None

    def _hear(self, event: Event) -> None:
        encode(event)
        if isinstance(event, Progress) and event.done == event.total:
            self.synchronize()
        self.events.append((time.perf_counter(), event))
        if isinstance(event, Round) and self.on_round is not None:
            self.on_round(event)

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""
        if self.setup.cuda:
            torch.cuda.synchronize()

    def request(
        self, text: str, arm: Arm, sampling: Sampling, tokens: int, *, before: Sequence[Turn] = ()
    ) -> Request:
        """A request for `text` after the turns `before`."""
        self._count += 1
        messages = [
            Message(role=role, content=said)
            for turn in before
            for role, said in zip(("user", "assistant"), turn, strict=True)
        ]
        return Request(
            id=f"r{self._count}", messages=(*messages, Message(role="user", content=text)),
            sampling=sampling, speculation=arm.speculation, max_tokens=tokens,
        )  # fmt: skip

    def answer(self, *requests: Request) -> list[Told]:
        """Answer requests, all put at once, to their ends."""
        self.events.clear()
        for request in requests:
            self.engine.submit(request)
        while self.engine.busy:
            self.engine.step()
        self.synchronize()
        return [self._told(request.id) for request in requests]

    def ask(self, text: str, arm: Arm, sampling: Sampling, tokens: int, **more: Any) -> Told:
        """Answer one request."""
        (told,) = self.answer(self.request(text, arm, sampling, tokens, **more))
        return told

    def _told(self, request: str) -> Told:
        mine = [(at, e) for at, e in self.events if getattr(e, "request", None) == request]
        finished = next(e for _, e in mine if isinstance(e, Finished))
        if finished.error is not None:
            raise finished.error.exception()
        rounds = [(at, e) for at, e in mine if isinstance(e, Round)]
        return Told(
            request=request,
            finished=finished,
            rounds=tuple(e for _, e in rounds),
            times=tuple(at for at, _ in rounds),
            restored=next(e.restored_tokens for _, e in mine if isinstance(e, Started)),
            began=max(
                (at for at, e in mine if isinstance(e, Progress) and e.done == e.total),
                default=mine[0][0],
            ),
            ended=rounds[-1][0],
        )

    # What a measurement must begin without.

    def forget_prefixes(self) -> None:
        """The next prompts are computed whole."""
        for slot in range(self.engine.pool.slots):
            self.engine.residents.forget(slot)

    def forget_history(self) -> None:
        """Nothing the model wrote before can be copied."""
        from flarechat.engine.drafters.history import HistorySource

        copies: Any = getattr(self.engine.drafter, "copies", self.engine.drafter)
        copies.sources = tuple(
            HistorySource() if isinstance(source, HistorySource) else source
            for source in copies.sources
        )

    def steer(self, controller: Controller | None = None) -> Controller:
        """Choose widths by `controller` from now on, or by one that knows nothing yet."""
        controller = controller or Controller(self.ready.model.device_fingerprint)
        self.engine.controller = self.engine.player.controller = controller
        return controller

    def close(self) -> None:
        """Give the device's memory back."""
        self.on_round = None
        gc.unfreeze()
        del self.engine
        gc.collect()
        if self.setup.cuda:
            torch.cuda.empty_cache()


class Desks:
    """The engines of a run by executor, lanes and head, each booted when it is first asked for."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._made: dict[tuple[str, int, bool], Desk] = {}

    def get(self, executor: str, *, lanes: int = 1, mtp: bool = True) -> Desk:
        """The engine, with nothing left of what was asked of it before but its loaded model."""
        key = executor, lanes, mtp
        if key not in self._made:
            self._made[key] = Desk(self.setup, executor=executor, lanes=lanes, mtp=mtp)
        desk = self._made[key]
        desk.forget_prefixes()
        desk.forget_history()
        desk.steer()
        return desk

    def close(self) -> None:
        """Give all of them back."""
        for desk in self._made.values():
            desk.close()
        self._made.clear()
