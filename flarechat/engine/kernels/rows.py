"""Rows of a table in pinned host memory, fetched by the GPU itself, in Triton.

Owns the addresses of the table's parts. Which rows, and what their bytes mean, is the caller's to
say. Nothing waits for the host, so the look-up can be part of a captured round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where parts [rows, bytes] lie that together are one table; int64 tensors on the device.

    `codes` and `scales` [parts] are addresses (no scales: the codes again), `ends` [parts] the
    rows up to the end of each part. The memory must outlive this and be within the GPU's reach.
    """

    codes: Tensor
    scales: Tensor
    ends: Tensor
    code_bytes: int
    scale_bytes: int

    @classmethod
    def of(
        cls, codes: Sequence[Tensor], scales: Sequence[Tensor], device: torch.device
    ) -> Addresses:
        """Addresses of uint8 parts."""

        def tensor(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        ends = tensor([len(part) for part in codes]).cumsum(0)
        own = tensor([part.data_ptr() for part in codes])
        other = tensor([part.data_ptr() for part in scales]) if scales else own
        return cls(own, other, ends, codes[0].shape[1], scales[0].shape[1] if scales else 0)


def gather_rows(table: Addresses, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows int64 [n] → their bytes uint8 [n, code bytes + scale bytes], and their parts [n]."""
    width = table.code_bytes + table.scale_bytes
    out = torch.empty(len(rows), width, dtype=torch.uint8, device=rows.device)
    part = torch.searchsorted(table.ends, rows, right=True)
    sizes = torch.diff(table.ends, prepend=table.ends.new_zeros(1))
    inside = rows - (table.ends - sizes)[part]
    _gather[(len(rows),)](
        table.codes, table.scales, part, inside, out,
        CODES=table.code_bytes, SCALES=table.scale_bytes,
        TILE=triton.next_power_of_2(max(table.code_bytes, table.scale_bytes)),
    )  # fmt: skip
    return out, part


@triton.jit  # type: ignore[untyped-decorator]
def _gather(  # type: ignore[no-untyped-def]
    codes, scales, part, inside, out,
    CODES: tl.constexpr, SCALES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One row a program, byte by byte."""
    row = tl.program_id(0)
    own, line = tl.load(part + row), tl.load(inside + row)
    place = tl.arange(0, TILE)
    to = out + row.to(tl.int64) * (CODES + SCALES) + place
    source = tl.load(codes + own).to(tl.pointer_type(tl.uint8)) + line * CODES + place
    tl.store(to, tl.load(source, place < CODES, other=0), place < CODES)
    if SCALES > 0:
        source = tl.load(scales + own).to(tl.pointer_type(tl.uint8)) + line * SCALES + place
        tl.store(to + CODES, tl.load(source, place < SCALES, other=0), place < SCALES)
