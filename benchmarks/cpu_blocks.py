"""What the attention and MLP blocks of a pass cost on the CPU, by width and context.

    python benchmarks/cpu_blocks.py [--repeats N] [--sets avx512,avx2] [--threads 1,2] [--out CSV]

Random Q4_1 weights of the default model's shapes, in 30 layers with caches of their own, so that a
pass reads what it reads in use. Milliseconds of a pass, medians over rounds that take the cells in
turn. `attention` is what a pass takes more than one that sees a single block of keys, `products`
the same products called one by one, `rest` what remains.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from flarechat.engine.kernels.cpu.library import (
    KINDS,
    AttentionFields,
    Library,
    Matrix,
    MlpFields,
    WindowFields,
    library,
    reason,
)
from flarechat.engine.layers.rope import Rope
from flarechat.engine.state.kv import zeroed
from flarechat.engine.weights import tiles

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, EPS = 30, 576, 1536, 9, 3, 64, 1e-5
CONTEXTS, WIDTHS, PREFILL = (256, 1024, 4096), range(1, 9), 512
ROWS = 4096 + 2 * 8


class Cell(NamedTuple):
    """Rows of a pass and the cache rows before them."""

    width: int
    context: int


class Pass:
    """Thirty layers of random weights, their caches and one slot."""

    def __init__(self, kernels: Library) -> None:
        self.kernels, self.draw = kernels, np.random.default_rng(1)
        self.held: list[torch.Tensor] = []
        rope = Rope(HEAD_DIM, ROWS, 100_000.0, None, torch.device("cpu"))
        self.angles = rope.cos.data_ptr(), rope.sin.data_ptr()
        self.norm = torch.ones(HIDDEN)
        self.held += [rope.cos, rope.sin, self.norm]
        self.attention = [self._attention() for _ in range(LAYERS)]
        self.mlp = [self._mlp() for _ in range(LAYERS)]
        self.counters = torch.zeros(3, 1, dtype=torch.int64)
        self.x = torch.randn(PREFILL, HIDDEN, generator=torch.Generator().manual_seed(2))
        self.y = torch.empty(PREFILL, INNER)

    def _matrix(self, rows: int, columns: int) -> Matrix:
        blocks = self.draw.integers(0, 256, (rows, columns // 32, 20), dtype=np.uint8)
        steps = np.array([0.16 / columns**0.5, -1.2 / columns**0.5], dtype="<f2")
        blocks[..., :4] = steps.view(np.uint8)
        made = tiles.from_blocks("q4_1", blocks.reshape(rows, -1))
        self.held.append(made.data)
        return Matrix(made.data.data_ptr(), KINDS["q4_1"], rows, columns)

    def _attention(self) -> AttentionFields:
        shape = (1, KV_HEADS, ROWS, HEAD_DIM)
        keys, values = (zeroed(shape, torch.float16, torch.device("cpu")) for _ in range(2))
        keys.normal_(), values.normal_()
        self.held += [keys, values]
        sizes = [(HEADS, HIDDEN), (KV_HEADS, HIDDEN), (KV_HEADS, HIDDEN)]
        qkv = [self._matrix(heads * HEAD_DIM, columns) for heads, columns in sizes]
        return AttentionFields(
            self.norm.data_ptr(), *self.angles, keys.data_ptr(), values.data_ptr(),
            keys.stride(0), keys.stride(1), *qkv, self._matrix(HIDDEN, HIDDEN), EPS, HEADS,
            KV_HEADS, HEAD_DIM,
        )  # fmt: skip

    def _mlp(self) -> MlpFields:
        gate, up = self._matrix(INNER, HIDDEN), self._matrix(INNER, HIDDEN)
        return MlpFields(self.norm.data_ptr(), gate, up, self._matrix(HIDDEN, INNER), EPS)

    def blocks(self, cell: Cell) -> None:
        """One pass of all blocks."""
        self.counters[1, 0] = cell.context
        at = [row.data_ptr() for row in self.counters]
        window = WindowFields(*at, 4096 + 8, 1, cell.width, 0, 1)
        x, place = self.x.data_ptr(), ctypes.addressof(window)
        y = self.y.data_ptr()
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            self.kernels.attention_block(ctypes.addressof(attention), place, x, y)
            self.kernels.mlp_block(ctypes.addressof(mlp), cell.width, y, y)

    def products(self, cell: Cell) -> None:
        """Its products alone."""
        x, y = self.x.data_ptr(), self.y.data_ptr()
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            for matrix in (attention.q, attention.k, attention.v, attention.out, mlp.gate, mlp.up):
                self.kernels.linear(ctypes.addressof(matrix), None, EPS, cell.width, x, y)
            down = ctypes.addressof(mlp.down)
            self.kernels.linear(down, None, EPS, cell.width, self.y.data_ptr(), x)


def timed(play: Callable[[Cell], None], cell: Cell) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    play(cell)
    return 1e3 * (time.perf_counter() - start)


def measure(passes: Pass, cells: list[Cell], repeats: int) -> dict[Cell, tuple[float, float]]:
    """Of each cell a pass and its products, medians in milliseconds."""
    seen: dict[Cell, list[tuple[float, float]]] = {cell: [] for cell in cells}
    for _ in range(repeats):
        for cell in cells:
            passes.x.normal_()
            seen[cell].append((timed(passes.blocks, cell), timed(passes.products, cell)))
    return {
        cell: (statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs))
        for cell, pairs in seen.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--sets", default="avx512,avx2")
    parser.add_argument("--threads", default="2,1")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--library", type=Path, help="another build of it")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kernels = Library(ctypes.CDLL(str(options.library))) if options.library else library()
    if kernels is None:
        sys.exit(f"The CPU kernels are not there: {reason()}.")
    widths = [int(width) for width in options.widths.split(",")]
    cells = [Cell(w, c) for w, c in itertools.product(widths, (0, *CONTEXTS)) if w + c <= ROWS - 8]
    prefill = [Cell(64, 0), Cell(PREFILL, 0), Cell(PREFILL, 1024)]
    passes = Pass(kernels)
    columns = "set threads width context pass attention products rest".split()
    print(*columns, sep="\t")
    rows: list[list[object]] = []
    for name, threads in itertools.product(options.sets.split(","), options.threads.split(",")):
        if not kernels.use(name):
            sys.exit(f"This machine lacks {name}.")
        kernels.set_threads(int(threads))
        found = measure(passes, cells, options.repeats)
        found |= measure(passes, prefill, max(3, options.repeats // 5))
        for cell, (whole, products) in found.items():
            bare = found.get(Cell(cell.width, 0), (0.0, 0.0))[0] if cell.width in widths else 0.0
            attention = whole - bare if bare else float("nan")
            parts = (whole, attention, products, whole - products - attention)
            rows.append([name, threads, *cell, *(round(part, 3) for part in parts)])
            print(*rows[-1], sep="\t", flush=True)
    if options.out:
        with options.out.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])


if __name__ == "__main__":
    main()
