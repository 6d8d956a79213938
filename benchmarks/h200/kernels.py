"""Checks every kernel of a model's pass and times it, over ways to cut it: one CSV line each.

    python -m benchmarks.h200.kernels --out FOLDER            on a GPU
    python -m benchmarks.h200.kernels --out FOLDER --dry      interpreted, tiny, to see that it runs

Owns the sweep. Processes beside this one compile all that will be asked for, first; then outputs
are held against float64 with every free byte poisoned; then each case is replayed from a graph.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import torch

from benchmarks.h200 import kernel_pass
from benchmarks.h200.kernel_cases import H200, TINY, Case, Maker, Sizes, error, poisoned
from benchmarks.h200.kernel_pass import Pass
from benchmarks.h200.record import Table
from flarechat.engine.kernels import launch, products, verify_attention
from flarechat.engine.kernels.products import Cut
from flarechat.engine.kernels.verify_attention import Split

WORKERS, REPLAYS, MOST_ERROR = 12, 20, 6e-3
MODES = (launch.ALONE, launch.BEHIND, launch.AHEAD)
CUTS = tuple(
    Cut(block, warps, split)
    for block, warps, split in itertools.product((8, 16, 32), (4, 8), (4, 8))
    if split <= warps
)
SPLITS = tuple(
    Split(keys, blocks, warps, 3, merged)
    for keys, blocks, warps, merged in itertools.product((64, 128), (1, 2, 4), (4, 8), (4, 8))
)


@dataclass(frozen=True, slots=True)
class Job:
    """One line: a case to make, its cut, and how launches follow one another."""

    sort: str
    cut: Any
    mode: int
    make: tuple[Any, ...]

    def case(self, maker: Maker, sizes: Sizes) -> Case:
        """Draw its inputs."""
        made: Case = getattr(maker, self.sort)(*self.make, self.cut)
        return made


class Projection(Job):
    """The queries' kernel takes its sizes whole."""

    __slots__ = ()

    def case(self, maker: Maker, sizes: Sizes) -> Case:
        rows, queries = self.make
        return maker.projection(sizes, rows, self.cut, queries=queries)


def product_jobs(sizes: Sizes, cuts: tuple[Cut, ...]) -> Iterator[Job]:
    """Products and projections: their own cut in every mode, then other cuts."""
    ways = [(None, mode) for mode in MODES] + [(cut, launch.overlap) for cut in cuts]
    for cut, mode in ways:
        for rows in sizes.rows if cut is None else sizes.rows[:2]:
            for made in sizes.products:
                yield Job("product", cut, mode, (*made, rows))
            for queries in (True, False):
                yield Projection("projection", cut, mode, (rows, queries))


def attention_jobs(sizes: Sizes, splits: tuple[Split, ...]) -> Iterator[Job]:
    """Every attention in its own split, then the first in other splits."""
    for shape in sizes.attentions:
        capacity = max(shape[3], sizes.context)
        for lanes, width in itertools.product((1, 4), (1, 4, 8)):
            yield Job("attention", None, launch.overlap, (shape, lanes, width, capacity))
    for split, shape in itertools.product(splits, sizes.attentions[:2]):
        for width in (1, 8):
            yield Job("attention", split, launch.overlap, (shape, 1, width, sizes.context))


def compiled(jobs: list[Job]) -> int:
    """In a process beside: call each once, so that the disk has its machine code."""
    maker = Maker(torch.device("cuda"), torch.bfloat16, cold=False)
    for job in jobs:
        with launch.overlapping(job.mode):
            job.case(maker, H200).calls[0]()
    torch.cuda.synchronize()
    return len(jobs)


def compile_all(jobs: list[Job]) -> None:
    """Compile what `jobs` need; rows and lanes are no part of the machine code."""
    distinct: dict[Any, Job] = {}
    for job in jobs:
        made = job.make
        if isinstance(job, Projection):
            key: Any = made[1]
        else:
            key = (made[0], made[3]) if job.sort == "attention" else made[:4]
        distinct.setdefault((job.sort, job.cut, job.mode, str(key)), job)
    todo = list(distinct.values())
    parts = [part for n in range(WORKERS) if (part := todo[n::WORKERS])]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(parts), mp_context=context) as pool:
        print(f"compiled {sum(pool.map(compiled, parts))} kernels", flush=True)


@torch.inference_mode()
def microseconds(case: Case, device: torch.device) -> float:
    """Of one layer: replayed from a graph of all layers, or called once where there is none."""
    if device.type != "cuda":
        began = time.perf_counter()
        case.calls[-1]()
        return 1e6 * (time.perf_counter() - began)
    calls = case.calls[1:]
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    first.record()
    for _ in range(REPLAYS):
        graph.replay()
    last.record()
    last.synchronize()
    del kept
    return 1e3 * float(first.elapsed_time(last)) / (REPLAYS * len(calls))


def check(case: Case, most: float) -> float:
    """The error of a case whose outputs were poison; more than `most` ends the run."""
    with mock.patch.object(torch, "empty", poisoned):
        found = error(case.calls[0](), case.truth())
    if not found <= most:
        raise SystemExit(f"{case.name}, {case.rows} rows: error {found:.2e}, more than {most:.0e}")
    return found


def alike(call: Callable[[int], torch.Tensor], rows: tuple[int, ...]) -> bool:
    """Whether the first rows are the same, bit for bit, however many come with them."""
    outs = [call(count) for count in rows]
    return all(torch.equal(outs[0], out[:, : rows[0]]) for out in outs)


def check_rows(maker: Maker, sizes: Sizes) -> None:
    """A row's result must not depend on what travels with it."""
    heads, kv, dim = sizes.heads
    x, weight = maker.drawn(1, 32, sizes.wide), maker.drawn(96, sizes.wide)
    assert alike(lambda n: products.plain(x[:, :n], weight), (1, 4, 8, 32)), "products"
    q = maker.drawn(1, 8, heads, dim)
    keys, values = (maker.drawn(1, kv, sizes.context + 16, dim) for _ in range(2))
    start = sizes.context // 2 - 3

    def attend(width: int) -> torch.Tensor:
        _, window = maker.window(1, width, sizes.context, start)
        return verify_attention.attend(q[:, :width].contiguous(), keys, values, window)

    assert alike(attend, (1, 4, 8)), "attention"
    print("rows are alike, bit for bit, whatever travels with them", flush=True)


def line(table: Table, case: Case, cut: str, mode: int, us: float, found: float | None) -> None:
    """One case's time, to the table and the screen."""
    table.add(
        kernel=case.name, rows=case.rows, cut=cut, pdl=mode, us=us, bytes=case.moved,
        gb_per_s=case.moved / us / 1e3, error=found,
    )  # fmt: skip
    print(",".join(map(str, table.rows[-1].values())), flush=True)


def check_pass(own: Pass, config: dict[str, object], most: float, overlaps: int) -> None:
    """A pass must come to the same without kernels, and to the same bits however they overlap."""
    found = kernel_pass.off_by(own, config, 3)
    if not found <= most:
        raise SystemExit(f"a pass's logits: error {found:.2e}, more than {most:.0e}")
    for width in (1, 8):
        with launch.overlapping(launch.ALONE):
            alone = replayed(own, width, 1)[0]
        for mode in MODES[1:]:
            with launch.overlapping(mode):
                outs = replayed(own, width, overlaps)
            assert all(torch.equal(alone, out) for out in outs), f"overlap {mode}, width {width}"
    print(f"pass error {found:.2e}; overlapping changes no bit", flush=True)


def replayed(own: Pass, width: int, times: int) -> list[torch.Tensor]:
    """The logits of as many replays of one pass."""
    own.at(0)
    first = own.logits(width)
    if first.device.type != "cuda":
        return [first]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = own.logits(width)
    outs = []
    for _ in range(times):
        graph.replay()
        outs.append(out.clone())
    return outs


def passes(own: Pass, contexts: tuple[int, ...]) -> Iterator[tuple[Case, int]]:
    """Whole passes to time, in every mode."""
    for mode, context, width in itertools.product(MODES, contexts, (1, 2, 4, 8)):
        yield own.case(width, context), mode


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.h200.kernels")
    parser.add_argument("--out", type=Path, required=True, help="a folder for kernels-sweep.csv")
    parser.add_argument("--dry", action="store_true", help="tiny sizes, interpreted")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    sizes = TINY if asked.dry else H200
    device = torch.device("cpu" if asked.dry else "cuda")
    dtype, most = (torch.float32, 1e-5) if asked.dry else (torch.bfloat16, MOST_ERROR)
    cuts, splits = (CUTS[:1], SPLITS[:1]) if asked.dry else (CUTS, SPLITS)
    jobs = [*product_jobs(sizes, cuts), *attention_jobs(sizes, splits)]
    began = time.perf_counter()
    if not asked.dry:
        compile_all(jobs)
    maker, table = Maker(device, dtype), Table(asked.out / "kernels-sweep.csv")
    pair = maker.lookup(sizes, 3)
    print(f"pair error {check(pair, most):.2e}", flush=True)
    check_rows(maker, sizes)
    config = kernel_pass.TINY if asked.dry else kernel_pass.CONFIG
    own = Pass(config, device, "float32" if asked.dry else "bfloat16")
    check_pass(own, config, 10 * most, 20)
    for case, mode in passes(own, (40,) if asked.dry else (256, 1024, 8000)):
        with launch.overlapping(mode):
            line(table, case, "own", mode, microseconds(case, device), None)
    for job in jobs:
        case = job.case(maker, sizes)
        with launch.overlapping(job.mode):
            found = check(case, most)
            spent = microseconds(case, device)
        cut = "own" if job.cut is None else "/".join(map(str, astuple(job.cut)))
        line(table, case, cut, job.mode, spent, found)
    print(f"{len(table.rows)} lines in {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
