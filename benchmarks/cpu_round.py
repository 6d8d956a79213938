"""What a round costs on the CPU besides the model's own arithmetic, piece by piece.

    python benchmarks/cpu_round.py [--rounds N] [--widths 1,4,8] [--out CSV]

The page is played with a target and a draft head that compute nothing: their logits are ready, of
the default model's vocabulary and of its head's. Printed are microseconds a round, medians, with
the library of C kernels and without (FLARECHAT_CPU_KERNELS=off in a process of its own, in turns),
for laws of several kinds. Two threads, unless OMP_NUM_THREADS says otherwise.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flarechat.engine import round as page
from flarechat.engine.accept import RUNNING
from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.kernels.cpu import library
from flarechat.engine.plan import LawShape, Plan
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.engine.state.hidden import HiddenState
from flarechat.protocol import Sampling

CPU = torch.device("cpu")
VOCABULARY, DRAFTED, HIDDEN, CONTEXT, CONSUMED = 49_152, 8_192, 576, 2_048, 300
SPREAD = 2.5
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "T 0.7 top-k 40": Sampling(temperature=0.7, top_k=40),
    "and penalties": Sampling(
        temperature=0.7, top_k=40, repetition_penalty=1.1, presence_penalty=0.2
    ),
    "T 0.7 top-p 0.95": Sampling(temperature=0.7, top_p=0.95),
}
# Whose calls make a part, by module or class; what a part calls is in it.
PARTS = ("propose", "inputs", "law", "accept", "clip", "absorb", "advance", "frame")


class ReadyTarget:
    """Hands out logits [1, W, V] and hidden rows that were made before."""

    repair_ms = 0.0

    def __init__(self, draw: torch.Generator) -> None:
        self.logits = SPREAD * torch.randn(1, 8, VOCABULARY, generator=draw)
        self.hidden = torch.randn(1, 8, HIDDEN, generator=draw)

    def verify(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        return self.hidden[:, : plan.width], self.logits[:, : plan.width]

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """No state."""


class ReadyHead:
    """A draft head whose outputs were made before; it keeps no keys and values."""

    features = HIDDEN

    def __init__(self, draw: torch.Generator) -> None:
        self.vocabulary = torch.arange(0, VOCABULARY, VOCABULARY // DRAFTED)
        self.hidden = torch.randn(1, 1, HIDDEN, generator=draw)
        self.ready = SPREAD * torch.randn(1, 1, DRAFTED, generator=draw)

    def cache(self, slots: int, context: int) -> tuple[None, HiddenState]:
        return None, HiddenState(slots, context, HIDDEN, torch.float32, CPU)

    def condense(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(self, hidden: Tensor, *_: object) -> Tensor:
        return self.hidden

    def write(self, *_: object) -> None:
        """Nothing."""

    def logits(self, output: Tensor) -> Tensor:
        return self.ready


def timed(call: Callable[..., Any], spent: dict[str, float], part: str) -> Callable[..., Any]:
    def inner(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            spent[part] += time.perf_counter() - began

    return inner


def set_up(sampling: Sampling, spent: dict[str, float] | None) -> tuple[SlotPool, EagerExecutor]:
    """A slot in the middle of an answer, and an executor, whose parts are timed into `spent`."""
    draw = torch.Generator().manual_seed(1)
    pool = SlotPool(4, CONTEXT, VOCABULARY, CPU)
    prompt = torch.randint(0, VOCABULARY, (200,), generator=draw).tolist()
    generated = torch.randint(0, VOCABULARY, (100,), generator=draw).tolist()
    pool.open(
        0, prompt, generated, restored=CONSUMED - 1, sampling=sampling, seed=1, match=False,
        budget=1 << 40, eos=(2,),
    )  # fmt: skip
    pool.start(0)
    target: Any = ReadyTarget(draw)
    head: Any = ReadyHead(draw)
    drafter: Any = MtpDrafter(head, 4, CONTEXT, CPU)
    drafter.depth.fill_(8)
    if spent is not None:
        for name in ("propose", "absorb"):
            setattr(drafter, name, timed(getattr(drafter, name), spent, name))
    return pool, EagerExecutor(target, drafter)


def time_parts(spent: dict[str, float]) -> Callable[[], None]:
    """Wrap what the page calls by name; the way back."""
    of_page: Any = page
    names = {"law": "target_law", "accept": "accept", "clip": "clip", "frame": "pack"}
    plain = {part: getattr(page, name) for part, name in names.items()}
    of_lanes = {name: getattr(Lanes, name) for name in ("inputs", "advance")}
    for part, name in names.items():
        setattr(of_page, name, timed(plain[part], spent, part))
    for name, call in of_lanes.items():
        setattr(Lanes, name, timed(call, spent, name))

    def back() -> None:
        for part, name in names.items():
            setattr(of_page, name, plain[part])
        for name, call in of_lanes.items():
            setattr(Lanes, name, call)

    return back


def measure(sampling: Sampling, acceptance: str, width: int, rounds: int) -> dict[str, float]:
    """Microseconds of a round and of its parts, medians."""
    plan = Plan(width - 1, CONTEXT, LawShape.of([sampling], VOCABULARY), acceptance, drafting="mtp")
    found = {"all": _median(sampling, plan, rounds, None)["all"]}
    spent = dict.fromkeys(PARTS, 0.0)
    back = time_parts(spent)
    try:
        parts = _median(sampling, plan, rounds, spent)
        return {**parts, **found}
    finally:
        back()


def _median(
    sampling: Sampling, plan: Plan, rounds: int, spent: dict[str, float] | None
) -> dict[str, float]:
    pool, executor = set_up(sampling, spent)
    lanes, samples = Lanes(pool, (0,)), dict[str, list[float]]()
    for turn in range(rounds + 5):
        pool.consumed[0], pool.finish[0] = CONSUMED + turn % 64, RUNNING
        if spent is not None:
            spent.update(dict.fromkeys(spent, 0.0))
        began = time.perf_counter()
        executor.play(lanes, plan).record.tolist()
        parts = {"all": time.perf_counter() - began, **(spent or {})}
        for name, seconds in parts.items() if turn >= 5 else ():
            samples.setdefault(name, []).append(1e6 * seconds)
    return {name: statistics.median(values) for name, values in samples.items()}


def rows(widths: list[int], rounds: int) -> list[dict[str, Any]]:
    """One for each law, acceptance and width."""
    gc.disable()
    return [
        {"sampling": name, "acceptance": acceptance, "width": width}
        | measure(sampling, acceptance, width, rounds)
        for name, sampling in SAMPLINGS.items()
        for acceptance in (("match",) if sampling.temperature == 0 else ("ratio", "match"))
        for width in widths
    ]


def in_turns(asked: argparse.Namespace) -> dict[str, list[list[dict[str, Any]]]]:
    """The rows of each path, `--repeat` times, by processes that take turns."""
    found: dict[str, list[list[dict[str, Any]]]] = {"torch": [], "kernels": []}
    command = [sys.executable, __file__, "--rounds", str(asked.rounds), "--widths", asked.widths]
    for _ in range(asked.repeat):
        for path, said in found.items():
            own = {"FLARECHAT_CPU_KERNELS": "off"} if path == "torch" else {}
            done = subprocess.run(
                [*command, "--here"], env=os.environ | own, check=True, capture_output=True
            )
            said.append(json.loads(done.stdout))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--widths", default="1,2,4,6,8")
    parser.add_argument("--out", help="CSV file to write")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
        if (made := library()) is not None:
            made.set_threads(torch.get_num_threads())
        print(json.dumps(rows([int(w) for w in asked.widths.split(",")], asked.rounds)))
        return
    names = ("all", *PARTS)
    lines = ["sampling,acceptance,width,path," + ",".join(f"{name}_us" for name in names)]
    print(f"{'sampling':17} {'by':6} {'W':1} {'path':8}" + "".join(f"{name:>9}" for name in names))
    for path, runs in in_turns(asked).items():
        for cells in zip(*runs, strict=True):
            first = cells[0]
            us = [statistics.median(cell[name] for cell in cells) for name in names]
            key = f"{first['sampling']:17} {first['acceptance']:6} {first['width']} {path:8}"
            print(key + "".join(f"{value:9.0f}" for value in us))
            lines.append(
                f"{first['sampling']},{first['acceptance']},{first['width']},{path},"
                + ",".join(f"{value:.1f}" for value in us)
            )
    if asked.out:
        Path(asked.out).write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
