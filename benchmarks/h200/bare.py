"""The same rounds again without an engine: what the device alone takes for them.

Owns the way from a plan that was played to a call that only replays it. A captured round is its
graph; where rounds are not captured, the executor's own `play` stands in, host work included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.h200.desk import Desk
from benchmarks.h200.taps import Plays
from flarechat.engine.slot import Lanes

Replay = Callable[[], Any]


def captured(desk: Desk) -> bool:
    """Whether rounds of this desk are replays of graphs."""
    return bool(desk.executor.name == "graph")


def replay_of(desk: Desk, slots: Sequence[int], plan: Any) -> Replay:
    """A call that plays one round with this plan over these slots, and reads nothing.

    The slots of a captured round are those that were staged last.
    """
    if captured(desk):
        executor = desk.executor
        replay: Replay = executor._rounds[executor.catalogue.round_for(len(slots), plan)].replay
        return replay
    lanes = Lanes(desk.engine.pool, slots)
    return lambda: desk.executor.play(lanes, plan)


def replays_of(desk: Desk, seen: Plays, rounds: int) -> list[Replay]:
    """The first `rounds` rounds that were played."""
    made: dict[Any, Replay] = {}
    for slots, plan in zip(seen.slots[:rounds], seen.plans[:rounds], strict=True):
        if (slots, plan) not in made:
            made[slots, plan] = replay_of(desk, slots, plan)
    keys = zip(seen.slots[:rounds], seen.plans[:rounds], strict=True)
    return [made[key] for key in keys]


def device_seconds(desk: Desk, seen: Plays, replays: Sequence[Replay], passes: int) -> float:
    """Median time of playing `replays` back to back, from the state before the first round."""
    samples = []
    for _ in range(passes + 1):
        seen.reset(desk)
        desk.synchronize()
        samples.append(timed(desk.setup.cuda, lambda: _play(replays)))
    return median(samples[1:])


def _play(replays: Sequence[Replay]) -> None:
    for replay in replays:
        replay()


def timed(cuda: bool, work: Callable[[], Any]) -> float:
    """Seconds of `work`: between events of the device, where there is one, else on the host."""
    if not cuda:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3
