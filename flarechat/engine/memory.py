"""Prices what a model needs before anything is allocated, and refuses what does not fit."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flarechat.errors import ModelError, SettingsError

HEADROOM = 0.9
# Bytes of snapshots, unless it was said: a part of what is free, and no more than this.
_SNAPSHOTS, _MOST_SNAPSHOTS = 0.25, 1 << 30
_CONTEXT_STEP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the bytes of a loaded model depend on and its user may choose: tokens verified in a
    round, whether a draft head is loaded, tokens a slot holds, slots."""

    capacity: int
    mtp: bool
    context: int
    lanes: int

    def flags(self, asked: Terms) -> str:
        """The flags that ask for these terms where they are not those `asked`."""
        told = []
        if self.capacity != asked.capacity:
            told.append(f"--speculative-token-capacity {self.capacity}")
        if self.mtp != asked.mtp:
            told.append("--no-mtp")
        if self.context != asked.context:
            told.append(f"--ctx {self.context}")
        if self.lanes != asked.lanes:
            told.append(f"--concurrency {self.lanes}")
        return " ".join(told)


Quote = Callable[[Terms], Mapping[str, int]]


def host_available() -> int:
    """Bytes that can be taken without swapping, within the container's limit if there is one."""
    return min(_system_available(), _container_available())


def _container_available(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes left under a control group's limit, files it can drop included; else unbounded."""
    try:
        limit = int((root / "memory.max").read_text())
        used = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        return limit - used + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        return sys.maxsize


def _system_available() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def admit(quote: Quote, asked: Terms, available: int) -> None:
    """Raise a ModelError that says what would fit where the prices of the terms do not."""
    prices, allowed = quote(asked), int(available * HEADROOM)
    needed = sum(prices.values())
    if needed <= allowed:
        return
    parts = ", ".join(f"{name} {_mib(size)}" for name, size in prices.items())
    raise ModelError(
        f"The model with --ctx {asked.context} needs {_mib(needed)} ({parts}); "
        f"{_mib(allowed)} is free.",
        _remedy(quote, asked, allowed),
    )


def snapshot_budget(asked: int | None, left: int) -> int:
    """Bytes that snapshots may take: the MiB asked for, which must fit into the `left` bytes beside
    the model; unless it was said, a part of these."""
    if asked is None:
        return min(int(max(left, 0) * _SNAPSHOTS), _MOST_SNAPSHOTS)
    if asked << 20 > left:
        most = max(left, 0) >> 20
        raise SettingsError(
            f"--prefix-cache {asked} does not fit: {most} MiB are free beside the model.",
            f"Give {most} or less; 0 keeps no snapshots.",
        )
    return asked << 20


def _remedy(quote: Quote, asked: Terms, allowed: int) -> str:
    """The least that has to be given up: rounds' width, then the head, then context, then lanes;
    each alone if that is enough, else all of them in that order."""
    for terms in (*_alone(quote, asked, allowed), *_together(quote, asked, allowed)):
        if _fits(quote, terms, allowed):
            lanes = f" with {terms.lanes} lane(s)" if terms.lanes == asked.lanes else ""
            return f"{terms.flags(asked)} would fit{lanes}."
    return "Close other programs or choose a smaller model with --model."


def _alone(quote: Quote, asked: Terms, allowed: int) -> Iterator[Terms]:
    yield from _narrower(asked)
    if asked.mtp:
        yield replace(asked, mtp=False)
    yield _shorter(quote, asked, allowed)
    yield from _fewer(asked)


def _together(quote: Quote, asked: Terms, allowed: int) -> Iterator[Terms]:
    least = replace(asked, capacity=min(asked.capacity, asked.lanes), mtp=False)
    yield least
    yield _shorter(quote, least, allowed)
    for fewer in _fewer(least):
        yield _shorter(quote, replace(fewer, capacity=fewer.lanes), allowed)


def _narrower(asked: Terms) -> Iterator[Terms]:
    capacity = 1 << (asked.capacity - 1).bit_length()
    while (capacity := capacity // 2) >= asked.lanes:
        yield replace(asked, capacity=capacity)


def _fewer(asked: Terms) -> Iterator[Terms]:
    lanes = asked.lanes
    while (lanes := lanes // 2) >= 1:
        yield replace(asked, lanes=lanes)


def _shorter(quote: Quote, asked: Terms, allowed: int) -> Terms:
    """The same with the longest context that fits, in steps; what was asked for if none does."""
    low, high = 0, (asked.context - 1) // _CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(quote, replace(asked, context=middle * _CONTEXT_STEP), allowed):
            low = middle
        else:
            high = middle - 1
    return replace(asked, context=low * _CONTEXT_STEP) if low else asked


def _fits(quote: Quote, terms: Terms, allowed: int) -> bool:
    return sum(quote(terms).values()) <= allowed


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
