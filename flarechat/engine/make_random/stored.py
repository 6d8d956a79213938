"""Drawn values as a checkpoint stores them: the tensors of one matrix in each format.

Owns which tensors, under which endings, a format makes of a matrix. How numbers are packed is
`weights.formats`' to know.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from flarechat.engine.make_random.shards import Item, Streamed
from flarechat.engine.weights.formats import (
    FP8,
    Packed,
    encode_csf,
    encode_fp8_blocks,
    encode_mxfp8,
    encode_nvfp4,
)

BLOCK = 1 << 24  # values drawn at a time
TABLE_BLOCK = 1 << 16  # rows of the table before it repeats
TABLE_SCALE = torch.tensor([6 / 448], dtype=torch.bfloat16)
INPUT_SCALE = 0.01


@dataclass(frozen=True, slots=True)
class Drawn:
    """A tensor by its shape and the law of its values; `gain` widens a matrix's.

    Added to that are `identity` times the identity, and `by` times a matrix that has the rows of
    the one named `follows`, each a row later.
    """

    shape: tuple[int, ...]
    law: str = "matrix"
    gain: float = 1.0
    identity: float = 0.0
    follows: str = ""
    by: float = 0.0

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class Draws:
    """Values by seed and name: the same in every format, whatever else was drawn before."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def values(self, name: str, drawn: Drawn, rows: int | None = None) -> Tensor:
        """The float32 values of a tensor, or of its first `rows`."""
        shape = drawn.shape if rows is None else (rows, *drawn.shape[1:])
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        if drawn.law in ("scale", "decay"):
            even = torch.rand(shape, generator=generator)
            return even + 0.5 if drawn.law == "scale" else (15 * even + 1).log()
        normal = torch.randn(shape, generator=generator)
        spreads = {"norm": 0.2, "conv": 0.3, "bias": 0.5, "table": 1.0}
        return normal * spreads.get(drawn.law, drawn.gain / math.sqrt(drawn.shape[-1]))

    def dense(self, name: str, drawn: Drawn) -> Item:
        """The tensor in BF16, drawn a block at a time if it is large."""
        if drawn.numel <= BLOCK:
            return name, self._block(name, drawn, "", None)
        rows = max(1, BLOCK // (drawn.numel // drawn.shape[0]))

        def parts() -> Iterator[Tensor]:
            for first in range(0, drawn.shape[0], rows):
                count = min(rows, drawn.shape[0] - first)
                yield self._block(name, drawn, f"[{first}]", count)

        return name, Streamed(drawn.shape, torch.bfloat16, parts)

    def _block(self, name: str, drawn: Drawn, place: str, rows: int | None) -> Tensor:
        found = self.values(name + place, drawn, rows)
        if drawn.follows:
            before = self.values(drawn.follows + place, Drawn(drawn.shape), rows)
            found += drawn.by * before.roll(1, 0)
        if drawn.identity:
            found += drawn.identity * torch.eye(*found.shape)
        return found.bfloat16()

    def mxfp8(self, name: str, drawn: Drawn) -> Iterator[Item]:
        """A matrix in MXFP8."""
        packed = encode_mxfp8(self.values(name, drawn))
        yield name, packed.weight
        yield f"{name}_scale", packed.scale

    def shard(self, name: str, drawn: Drawn, form: str) -> Iterator[Item]:
        """A shard of the n-gram table; its rows behind the first TABLE_BLOCK repeat those."""
        block = self.values(name, drawn, min(drawn.shape[0], TABLE_BLOCK))
        if form == "bf16":
            yield name, _repeated(block.bfloat16(), drawn.shape[0])
        elif form == "fp8":
            scaled = (block / TABLE_SCALE.float()).clamp(-448, 448)
            yield name, _repeated(scaled.to(FP8), drawn.shape[0])
        else:
            yield from _named(name, encode_nvfp4(block), drawn.shape[0])

    def experts(self, base: str, count: int, inner: int, dim: int, form: str) -> Iterator[Item]:
        """All routed experts of a layer: fused in BF16, else three matrices each."""
        gate, down = Drawn((inner, dim)), Drawn((dim, inner))
        if form == "bf16":
            yield from self._fused(base, count, gate, down)
            return
        for expert in range(count):
            own = f"{base}.{expert}"
            drawn = {name: self.values(f"{own}.{name}", gate) for name in ("gate_proj", "up_proj")}
            yield from _pair(own, drawn, form)
            yield from _pair(own, {"down_proj": self.values(f"{own}.down_proj", down)}, form)

    def _fused(self, base: str, count: int, gate: Drawn, down: Drawn) -> Iterator[Item]:
        def gates() -> Iterator[Tensor]:
            for n in range(count):
                names = (f"{base}.{n}.gate_proj", f"{base}.{n}.up_proj")
                yield torch.cat([self.values(name, gate) for name in names]).bfloat16()

        def downs() -> Iterator[Tensor]:
            for n in range(count):
                yield self.values(f"{base}.{n}.down_proj", down).bfloat16()

        inner, dim = gate.shape
        both = (count, 2 * inner, dim)
        yield f"{base}.gate_up_proj", Streamed(both, torch.bfloat16, gates)
        yield f"{base}.down_proj", Streamed((count, *down.shape), torch.bfloat16, downs)


def _pair(base: str, drawn: dict[str, Tensor], form: str) -> Iterator[Item]:
    """Matrices of one expert that share their global scales."""
    most = max(float(values.abs().amax()) for values in drawn.values())
    for part, values in drawn.items():
        name = f"{base}.{part}.weight"
        if form == "fp8":
            packed = encode_fp8_blocks(values)
            yield name, packed.weight
            yield f"{name}_scale_inv", packed.scale
            continue
        packed = encode_nvfp4(values, torch.tensor(most / (6 * 448)))
        if form == "csf":
            yield from _csf(name, packed)
        else:
            yield from _named(name, packed, values.shape[0])
        if form != "nvfp4-a16":
            yield f"{base}.{part}.input_scale", torch.tensor(INPUT_SCALE)


def _named(name: str, packed: Packed, rows: int) -> Iterator[Item]:
    assert packed.scale_2 is not None, "nvfp4 has two scales"
    yield name, _repeated(packed.weight, rows)
    yield f"{name}_scale", _repeated(packed.scale, rows)
    yield f"{name}_scale_2", packed.scale_2


def _csf(name: str, packed: Packed) -> Iterator[Item]:
    assert packed.scale_2 is not None, "nvfp4 has two scales"
    fixed, exceptions = encode_csf(packed.scale)
    yield name, packed.weight
    yield f"{name}_scale.nvfp4_csf_fixed", fixed
    yield f"{name}_scale.nvfp4_csf_exceptions", exceptions
    yield f"{name}_scale_2", packed.scale_2


def _repeated(block: Tensor, rows: int) -> Tensor | Streamed:
    """The rows of `block` over and over, `rows` in all."""
    have = block.shape[0]
    if rows == have:
        return block

    def parts() -> Iterator[Tensor]:
        for first in range(0, rows, have):
            yield block[: rows - first]

    return Streamed((rows, *block.shape[1:]), block.dtype, parts)
