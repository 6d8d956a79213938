"""What serving adds to the rounds themselves: an answer against a bare replay of its rounds.

Owns the pairing: the same plans, over the same slots, from the same state, once with the engine
around them and once back to back. Host time by part is taken in a run of its own.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.h200.bare import captured, device_seconds, replays_of
from benchmarks.h200.desk import Desk, Desks
from benchmarks.h200.record import Box, Run
from benchmarks.h200.sizes import Sizes
from benchmarks.h200.taps import host_clock, plays
from benchmarks.h200.texts import ADAPTIVE, LAWS, OFF, QUESTIONS, arms
from flarechat.bench.arms import Arm


def measure(run: Run, desks: Desks, sizes: Sizes, executor: str, box: Box) -> dict[str, Any]:
    """The section."""
    desk = desks.get(executor, lanes=max(sizes.lanes))
    box.begin()
    for arm in arms((OFF, "fixed-1", "fixed-3", "fixed-7", ADAPTIVE) if desk.drafts else (OFF,)):
        if box.over:
            break
        desk.steer()
        desk.ask(QUESTIONS[0], arm, LAWS["match"], sizes.tokens)
        _against_bare(run, desk, arm, sizes)
        _by_part(run, desk, arm, sizes)
    return {**desk.boot_figures, "captured": captured(desk)}


def _against_bare(run: Run, desk: Desk, arm: Arm, sizes: Sizes) -> None:
    """Times of the answer and of its rounds alone, each the median of some passes."""
    served, alone, rounds = [], [], []
    for _ in range(sizes.repeats):
        with plays(desk) as seen:
            told = desk.ask(QUESTIONS[0], arm, LAWS["match"], sizes.tokens)
        replays = replays_of(desk, seen, len(told.rounds))
        served.append(told.seconds)
        alone.append(device_seconds(desk, seen, replays, 3))
        rounds.append(len(told.rounds))
        desk.forget_prefixes()
    shares = [bare / whole for bare, whole in zip(alone, served, strict=True)]
    run.table("service").add(
        arm=arm.name,
        rounds=median(rounds),
        service_ms=1e3 * median(served),
        bare_ms=1e3 * median(alone),
        ratio=median(1 / share for share in shares),
        idle_share=median(max(1 - share, 0.0) for share in shares),
    )


def _by_part(run: Run, desk: Desk, arm: Arm, sizes: Sizes) -> None:
    """Host microseconds a round by part, with the prompt's prefix restored."""
    desk.ask(QUESTIONS[0], arm, LAWS["match"], sizes.tokens)
    with host_clock(desk) as clock:
        told = desk.ask(QUESTIONS[0], arm, LAWS["match"], sizes.tokens)
    for part, seconds in sorted(clock.spent.items()):
        run.table("host").add(
            arm=arm.name, part=part, rounds=len(told.rounds),
            us_a_round=1e6 * seconds / len(told.rounds),
        )  # fmt: skip
