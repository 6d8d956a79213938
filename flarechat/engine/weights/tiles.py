"""Weights [rows, columns] as the CPU's kernels read them: 16 rows side by side, in the numbers of
their file.

Owns that layout, which kernels/cpu/csrc/flarechat.h describes, and what its bytes mean. From a GGUF
block to a tile bytes only move, so nothing is rounded; rows are chosen and reordered exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TILE = 16


@dataclass(frozen=True, slots=True)
class Kind:
    """How `group` columns of a row are stored: `codes` bytes, and `halves` numbers of two bytes
    that belong to them."""

    group: int
    codes: int
    halves: int

    @property
    def bytes(self) -> int:
        """Of a group of one row."""
        return self.codes + 2 * self.halves


KINDS = {
    "q4_0": Kind(32, 16, 1),
    "q4_1": Kind(32, 16, 2),
    "q8_0": Kind(32, 32, 1),
    "bf16": Kind(1, 0, 1),
}


@dataclass(frozen=True, slots=True)
class Tiles:
    """A weight [rows, columns] of a kind in KINDS. `data` is uint8 [tiles, groups, bytes]; the rows
    that fill up its last tile are zeros."""

    kind: str
    rows: int
    columns: int
    data: Tensor

    def decode(self) -> Tensor:
        """float32 [rows, columns], as the file's format defines them."""
        codes, halves = _parts(self.kind, self.data)
        by_row = [part.permute(0, 3, 1, 2).flatten(0, 1)[: self.rows] for part in (codes, halves)]
        return _values(self.kind, *by_row)

    def take(self, ids: Tensor) -> Tiles:
        """The rows `ids` int64 [R], in that order, with data of their own."""
        codes, halves = _parts(self.kind, self.data)
        tile, row = ids // TILE, ids % TILE
        return _laid(self.kind, codes[tile, :, :, row], halves[tile, :, :, row])


def size(kind: str, rows: int, columns: int) -> int:
    """Bytes of such tiles."""
    return math.prod(shape(kind, rows, columns))


def shape(kind: str, rows: int, columns: int) -> tuple[int, int, int]:
    """Tiles, groups and bytes of such data."""
    stored = KINDS[kind]
    return -(-rows // TILE), columns // stored.group, TILE * stored.bytes


def from_blocks(kind: str, raw: np.ndarray) -> Tiles:
    """The tiles of a weight that a GGUF stores in that kind: raw uint8 [rows, bytes of a row]."""
    stored = KINDS[kind]
    blocks = raw.reshape(len(raw), -1, stored.bytes)
    numbers, codes = np.split(blocks, [2 * stored.halves], axis=-1)
    halves = torch.from_numpy(numbers.copy().view("<i2"))
    return _laid(kind, torch.from_numpy(codes.copy().view("<i4")), halves)


def from_bfloat16(weight: Tensor) -> Tiles:
    """The tiles of bfloat16 [rows, columns]."""
    halves = weight.contiguous().view(torch.int16)[..., None]
    return _laid("bf16", halves[..., :0].int(), halves)


def nearest(columns: int) -> str:
    """The kind that floats [rows, columns] are rounded to: bfloat16 where Q8_0 has no groups."""
    return "bf16" if columns % KINDS["q8_0"].group else "q8_0"


def rounded(weight: Tensor) -> Tiles:
    """The tiles nearest to floats [rows, columns]; the scale of a group is its largest / 127."""
    if nearest(weight.shape[1]) == "bf16":
        return from_bfloat16(weight.bfloat16())
    groups = weight.float().reshape(len(weight), -1, KINDS["q8_0"].group)
    scales = (groups.abs().amax(-1, keepdim=True) / 127).half()
    inverse = torch.where(scales > 0, scales.float().reciprocal(), 0.0)
    codes = (groups * inverse).round_().clamp_(-127, 127).to(torch.int8)
    return _laid("q8_0", codes.view(torch.int32), scales.view(torch.int16))


def _parts(kind: str, data: Tensor) -> tuple[Tensor, Tensor]:
    """Views of a tile's codes int32 [T, G, words, 16] and numbers int16 [T, G, halves, 16]."""
    stored, at = KINDS[kind], TILE * KINDS[kind].codes
    codes = data[..., :at].view(torch.int32).view(*data.shape[:2], stored.codes // 4, TILE)
    return codes, data[..., at:].view(torch.int16).view(*data.shape[:2], stored.halves, TILE)


def _laid(kind: str, codes: Tensor, halves: Tensor) -> Tiles:
    """Tiles of rows given apart: codes int32 [R, G, words] and numbers int16 [R, G, halves]."""
    rows, groups = halves.shape[:2]
    columns = groups * KINDS[kind].group
    data = torch.empty(shape(kind, rows, columns), dtype=torch.uint8)
    whole, rest = divmod(rows, TILE)
    data[whole:].zero_()
    for into, part in zip(_parts(kind, data), (codes, halves), strict=True):
        tiled = part[: whole * TILE].view(whole, TILE, *part.shape[1:]).permute(0, 2, 3, 1)
        # By numpy: torch's threads cost more than these copies on a busy machine.
        np.copyto(into[:whole].numpy(), tiled.numpy())
        np.copyto(into[whole:, ..., :rest].numpy(), part[whole * TILE :].permute(1, 2, 0).numpy())
    return Tiles(kind, rows, columns, data)


def _values(kind: str, codes: Tensor, halves: Tensor) -> Tensor:
    """float32 [R, columns] of codes [R, G, words] and numbers [R, G, halves]."""
    if kind == "bf16":
        return halves[..., 0].contiguous().view(torch.bfloat16).float()
    numbers = halves.contiguous().view(torch.float16).float()
    packed = codes.contiguous().view(torch.uint8)
    if kind == "q8_0":
        values = packed.view(torch.int8).float()
    else:
        values = torch.cat([packed & 15, packed >> 4], dim=-1).float()
    if kind == "q4_0":
        values -= 8
    values *= numbers[..., :1]
    if kind == "q4_1":
        values += numbers[..., 1:]
    return values.flatten(1)
