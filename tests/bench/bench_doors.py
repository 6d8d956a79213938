"""A scripted engine that plays each arm's answer, and a factory that counts its engines."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from flarechat.errors import FlarechatError
from flarechat.protocol import Event, ModelInfo, Request, Speculation
from tests.fakes import MODEL, Play, ScriptedEngine, words

FEW = "off,fixed-3,adaptive,adaptive+history"
TEXT = "one two three four"
PLAIN = words(TEXT)
COPIED = (Play(("one ", "two ", "three "), width=3, source="history", ms=15.0), Play(("four",)))
LEARNED = (Play(("one ", "two ", "three "), width=3, source="mtp", ms=15.0), Play(("four",)))


def answer_for(speculation: Speculation) -> Iterable[Play]:
    """Copies where they are allowed; else the head drafts, where the width is fixed: the scripted
    controller never finds it worth its while.
    """
    if speculation.draft_tokens == 0:
        return PLAIN
    if speculation.history_drafts:
        return COPIED
    return PLAIN if speculation.adaptive or not speculation.mtp else LEARNED


class ArmEngine(ScriptedEngine):
    """Answers by the request's speculation; may be interrupted or fail after some requests."""

    def __init__(
        self,
        *,
        interrupt_after: int | None = None,
        failure: FlarechatError | None = None,
        rounds_per_drain: int = 2,
        model: ModelInfo = MODEL,
        notices: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            rounds_per_drain=rounds_per_drain, failure=failure, model=model, notices=notices
        )
        self.interrupt_after = interrupt_after

    def submit(self, request: Request) -> None:
        self.answers = [tuple(answer_for(request.speculation))]
        super().submit(request)

    def wait(self, timeout: float | None = None) -> list[Event]:
        if self.interrupt_after is not None and len(self.requests) > self.interrupt_after:
            raise KeyboardInterrupt
        return super().wait(timeout)


class Doors:
    """Opens a started engine a call and keeps them all."""

    def __init__(self, **options: object) -> None:
        self.options = options
        self.opened: list[ArmEngine] = []

    def __call__(self, mtp: bool) -> ArmEngine:
        assert all(engine.closed for engine in self.opened), "the engine before was left open"
        engine = ArmEngine(**self.options)  # type: ignore[arg-type]
        if not mtp:
            engine.model = dataclasses.replace(engine.model, mtp=None)
        engine.start()
        self.opened.append(engine)
        return engine
