"""What a run leaves behind: CSV tables, figures, failures and the machine, in one folder.

Owns the files and the time. A row is on disk as soon as it is known, and the JSON is written after
every section, so that a run which is cut short has lost nothing it measured.
"""

from __future__ import annotations

import csv
import json
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from flarechat.bench import machine

PACKAGES = ("torch", "triton", "transformers", "tokenizers", "numpy", "safetensors", "gguf")


class Table:
    """One CSV file; all rows have the columns of the first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> None:
        """Write a row; floats keep six digits."""
        row = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()}
        with self.path.open("a" if self.rows else "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list((self.rows or [row])[0]), lineterminator="\n")
            if not self.rows:
                writer.writeheader()
            writer.writerow(row)
        self.rows.append(row)


class Box:
    """The time a section may take, of the time that the `whole` run has left."""

    def __init__(self, seconds: float, whole: Box | None = None) -> None:
        self.seconds, self.whole, self.cut = seconds, whole, False
        self.begin()

    def begin(self) -> None:
        """Count from now: engines have been booted."""
        most = self.seconds if self.whole is None else min(self.seconds, self.whole.left)
        self._end = time.monotonic() + most

    @property
    def over(self) -> bool:
        """Whether it is used up; a section that stops for it has been cut."""
        self.cut = self.cut or time.monotonic() > self._end
        return self.cut

    @property
    def left(self) -> float:
        """Seconds."""
        return max(self._end - time.monotonic(), 0.0)


class Run:
    """One run into `folder`; its files' names begin with `name`.

    A `resumed` run goes on in the file that is there.
    """

    def __init__(
        self, folder: Path, name: str, facts: Mapping[str, Any], seconds: float, *,
        resumed: bool = False,
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name, self.box = folder, name, Box(seconds)
        self.tables: dict[str, Table] = {}
        self.said: dict[str, Any] = {**facts, "sections": {}}
        if resumed:
            self.said = json.loads(self._json.read_text("utf-8"))

    def table(self, name: str) -> Table:
        """The table of this name."""
        if name not in self.tables:
            self.tables[name] = Table(self.folder / f"{self.name}-{name}.csv")
        return self.tables[name]

    def section(self, name: str, work: Callable[[Box], Mapping[str, Any]], seconds: float) -> bool:
        """Do a section's work in its time, and say whether it went well; what goes wrong is written
        down."""
        box, began = Box(seconds, self.box), time.monotonic()
        entry: dict[str, Any] = {"figures": {}, "failure": None}
        tables = set(self.tables)
        try:
            if box.over:
                raise TimeoutError("no time was left for this section")
            entry["figures"] = dict(work(box))
        except Exception as failure:
            entry["failure"] = f"{type(failure).__name__}: {failure}"
            entry["trace"] = traceback.format_exc(limit=-6)
            print(f"{name}: failed: {entry['failure']}\n{entry['trace']}", file=sys.stderr)
        entry |= {"seconds": round(time.monotonic() - began, 1), "cut": box.cut}
        entry["tables"] = [t.path.name for n, t in self.tables.items() if n not in tables]
        self.said["sections"][name] = entry
        self.write()
        state = "failed" if entry["failure"] else "cut short" if box.cut else "done"
        print(f"[{name}: {state} in {entry['seconds']} s]", file=sys.stderr, flush=True)
        return entry["failure"] is None

    @property
    def _json(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def failed(self) -> list[str]:
        """The sections that failed."""
        return [name for name, entry in self.said["sections"].items() if entry["failure"]]

    def write(self) -> Path:
        """The JSON as it stands."""
        self._json.write_text(json.dumps(self.said, indent=1) + "\n", "utf-8")
        return self._json


def facts(device: str, revision: str, command: str, dry: bool) -> dict[str, Any]:
    """Machine, versions and command of a run."""
    cuda = device.startswith("cuda")
    host = machine.host()
    if cuda:
        properties = torch.cuda.get_device_properties(device)
        host |= {
            "gpu": properties.name,
            "gpu_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "driver": _driver(),
            "cuda": torch.version.cuda or "",
        }
    return {
        "command": command,
        "revision": revision,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "dry": dry,
        "device": device,
        "machine": host,
        "versions": {"python": platform.python_version()} | machine.versions(PACKAGES),
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.splitlines()[0].strip()
