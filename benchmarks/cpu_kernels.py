"""What products cost on a CPU: the default model's weights by width, instruction set and threads.

    python benchmarks/cpu_kernels.py [--widths 1,2,8,512] [--sets avx2,avx512] [--threads 1,2]
                                     [--repeat N] [--out CSV]

A pass is the 210 products of 30 layers (Q4_1) and the head (Q8_0), one call each; beside it the
time of reading the same bytes. Widths take turns, and every figure is a median. Load is the share
of the machine's cores that others kept busy meanwhile: above a few percent the rest is worth
little.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flarechat.engine.kernels import cpu
from flarechat.engine.kernels.cpu.library import INSTRUCTIONS, Library, Matrix, matrix_bytes

LAYERS, HIDDEN, INNER, VOCABULARY = 30, 576, 1536, 49152
LAYER = (
    (HIDDEN, HIDDEN), (192, HIDDEN), (192, HIDDEN), (HIDDEN, HIDDEN),
    (INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER),
)  # fmt: skip
Q4_1, Q8_0 = 1, 2
FIELDS = ("set", "threads", "width", "ms", "of_width_1", "gb_per_s", "gmac_per_s", "load")


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights, as bytes and as the library takes them."""

    arrays: list[NDArray[np.uint64]]
    matrices: list[Matrix]

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    @property
    def products(self) -> int:
        """Multiplications of one row."""
        return sum(matrix.rows * matrix.columns for matrix in self.matrices)


def make_weights() -> Weights:
    """Random codes under one scale; 64-bit words, which are read fast."""
    random = np.random.default_rng(0)
    shapes = [("q4_1", Q4_1, *shape) for shape in LAYER * LAYERS]
    arrays, matrices = [], []
    for kind, number, rows, columns in (*shapes, ("q8_0", Q8_0, VOCABULARY, HIDDEN)):
        codes, factors = (256, 32) if number == Q4_1 else (512, 16)
        groups = random.integers(0, 256, (rows * columns // 512, codes + 2 * factors), np.uint8)
        groups[:, codes:] = np.full(factors, 0.01, np.float16).view(np.uint8)
        arrays.append(groups.reshape(-1).view(np.uint64))
        assert arrays[-1].nbytes == matrix_bytes(kind, rows, columns)
        matrices.append(Matrix(arrays[-1].ctypes.data, number, rows, columns))
    return Weights(arrays, matrices)


def one_pass(library: Library, weights: Weights, width: int) -> Callable[[], None]:
    """Every product of `width` rows."""
    x = np.random.default_rng(1).normal(size=(width, INNER)).astype(np.float32)
    y = np.empty((width, VOCABULARY), np.float32)
    places = [ctypes.addressof(matrix) for matrix in weights.matrices]
    from_x, to_y = x.ctypes.data, y.ctypes.data

    def play() -> None:
        for place in places:
            library.linear(place, None, 0.0, width, from_x, to_y)
        assert x.size and y.size  # They live as long as this.

    return play


def reading(weights: Weights, threads: int, pool: ThreadPoolExecutor) -> Callable[[], None]:
    """Every byte of the weights, summed in as many parts as there are threads."""
    stream = np.concatenate(weights.arrays)
    parts = np.array_split(stream, threads)

    def read() -> None:
        for _ in pool.map(np.add.reduce, parts):
            pass

    return read


def busy_elsewhere() -> float:
    """Seconds of all cores' work so far, but for this process's; 0 where /proc does not tell."""
    try:
        numbers = [int(each) for each in Path("/proc/stat").read_text().split()[1:9]]
    except OSError:
        return 0.0
    idle_and_waiting = numbers[3] + numbers[4]
    return (sum(numbers) - idle_and_waiting) / os.sysconf("SC_CLK_TCK") - time.process_time()


def measure(plays: dict[int, Callable[[], None]], repeat: int) -> tuple[dict[int, float], float]:
    """Seconds of each, the median of `repeat` turns; and the load by others meanwhile."""
    taken: dict[int, list[float]] = {width: [] for width in plays}
    began, before = time.perf_counter(), busy_elsewhere()
    for turn in range(repeat + 1):
        for width in list(plays)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            plays[width]()
            taken[width].append(time.perf_counter() - start)
    cores = (time.perf_counter() - began) * (os.cpu_count() or 1)
    seconds = {width: statistics.median(each[1:]) for width, each in taken.items()}
    return seconds, (busy_elsewhere() - before) / cores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--widths", default="1,2,3,4,5,6,7,8,512")
    parser.add_argument("--sets", default=",".join(INSTRUCTIONS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    library = cpu.library()
    if library is None:
        raise SystemExit(f"There are no CPU kernels to measure: {cpu.reason()}.")
    weights = make_weights()
    widths = [int(width) for width in options.widths.split(",")]
    rows = []
    for threads in (int(each) for each in options.threads.split(",")):
        library.set_threads(threads)
        with ThreadPoolExecutor(threads) as pool:
            rows += table(
                weights, "read", threads, {0: reading(weights, threads, pool)}, options.repeat
            )
        for name in options.sets.split(","):
            if not library.use(name):
                print(f"this machine lacks {name}")
                continue
            plays = {width: one_pass(library, weights, width) for width in widths}
            narrow = {width: play for width, play in plays.items() if width <= 16}
            wide = {width: play for width, play in plays.items() if width > 16}
            for group, repeat in ((narrow, options.repeat), (wide, max(1, options.repeat // 5))):
                rows += table(weights, name, threads, group, repeat) if group else []
    if options.out:
        with options.out.open("w", newline="") as file:
            csv.writer(file).writerows([FIELDS, *rows])


def table(
    weights: Weights, name: str, threads: int, plays: dict[int, Callable[[], None]], repeat: int
) -> list[tuple[object, ...]]:
    """Measure and print one line for each width."""
    seconds, load = measure(plays, repeat)
    first = seconds[min(seconds)]
    rows: list[tuple[object, ...]] = []
    for width, taken in seconds.items():
        row = (
            name, threads, width, f"{taken * 1e3:.3f}", f"{taken / first:.2f}",
            f"{weights.bytes / taken / 1e9:.1f}", f"{weights.products * width / taken / 1e9:.0f}",
            f"{load:.2f}",
        )  # fmt: skip
        print(*(f"{value!s:>10}" for value in row))
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
