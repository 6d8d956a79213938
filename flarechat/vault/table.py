"""The table at the beginning of a safetensors file, read strictly: which tensors lie where.

Owns its rules, and what is raised where a file breaks one. Knows no field of a snapshot.
"""

from __future__ import annotations

import json
import math
from typing import Any

_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "U16": 2, "I16": 2, "F16": 2,
    "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_MOST_DIMS, _MOST_WIDE = 8, 1 << 40
_ODD = "its table of tensors is wrong"


class Damaged(Exception):
    """A file cannot be used; `reason` says why, in words that fit in brackets behind a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Unreadable(Damaged):
    """A file is not there, or cannot be read now; nothing is known against what it holds."""


def require(held: bool, reason: str) -> None:
    """Raise Damaged for this reason where a rule is not held."""
    if not held:
        raise Damaged(reason)


def parsed_table(text: bytes) -> dict[str, Any]:
    """The table as JSON, in which no name comes twice."""
    try:
        table = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise Damaged("its header is not JSON") from error
    require(isinstance(table, dict) and text.startswith(b"{"), "its header is not JSON")
    return dict(table)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name twice")
    return table


def _refused(constant: str) -> Any:
    raise ValueError(constant)


def read_tensors(table: dict[str, Any]) -> tuple[dict[str, tuple[str, tuple[int, ...]]], int]:
    """dtype and shape by name, and the bytes of all, which must lie one behind the other."""
    tensors, spans = dict[str, tuple[str, tuple[int, ...]]](), list[tuple[int, int]]()
    for name, row in table.items():
        require(isinstance(row, dict) and set(row) == {"dtype", "shape", "data_offsets"}, _ODD)
        dtype, shape, span = row["dtype"], row["shape"], row["data_offsets"]
        require(isinstance(dtype, str) and dtype in _BYTES, _ODD)
        require(whole_numbers(shape, _MOST_WIDE) and len(shape) <= _MOST_DIMS, _ODD)
        require(whole_numbers(span, 1 << 62) and len(span) == 2, _ODD)
        require(span[1] - span[0] == math.prod(shape) * _BYTES[dtype], _ODD)
        tensors[name] = dtype, tuple(shape)
        spans.append((span[0], span[1]))
    end = 0
    for begins, ends in sorted(spans):
        require(begins == end, "its tensors overlap or leave gaps")
        end = ends
    return tensors, end


def whole_numbers(value: Any, below: int) -> bool:
    """Whether it is a list of whole numbers from 0 to `below`."""
    if not isinstance(value, list) or set(map(type, value)) - {int}:
        return False
    return not value or 0 <= min(value) <= max(value) < below
