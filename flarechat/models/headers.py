"""What the headers of a model folder's safetensors files say of its tensors. Reads no weights.

Owns the words for how values are stored: by the tensor's own type, and by the scales beside it
where several formats share a type.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from flarechat.errors import ModelError
from flarechat.models import folder as folders

Table = dict[str, dict[str, Any]]

_SCALES = re.compile(r"(_scale(_2|_inv)?|\.input_scale|\.nvfp4_csf_(fixed|exceptions))$")
_HEAD = "mtp."


def folder_table(path: Path) -> Table:
    """Type and shape of every tensor of the folder, by name."""
    table: Table = {}
    for file in folders.weight_files(path):
        table |= file_table(file)
    return table


def stored(table: Table) -> dict[str, int]:
    """How many values there are in each format, the largest number first; scales are none."""
    found: dict[str, int] = {}
    for name, entry in table.items():
        if not _SCALES.search(name):
            kind, packed = _kind(table, name, str(entry["dtype"]))
            found[kind] = found.get(kind, 0) + packed * math.prod(entry["shape"])
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def has_head(table: Table) -> bool:
    """Whether a draft head lies among the tensors."""
    return any(name.startswith(_HEAD) for name in table)


def _kind(table: Table, name: str, dtype: str) -> tuple[str, int]:
    """The format of a tensor, and how many values one of its numbers has."""
    if dtype == "U8" and name.endswith(".weight"):
        return "NVFP4", 2
    if dtype != "F8_E4M3":
        return dtype, 1
    if f"{name}_scale_inv" in table:
        return "FP8 blocks", 1
    scale = table.get(f"{name}_scale", {})
    return ("MXFP8" if scale.get("dtype") in ("U8", "F8_E8M0") else "FP8"), 1


def file_table(path: Path) -> Table:
    """The rows of a safetensors header, read without a tensor library."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            table = json.loads(file.read(size))
        return {key: row for key, row in table.items() if key != "__metadata__"}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"The weights file {path} cannot be read: {error}.", "Download it again."
        ) from error
