"""Says on what a figure was measured: system, processor, versions. Owns no figure itself.

Reads package metadata, so no package is imported for its version. The host's and the user's
names are left out: a result file is made to be shown around.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

PACKAGES = ("flarechat", "torch", "numpy", "safetensors", "tokenizers", "textual")


def host() -> dict[str, str | int | list[float]]:
    """System, processor and how busy it was over the last 1, 5 and 15 minutes."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        "load": _load(),
    }


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of the packages that decide a speed; those not installed are left out."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _load() -> list[float]:
    """The load averages; empty where the system keeps none."""
    try:
        return [round(load, 2) for load in os.getloadavg()]
    except (AttributeError, OSError):
        return []


def _processor() -> str:
    """The processor's trade name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
