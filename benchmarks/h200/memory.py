"""Memory: what admission reckoned against what the device holds, and that rounds allocate nothing.

Owns the comparison of allocator statistics over many rounds, from the first rounds of an answer on:
opening a request may take memory, a round may not.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.h200.desk import Desk, Desks
from benchmarks.h200.record import Box, Run
from benchmarks.h200.sizes import Sizes
from benchmarks.h200.texts import HISTORY, LAWS, OFF, QUESTIONS, arms
from flarechat.bench.arms import Arm
from flarechat.protocol import Round

COUNTED = (
    "allocation.all.allocated",
    "allocated_bytes.all.current",
    "reserved_bytes.all.current",
    "segment.all.allocated",
)
_FIRST = 3


def measure(run: Run, desks: Desks, sizes: Sizes, executor: str, box: Box) -> dict[str, Any]:
    """The section."""
    desk = desks.get(executor, lanes=max(sizes.lanes))
    box.begin()
    told = desk.ready.model.memory
    assert told is not None, "a booted engine says what it priced"
    for arm in arms((OFF, "fixed-3", HISTORY) if desk.drafts else (OFF, HISTORY)):
        if not box.over:
            _steady(run, desk, arm, sizes.steady_rounds)
    return {
        **desk.boot_figures,
        "priced": told.priced,
        "priced_total": sum(told.priced.values()),
        "allocated": told.allocated,
        "allocated_before": desk.allocated_before,
        "reserved": torch.cuda.memory_reserved() if desk.setup.cuda else None,
    }


def _steady(run: Run, desk: Desk, arm: Arm, rounds: int) -> None:
    """Allocator statistics over `rounds` rounds, summed over as many answers as that takes."""
    changed, played, answers = dict.fromkeys(COUNTED, 0), 0, 0
    while played < rounds and answers < 40:
        seen: list[dict[str, int]] = []

        def look(event: Round, seen: list[dict[str, int]] = seen) -> None:
            seen.append(_statistics(desk.setup.cuda))

        desk.on_round = look
        desk.forget_prefixes()
        left = min(rounds - played + _FIRST + 1, 1000)
        desk.ask(QUESTIONS[answers % len(QUESTIONS)], arm, LAWS["ratio"], 8 * left)
        desk.on_round, answers = None, answers + 1
        kept = seen[_FIRST:][: rounds - played + 1]
        if len(kept) > 1:
            played += len(kept) - 1
            for name in COUNTED:
                changed[name] += kept[-1].get(name, 0) - kept[0].get(name, 0)
    run.table("memory").add(arm=arm.name, rounds=played, answers=answers, **changed)


def _statistics(cuda: bool) -> dict[str, int]:
    if not cuda:
        return {}
    told = torch.cuda.memory_stats()
    return {name: int(told.get(name, 0)) for name in COUNTED}
