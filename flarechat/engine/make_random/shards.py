"""Safetensors shards written as their tensors come, and the index over them.

Owns the order of bytes in a file. Nothing is held but small tensors: the header's room is kept
free at the start and filled in at the end, with spaces behind it, as the format allows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

_ENTRY_ROOM = 256
_NAMES = {
    torch.int64: "I64", torch.float32: "F32", torch.uint32: "U32", torch.bfloat16: "BF16",
    torch.uint8: "U8", torch.float8_e4m3fn: "F8_E4M3",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Streamed:
    """A tensor of this shape whose rows come in parts."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: Callable[[], Iterator[Tensor]]


Item = tuple[str, Tensor | Streamed]
Wrote = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Group:
    """The tensors of one file, at most `count` of them."""

    count: int
    items: Callable[[], Iterable[Item]]


class ShardWriter:
    """Writes groups into `folder`, one file each, and what would lie askew into a last one.

    Tensors lie in a file without gaps, so one of wider numbers than those before it waits.
    """

    def __init__(self, folder: Path, groups: int, wrote: Wrote) -> None:
        self._folder, self._files, self._wrote = folder, groups + 1, wrote
        self._map: dict[str, str] = {}
        self._late: dict[str, Tensor] = {}
        self._done = self._bytes = 0

    def write(self, group: Group) -> None:
        """Write the next file."""
        self._write(group.items(), group.count)

    def finish(self) -> None:
        """Write what waited, and the index."""
        late = sorted(self._late.items(), key=lambda item: -item[1].element_size())
        self._write(late, len(late))
        index = {"metadata": {"total_size": self._bytes}, "weight_map": self._map}
        path = self._folder / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=1, sort_keys=True))

    def _write(self, items: Iterable[Item], count: int) -> None:
        self._done += 1
        path = self._folder / f"model-{self._done:05}-of-{self._files:05}.safetensors"
        room = _ENTRY_ROOM * (count + 1)
        names, size = _fill(path, self._sorted(items), room, {}, self._wrote)
        self._map |= dict.fromkeys(names, path.name)
        self._bytes += size

    def _sorted(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items that do not have to wait."""
        widest = 8
        for name, item in items:
            if item.dtype.itemsize > widest:
                assert isinstance(item, Tensor), f"{name} is too large to wait"
                self._late[name] = item
            else:
                widest = item.dtype.itemsize
                yield name, item


def write_file(path: Path, group: Group, metadata: dict[str, str], wrote: Wrote) -> None:
    """Write one file that holds all of a group, which has to fit into memory."""
    items = sorted(group.items(), key=lambda item: -item[1].dtype.itemsize)
    room = _ENTRY_ROOM * (len(items) + 1) + len(json.dumps(metadata))
    _fill(path, items, room, metadata, wrote)


def _fill(
    path: Path, items: Iterable[Item], room: int, metadata: dict[str, str], wrote: Wrote
) -> tuple[list[str], int]:
    """Write a file with about `room` bytes for its header; the tensors' names, and their bytes."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    at, room = 0, room + -room % 8
    with path.open("wb") as file:
        file.seek(8 + room)
        for name, item in items:
            begin = at
            for part in item.parts() if isinstance(item, Streamed) else (item,):
                at += _append(file, part)
                wrote(part.nbytes)
            shape, offsets = list(item.shape), [begin, at]
            table[name] = {
                "dtype": _NAMES[item.dtype], "shape": shape, "data_offsets": offsets
            }  # fmt: skip
        body = json.dumps(table, separators=(",", ":")).encode()
        assert len(body) <= room, f"a header of {len(body)} bytes for {room}"
        file.seek(0)
        file.write(room.to_bytes(8, "little") + body.ljust(room))
    del table["__metadata__"]
    return list(table), at


def _append(file: BinaryIO, part: Tensor) -> int:
    # A number alone is no array of bytes to numpy, and float8 no number at all.
    data = part.contiguous().reshape(-1).view(torch.uint8).numpy()
    file.write(data.data)
    return int(data.nbytes)
