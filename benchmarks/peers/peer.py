"""A child process that answers, seen from the comparison: started, asked, watched, ended.

Owns the process and what is noted of the machine while it works: how busy it was and how often the
engine's threads were put aside for others.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.peers.wire import Ask, Told

ROOT = Path(__file__).parents[2]


class PeerError(Exception):
    """A child that failed, with its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """How a peer is started: `python`, a module of this package and its flags."""

    name: str
    python: str
    module: str
    flags: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        """The command line."""
        return [self.python, "-m", self.module, *self.flags]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """While one answer was made: the load average over a minute, before it, and how many times the
    engine's threads were put aside for others."""

    load: float
    involuntary: int


@dataclass(slots=True)
class Peer:
    """A running child. `ready_ms` counts from its start until it said that it takes requests."""

    spec: Spec
    process: subprocess.Popen[str]
    facts: dict[str, Any] = field(default_factory=dict)
    ready_ms: float = 0.0

    @classmethod
    def start(cls, spec: Spec, log: Path | None = None) -> Self:
        """Start a child and wait until it is ready; what it prints goes to `log`."""
        began = time.perf_counter()
        with open(log or os.devnull, "ab") as errors:
            process = subprocess.Popen(
                spec.command, cwd=ROOT, text=True, encoding="utf-8",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        peer = cls(spec, process)
        try:
            peer.facts = peer._read()
        except PeerError:
            peer.close()
            raise
        peer.ready_ms = 1e3 * (time.perf_counter() - began)
        return peer

    def ask(self, ask: Ask) -> tuple[Told, Noise]:
        """One answer; its prompt, where the peer made it itself, must have the very tokens asked
        for."""
        load, before = os.getloadavg()[0], involuntary(self.pids)
        body = {**_plain(ask), "law": _plain(ask.law)}
        told = Told(**self.call("answer", body))
        if told.prompt is not None and list(told.prompt) != list(ask.ids):
            raise PeerError(f"{self.spec.name} makes other tokens of the prompt: {told.prompt}")
        return told, Noise(load=load, involuntary=involuntary(self.pids) - before)

    def call(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Any verb the child knows."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": verb, "with": body}) + "\n")
        self.process.stdin.flush()
        return self._read()

    @property
    def pids(self) -> list[int]:
        """The processes that compute."""
        return list(self.facts["pids"])

    def close(self) -> None:
        """End it: its input ends, and it leaves."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(f"{self.spec.name} ended with status {self.process.wait()}")
        said = json.loads(line)
        if "failed" in said:
            raise PeerError(f"{self.spec.name}: {said['failed']}")
        return dict(said["ok"])


def _plain(thing: Any) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in thing.__dataclass_fields__}


def involuntary(pids: Iterable[int]) -> int:
    """Involuntary context switches of all threads of these processes so far."""
    total = 0
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            total += int(_of(status, "nonvoluntary_ctxt_switches") or 0)
    return total


def resident(pids: Sequence[int]) -> dict[str, int]:
    """Resident bytes of these processes: all, those of no file, and the most there ever were."""
    names = {"resident": "VmRSS", "anonymous": "RssAnon", "peak": "VmHWM"}
    found = dict.fromkeys(names, 0)
    for pid in pids:
        for name, key in names.items():
            value = _of(Path(f"/proc/{pid}/status"), key)
            found[name] += 1024 * int(value.split()[0]) if value else 0
    return found


def _of(status: Path, key: str) -> str:
    """A line of a status file; nothing where thread or system has none."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
