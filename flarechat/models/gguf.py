"""Reads GGUF files: the tables fast, the tensors one at a time.

Owns the file format: every length and offset is checked against the file before it is believed.
Knows no model family and imports no torch; values are decoded by the `gguf` package.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from flarechat.errors import ModelError

if TYPE_CHECKING:
    import numpy as np

MAGIC = b"GGUF"
VERSIONS = (2, 3)
REMEDY = "Pull or download the file again, or give another one with --model."

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_MAX_NAME = 65_535
_MAX_DIMENSIONS = 4
_SMALLEST_PAIR = 8 + 4 + 1  # key length, value type, one byte of value
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8  # name length, dimensions, one of them, type, offset


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a tensor type is stored: `bytes` for every block of `block` values."""

    name: str
    block: int
    bytes: int


ENCODINGS: dict[int, Encoding] = {
    number: Encoding(name, block, size)
    for number, name, block, size in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (30, "BF16", 1, 2),
        (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210),
        (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (29, "IQ1_M", 256, 56),
        (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One row of the tensor table. `shape` is row-major, outermost first; `start` is absolute."""

    name: str
    shape: tuple[int, ...]
    type: int
    start: int
    size: int

    @property
    def encoding(self) -> Encoding:
        return ENCODINGS[self.type]

    @property
    def values(self) -> int:
        return math.prod(self.shape)


class Gguf:
    """An open GGUF file: `metadata`, the tensor table `tensors`, and `read` for their values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _mapped(path)
        cursor = _Cursor(path, self._map)
        pairs, tensors = _read_header(cursor)
        self.metadata: dict[str, Any] = _read_pairs(cursor, pairs)
        self.tensors: dict[str, TensorEntry] = _read_tensors(cursor, tensors, self._alignment())

    @cached_property
    def parameters(self) -> int:
        return sum(entry.values for entry in self.tensors.values())

    def read(self, name: str) -> np.ndarray:
        """The values of one tensor as float32, in their row-major shape."""
        import numpy as np
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        entry = self.tensors[name]
        values = dequantize(self.raw(name), GGMLQuantizationType(entry.type))
        return np.ascontiguousarray(values, dtype=np.float32).reshape(entry.shape)

    def raw(self, name: str) -> np.ndarray:
        """The bytes of one tensor as they are stored: uint8 [rows, bytes of a row], read-only."""
        import numpy as np

        entry = self.tensors[name]
        stored = np.frombuffer(self._map, dtype=np.uint8, count=entry.size, offset=entry.start)
        return stored.reshape(math.prod(entry.shape[:-1]), -1)

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            _broken(self.path, f"gives {alignment!r} as its general.alignment")
        return alignment


def is_gguf(path: Path) -> bool:
    """Whether the file starts as a GGUF file does."""
    with path.open("rb") as file:
        return file.read(4) == MAGIC


class _Cursor:
    """A position in the file that never passes its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def need(self, size: int, what: str) -> None:
        if size > self.left:
            _broken(
                self.path,
                f"is cut off: {what} at byte {self.at} needs {size} bytes and {self.left} are left",
            )

    def take(self, form: str, what: str) -> Any:
        self.need(struct.calcsize("<" + form), what)
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def count(self, smallest: int, what: str) -> int:
        """A number of things that each take at least `smallest` bytes of the rest."""
        value: int = self.take("Q", what)
        if value * smallest > self.left:
            _broken(
                self.path, f"claims {value} for {what}, more than its {len(self.data)} bytes hold"
            )
        return value

    def text(self, what: str, longest: int | None = None) -> str:
        size = self.count(1, f"the length of {what}")
        if longest is not None and size > longest:
            _broken(self.path, f"claims {size} bytes for {what}; at most {longest} are allowed")
        raw = self.data[self.at : self.at + size]
        self.at += size
        try:
            return raw.decode()
        except UnicodeDecodeError:
            _broken(self.path, f"holds {what} that is not UTF-8")

    def texts(self, count: int, what: str) -> list[str]:
        """`count` strings. One flat loop: a vocabulary has tens of thousands."""
        data, at, end, found = self.data, self.at, len(self.data), []
        unpack = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                (size,) = unpack(data, at)
                at += 8
                if size > end - at:
                    _broken(self.path, f"is cut off in {what} at byte {at}")
                found.append(data[at : at + size].decode())
                at += size
        except struct.error:
            _broken(self.path, f"is cut off in {what} at byte {at}")
        except UnicodeDecodeError:
            _broken(self.path, f"holds a string in {what} that is not UTF-8")
        self.at = at
        return found


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            start = file.read(4)
            if start != MAGIC:
                found = f"it starts with {start!r}" if start else "it is empty"
                raise ModelError(f"{path} is not a GGUF file: {found}.", REMEDY)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(
            f"The model file {path} cannot be read: {error.strerror or error}.",
            "Check the path and its permissions, or give another file with --model.",
        ) from error


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    cursor.at = len(MAGIC)
    version = cursor.take("I", "the format version")
    if version not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            _broken(cursor.path, "is written for big-endian machines")
        _broken(cursor.path, f"has GGUF version {version}; versions 2 and 3 can be read")
    tensors = cursor.take("Q", "the number of tensors")
    pairs = cursor.count(_SMALLEST_PAIR, "the number of metadata keys")
    if tensors * _SMALLEST_TENSOR > cursor.left:
        _broken(
            cursor.path,
            f"claims {tensors} for the number of tensors, "
            f"more than its {len(cursor.data)} bytes hold",
        )
    return pairs, tensors


def _read_pairs(cursor: _Cursor, count: int) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.text("a metadata key", _MAX_NAME)
        if key in pairs:
            _broken(cursor.path, f"has the metadata key {key!r} twice")
        pairs[key] = _read_value(cursor, cursor.take("I", f"the type of {key}"), key)
    return pairs


def _read_value(cursor: _Cursor, kind: int, key: str) -> Any:
    if kind == _STRING:
        return cursor.text(key)
    if kind in _SCALARS:
        return cursor.take(_SCALARS[kind], key)
    if kind != _ARRAY:
        _broken(cursor.path, f"gives {key!r} the unknown value type {kind}")
    items = cursor.take("I", f"the type of {key}")
    if items == _STRING:
        return cursor.texts(cursor.count(8, f"the length of {key}"), key)
    if items not in _SCALARS:
        _broken(cursor.path, f"gives the items of {key!r} the unknown value type {items}")
    form = _SCALARS[items]
    count = cursor.count(struct.calcsize("<" + form), f"the length of {key}")
    values = struct.unpack_from(f"<{count}{form}", cursor.data, cursor.at)
    cursor.at += struct.calcsize(f"<{count}{form}")
    return list(values)


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorEntry]:
    rows: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(count):
        name = cursor.text("a tensor name", _MAX_NAME)
        dimensions = cursor.take("I", f"the dimensions of {name}")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            _broken(cursor.path, f"gives the tensor {name} {dimensions} dimensions")
        sizes = [cursor.take("Q", f"the shape of {name}") for _ in range(dimensions)]
        kind = cursor.take("I", f"the type of {name}")
        rows.append((name, tuple(reversed(sizes)), kind, cursor.take("Q", f"the offset of {name}")))
    data = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorEntry] = {}
    for name, shape, kind, offset in rows:
        if name in tensors:
            _broken(cursor.path, f"has the tensor {name} twice")
        tensors[name] = _placed(cursor, name, shape, kind, data, offset, alignment)
    return tensors


def _placed(
    cursor: _Cursor,
    name: str,
    shape: tuple[int, ...],
    kind: int,
    data: int,
    offset: int,
    alignment: int,
) -> TensorEntry:
    """The checked table row of one tensor."""
    encoding = ENCODINGS.get(kind)
    if encoding is None:
        names = ", ".join(each.name for each in ENCODINGS.values())
        raise ModelError(
            f"{cursor.path} stores {name} in the unknown tensor type {kind}.",
            f"Give a file in one of the types {names}.",
        )
    if 0 in shape or shape[-1] % encoding.block:
        _broken(cursor.path, f"gives {name} the shape {shape}, impossible in {encoding.name}")
    if offset % alignment:
        _broken(cursor.path, f"places {name} at {offset}, no multiple of {alignment}")
    size = math.prod(shape) // encoding.block * encoding.bytes
    end = data + offset + size
    if end > len(cursor.data):
        _broken(
            cursor.path, f"is cut off: {name} ends at byte {end} and the file at {len(cursor.data)}"
        )
    return TensorEntry(name, shape, kind, data + offset, size)


def _broken(path: Path, what: str) -> NoReturn:
    raise ModelError(f"The model file {path} {what}.", REMEDY)
