"""What the tensors of a node are called, and how a node of fewer tokens is made of one.

A node may hold what another chat said behind the place where the next one hangs. Who gives nodes
away gives their beginnings. Owns where rows lie in a tensor; the numbers in them stay as they are.
"""

from __future__ import annotations

import json
import math
from typing import Any

from flarechat.vault import nodefile
from flarechat.vault.identity import digest_of
from flarechat.vault.nodefile import Header

# How names of a node's tensors begin: rows by token, what lies beside them after the last token,
# and what a pass over the last token, which was pending, gave.
ROWS, BESIDE, PASSED = "rows.", "beside.", "passed."

# Rows that stand for several tokens each: how many there are depends on more than how many tokens.
_BLOCKS = ".blocks"
_ALIGNMENT = 8


def beginning(header: Header, data: bytes, *, parent: str, count: int) -> tuple[str, bytes] | None:
    """A node of the first `count` tokens of the node file `data`, behind the node `parent`: its
    digest and its file. What lay beside the last token is not in it, unless it has all tokens.
    None where rows cannot be told apart by token.
    """
    size = int.from_bytes(data[:8], "little")
    table, tensors = json.loads(data[8 : 8 + size]), memoryview(data)[8 + size :]
    del table["__metadata__"]
    total, parts, kept = len(header.tokens), list[bytes](), dict[str, Any]()
    at = 0
    for name, row in sorted(table.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = row["data_offsets"]
        part, shape = bytes(tensors[begin:end]), row["shape"]
        if count < total:
            if not name.startswith(ROWS):
                continue
            rows = _rows(name, shape, total, count)
            if rows is None:
                return None
            part, shape = _cut(part, shape, rows)
        kept[name] = {
            "dtype": row["dtype"], "shape": shape, "data_offsets": [at, at + len(part)],
        }  # fmt: skip
        at += len(part)
        parts.append(part)
    own = header.tokens[:count]
    said = nodefile.metadata(
        header.identity, model=header.model, parent=parent, offset=header.offset, tokens=own,
        drafted=header.drafted,
    )  # fmt: skip
    body = json.dumps({"__metadata__": said} | kept, separators=(",", ":")).encode()
    body += b" " * (-len(body) % _ALIGNMENT)
    file = len(body).to_bytes(8, "little") + body + b"".join(parts)
    return digest_of(parent, header.offset, own), nodefile.sealed(file)


def _rows(name: str, shape: list[int], total: int, count: int) -> int | None:
    """How many of a tensor's rows [..., rows, D] are those of the first `count` of `total` tokens.

    The first tokens of all may have none, where rows pair a token with one before it.
    """
    if name.endswith(_BLOCKS) or len(shape) < 2 or shape[-2] > total:
        return None
    return max(count - (total - shape[-2]), 0)


def _cut(part: bytes, shape: list[int], rows: int) -> tuple[bytes, list[int]]:
    """The first `rows` rows of a tensor [..., rows, D], and its new shape."""
    outer, had = math.prod(shape[:-2]), shape[-2]
    line = len(part) // max(outer * had, 1)
    starts = range(0, outer * had * line, had * line) if had * line else ()
    short = b"".join(part[start : start + rows * line] for start in starts)
    return short, [*shape[:-2], rows, shape[-1]]
