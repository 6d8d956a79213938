"""What is listened to while an engine plays: the plans it played, its records, its host time.

Owns wrappers that are put around an engine's parts and taken off again. They change nothing but
time, so a run whose speed counts has none, or only `plays`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from benchmarks.h200.desk import Desk
from flarechat.engine import player as player_module
from flarechat.engine.answer import Answer

Call = Callable[..., Any]


@dataclass(slots=True)
class Plays:
    """The rounds that were played, in order, the slot pool as it was before the first, and what
    the host had staged for that one."""

    slots: list[tuple[int, ...]] = field(default_factory=list)
    plans: list[Any] = field(default_factory=list)
    pool: dict[str, Tensor] = field(default_factory=dict)
    staged: Any = None

    def reset(self, desk: Desk) -> None:
        """Make the slots, and what is staged for them, what they were before the first round."""
        for name, held in desk.engine.pool.tensors().items():
            held.copy_(self.pool[name])
        staging = desk.executor.staging
        if staging is not None:
            staging._block.host[:] = self.staged
            staging.upload()


@contextmanager
def wrapped(thing: Any, name: str, around: Callable[[Call], Call]) -> Iterator[None]:
    """`thing.name` replaced by `around(thing.name)`; nothing, where there is no such part."""
    call = getattr(thing, name, None)
    if call is None:
        yield
        return
    own = name in vars(thing)
    setattr(thing, name, around(call))
    try:
        yield
    finally:
        if own:
            setattr(thing, name, call)
        else:
            delattr(thing, name)


@contextmanager
def plays(desk: Desk) -> Iterator[Plays]:
    """Every round the executor plays inside."""
    seen = Plays()

    def around(call: Call) -> Call:
        def play(lanes: Any, plan: Any) -> Any:
            if not seen.pool:
                seen.pool = {n: t.clone() for n, t in desk.engine.pool.tensors().items()}
            seen.slots.append(tuple(lanes.slots))
            seen.plans.append(plan)
            frame = call(lanes, plan)
            if seen.staged is None and desk.executor.staging is not None:
                seen.staged = desk.executor.staging._block.host.copy()
            return frame

        return play

    with wrapped(desk.executor, "play", around):
        yield seen


@contextmanager
def in_pieces(desk: Desk) -> Iterator[None]:
    """Prompts read in the pieces that a captured prefill has, of one, two, four, … tokens, so that
    products of equal shapes are added up in equal order."""

    def around(call: Call) -> Call:
        def prefill(lanes: Any, inputs: Tensor, plan: Any) -> None:
            start = 0
            for length in pieces(inputs.shape[1]):
                piece = inputs[:, start : start + length]
                call(lanes, piece, replace(plan, draft_tokens=length - 1))
                start += length

        return prefill

    captured = desk.executor.name == "graph"
    with nullcontext() if captured else wrapped(desk.executor, "prefill", around):
        yield


def pieces(tokens: int) -> list[int]:
    """Powers of two that add up to `tokens`, the largest first."""
    return [1 << power for power in reversed(range(tokens.bit_length())) if tokens >> power & 1]


@contextmanager
def records() -> Iterator[list[Any]]:
    """The records of every round that is read inside, one list of lanes a round."""
    seen: list[Any] = []

    def around(call: Call) -> Call:
        def read(*args: Any, **kwargs: Any) -> Any:
            told = call(*args, **kwargs)
            seen.append(list(told))
            return told

        return read

    with wrapped(player_module, "read", around):
        yield seen


@dataclass(slots=True)
class HostClock:
    """Seconds by part, each without the parts inside it. `wait` is for the device."""

    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _inner: list[float] = field(default_factory=list)

    def timing(self, name: str) -> Callable[[Call], Call]:
        """A wrapper that counts a call's own time under `name`."""

        def around(call: Call) -> Call:
            def timed(*args: Any, **kwargs: Any) -> Any:
                self._inner.append(0.0)
                began = time.perf_counter()
                try:
                    return call(*args, **kwargs)
                finally:
                    whole = time.perf_counter() - began
                    self.spent[name] += whole - self._inner.pop()
                    if self._inner:
                        self._inner[-1] += whole

            return timed

        return around


@contextmanager
def host_clock(desk: Desk) -> Iterator[HostClock]:
    """The host's time of what is played inside, by part."""
    clock, engine, player = HostClock(), desk.engine, desk.engine.player
    parts: list[tuple[Any, str, str]] = [
        (engine, "step", "engine"),
        (player, "launch", "launch"),
        (player, "collect", "collect"),
        (player, "_stage", "stage"),
        (player, "_choose", "choose"),
        (player, "_plan", "plan"),
        (player, "_learn", "learn"),
        (player.executor, "play", "play"),
        (player_module, "read", "wait"),
        (Answer, "take", "take"),
        (engine.drafter, "commit", "commit"),
        (engine, "emit", "emit"),
    ]
    with ExitStack() as stack:
        for thing, name, part in parts:
            stack.enter_context(wrapped(thing, name, clock.timing(part)))
        yield clock
