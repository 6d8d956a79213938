"""Prices what a model needs before anything is allocated, and refuses what does not fit."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from flarechat.errors import ModelError

HEADROOM = 0.9


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


def admit(
    prices: Mapping[str, int], available: int, *, context: int, lanes: int, per_token: int
) -> None:
    """Raise a ModelError that says what would fit when the prices exceed the memory.

    `per_token` is the cache bytes of one token in every slot.
    """
    needed, allowed = sum(prices.values()), int(available * HEADROOM)
    if needed <= allowed:
        return
    parts = ", ".join(f"{name} {_mib(size)}" for name, size in prices.items())
    spare = allowed - (needed - prices.get("caches", 0))
    fits = spare // per_token if per_token else 0
    if fits >= 256:
        hint = f"--ctx {fits // 256 * 256} would fit with {lanes} lane(s)."
    else:
        hint = "Close other programs or choose a smaller model with --model."
    raise ModelError(
        f"The model with --ctx {context} needs {_mib(needed)} ({parts}); {_mib(allowed)} is free.",
        hint,
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
