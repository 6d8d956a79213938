"""Tokens a second of one request: arms, laws and contexts, in alternating order.

Owns the order of the measurement. `off` is played by an engine that loaded no head, so plain
decoding pays for nothing. Every pass (one arm of one law, context and repeat) starts without
history; an arm that chooses its width keeps what it learned of its own rounds, after one answer
that is not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.h200.desk import Desks, Told
from benchmarks.h200.record import Box, Run
from benchmarks.h200.sizes import Sizes
from benchmarks.h200.texts import (
    ADAPTIVE,
    ARMS,
    HISTORY,
    LAWS,
    OFF,
    QUESTIONS,
    SEED,
    WARM_UP,
    arms,
    behind,
    edits,
)
from flarechat.bench.arms import Arm
from flarechat.engine.controller import Controller

EDIT = "edit"


class Speeds:
    """The two engines of the section, and what they measured."""

    def __init__(self, run: Run, desks: Desks, sizes: Sizes, executor: str) -> None:
        self.run, self.sizes = run, sizes
        self.plain = desks.get(executor, mtp=False)
        self.drafting = desks.get(executor)
        self._prompts: dict[str, list[str]] = {}
        self.controllers: dict[tuple[str, str, str], Controller] = {}
        self.round_ms: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
        for desk in (self.plain, self.drafting):
            for arm in arms(ARMS):
                desk.ask(WARM_UP, arm, LAWS["ratio"], min(32, sizes.tokens))

    def prompts(self, context: str) -> list[str]:
        """The questions at a context, and last the one to warm up with."""
        if context not in self._prompts:
            self._prompts[context] = self._written(context)
        return self._prompts[context]

    def _written(self, context: str) -> list[str]:
        if context == EDIT:
            return [*edits(), QUESTIONS[-1]]
        encode = self.plain.engine.language.tokenizer.encode
        tokens = self.sizes.contexts[context]
        asked = [*QUESTIONS[: self.sizes.questions], QUESTIONS[-1]]
        return [behind(question, tokens, lambda t: len(encode(t)), SEED) for question in asked]

    def play(self, arm: Arm, law: str, context: str, repeat: int) -> None:
        """One pass."""
        desk = self.plain if arm.name == OFF else self.drafting
        *prompts, warm = self.prompts(context)
        desk.forget_history()
        key = arm.name, law, context
        known = key in self.controllers
        self.controllers[key] = desk.steer(self.controllers.get(key))
        if arm.speculation.adaptive and not known:
            desk.ask(warm, arm, LAWS[law], self.sizes.tokens)
            desk.forget_history()
        for number, prompt in enumerate(prompts):
            told = desk.ask(prompt, arm, LAWS[law], self.sizes.tokens)
            self._add(told, arm, law, context, number, repeat)

    def _add(self, told: Told, arm: Arm, law: str, context: str, number: int, repeat: int) -> None:
        speculation = told.finished.speculation
        self.run.table("speed").add(
            law=law,
            context=context,
            arm=arm.name,
            prompt=number,
            repeat=repeat,
            prompt_tokens=told.finished.usage.prompt_tokens,
            tokens=told.emitted,
            rounds=len(told.rounds),
            offered=speculation.offered,
            accepted=speculation.accepted,
            seconds=told.seconds,
            rounds_ms=sum(played.ms for played in told.rounds),
            rate=told.rate,
        )
        for played in told.rounds:
            self.round_ms[law, context, arm.name, played.width].append(played.ms)

    def widths(self) -> None:
        """Median round time by width."""
        for (law, context, arm, width), samples in sorted(self.round_ms.items()):
            self.run.table("widths").add(
                law=law, context=context, arm=arm, width=width, rounds=len(samples),
                median_ms=median(samples),
            )  # fmt: skip


def passes(sizes: Sizes, drafts: bool) -> list[tuple[str, str, Arm, int]]:
    """Law, context, arm and repeat of every pass in order; arms turn round from one to the next."""
    order, played = [], arms(ARMS if drafts else (OFF, HISTORY))
    editing = arms((OFF, ADAPTIVE, HISTORY) if drafts else (OFF, HISTORY))
    blocks: list[tuple[str, str, Sequence[Arm]]] = [
        *(("ratio", context, played) for context in sizes.contexts),
        ("ratio", EDIT, editing),
        ("recommended", EDIT, editing),
        ("recommended", "short", editing),
        *(("match", context, played) for context in sizes.contexts),
    ]
    for repeat in range(sizes.repeats):
        for law, context, own in blocks:
            turned = own if repeat % 2 == 0 else tuple(reversed(own))
            order += [(law, context, arm, repeat) for arm in turned]
    return order


def measure(run: Run, desks: Desks, sizes: Sizes, executor: str, box: Box) -> dict[str, Any]:
    """The section."""
    speeds = Speeds(run, desks, sizes, executor)
    done = 0
    box.begin()
    try:
        for law, context, arm, repeat in passes(sizes, speeds.drafting.drafts):
            if box.over:
                break
            speeds.play(arm, law, context, repeat)
            done += 1
    finally:
        speeds.widths()
    return {
        **speeds.drafting.boot_figures,
        "passes": done,
        "plain_boot_seconds": round(speeds.plain.boot_seconds, 2),
    }
