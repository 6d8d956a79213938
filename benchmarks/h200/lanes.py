"""Several requests at once: tokens a second of all of them together.

Owns the window that counts: from the moment when all prompts have been read to the end of the
first answer, so that as many lanes play in all of it.
"""

from __future__ import annotations

from typing import Any

from benchmarks.h200.desk import Desk, Desks, Told
from benchmarks.h200.record import Box, Run
from benchmarks.h200.sizes import Sizes
from benchmarks.h200.texts import ADAPTIVE, LAWS, OFF, QUESTIONS, arms
from flarechat.bench.arms import Arm


def measure(run: Run, desks: Desks, sizes: Sizes, executor: str, box: Box) -> dict[str, Any]:
    """The section."""
    desk = desks.get(executor, lanes=max(sizes.lanes))
    box.begin()
    names = (OFF, ADAPTIVE) if desk.drafts else (OFF,)
    for repeat in range(sizes.repeats + 1):
        for arm in arms(names):
            for lanes in sizes.lanes:
                if box.over:
                    break
                _play(run, desk, arm, lanes, repeat, sizes.tokens)
    return desk.boot_figures


def _play(run: Run, desk: Desk, arm: Arm, lanes: int, repeat: int, tokens: int) -> None:
    """One group of requests; the first repeat only warms up."""
    desk.forget_prefixes()
    asked = [QUESTIONS[(repeat + lane) % len(QUESTIONS)] for lane in range(lanes)]
    told = desk.answer(*(desk.request(text, arm, LAWS["ratio"], tokens) for text in asked))
    emitted, seconds = in_window(told)
    if repeat and seconds > 0:
        run.table("lanes").add(
            arm=arm.name, lanes=lanes, repeat=repeat, tokens=emitted, seconds=seconds,
            rate=emitted / seconds,
        )  # fmt: skip


def in_window(told: list[Told]) -> tuple[int, float]:
    """Tokens of all answers, and the seconds, while all of them were being decoded."""
    began, ended = max(t.began for t in told), min(t.ended for t in told)
    emitted = sum(
        played.emitted
        for t in told
        for at, played in zip(t.times, t.rounds, strict=True)
        if began < at <= ended
    )
    return emitted, ended - began
