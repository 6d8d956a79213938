"""The form of a snapshot's file: safetensors, whose metadata say what lies in it, and a checksum.

Owns the fields, their limits and every check that needs no tensor library; `table` has those of any
safetensors file. A file is believed only
as a whole: the checksum counts every byte, its own 64 digits as zeros.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from flarechat.errors import reason_of
from flarechat.textsafe import strip_controls, well_formed
from flarechat.vault.identity import Identity, digest_of
from flarechat.vault.table import (
    Damaged,
    Unreadable,
    parsed_table,
    read_tensors,
    require,
    whole_numbers,
)

__all__ = [
    "FORMAT",
    "SUFFIX",
    "VERSION",
    "Damaged",
    "Header",
    "Unreadable",
    "metadata",
    "parsed",
    "read_header",
    "read_whole",
    "sealed",
]

FORMAT, VERSION, SUFFIX = "flarechat-snapshot", 1, ".safetensors"
MOST_HEADER_BYTES = 16 << 20
MOST_TOKENS = 1_000_000

_FIELDS = {
    "format", "version", "recipe", "fingerprint", "dtype", "device", "layout", "model", "parent",
    "offset", "tokens", "drafted", "sha256",
}  # fmt: skip
_MOST_TOKEN = 1 << 31
_PREFIX = 8  # bytes before the header: how long it is
_ZEROS = "0" * 64
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says of itself. `tensors` has of each the dtype, as safetensors spells it, and
    the shape; `nbytes` is what they take, `size` what the file takes. `offset` and `tokens` are as
    a node has them, and `model` is a name for lists."""

    identity: Identity
    model: str
    parent: str
    offset: int
    tokens: tuple[int, ...]
    drafted: bool
    sha256: str
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    nbytes: int
    size: int

    @property
    def digest(self) -> str:
        """The node's, by which its file is named."""
        return digest_of(self.parent, self.offset, self.tokens)

    @property
    def first(self) -> bool:
        """Whether it hangs on no other node."""
        return self.parent == self.identity.digest

    def above(self, path: Path) -> Path:
        """The file of what it hangs on, by its own; that of the first nodes never exists."""
        return path.with_name(self.parent + SUFFIX)


# Writing.


def metadata(
    identity: Identity, *, model: str, parent: str, offset: int, tokens: Sequence[int],
    drafted: bool,
) -> dict[str, str]:  # fmt: skip
    """What a node's file has beside its tensors; `sealed` puts the checksum in."""
    return {
        "format": FORMAT, "version": str(VERSION), "recipe": identity.recipe,
        "fingerprint": identity.fingerprint, "dtype": identity.dtype, "device": identity.device,
        "layout": str(identity.layout), "model": _clean(model), "parent": parent,
        "offset": str(offset), "tokens": json.dumps(list(tokens), separators=(",", ":")),
        "drafted": "true" if drafted else "false", "sha256": _ZEROS,
    }  # fmt: skip


def sealed(data: bytes) -> bytes:
    """A safetensors file with such metadata, its checksum in place of the zeros."""
    begins = _seal(data[: _PREFIX + _length(data[:_PREFIX], len(data))])
    digits = _checksum(memoryview(data), begins).encode()
    return b"".join((data[:begins], digits, memoryview(data)[begins + len(digits) :]))


# Reading.


def read_header(path: Path) -> Header:
    """What the file says of itself, by its beginning alone.

    Raises Damaged where it is not whole by its own table, not a snapshot, of another version, or
    not the one that its name and its folder's name promise.
    """
    with _opened(path) as file:
        return _begun(file, path.name.removesuffix(SUFFIX), path.parent.name)


def read_whole(path: Path, digest: str | None = None) -> tuple[Header, bytes]:
    """What the file says of itself and all its bytes, which are sound; `digest` is the node's, by
    default the one in the file's name. Raises Damaged."""
    digest, folder = digest or path.name.removesuffix(SUFFIX), path.parent.name
    with _opened(path) as file:
        _begun(file, digest, folder)  # before as much is read as the file is long
        file.seek(0)
        data = file.read()
    return parsed(data, digest, folder), data


def parsed(data: bytes, digest: str, folder: str) -> Header:
    """What these bytes say of themselves as the file of a node in the folder of an identity, both
    given by their digests, if all of them are sound. Raises Damaged."""
    head = data[: _PREFIX + _length(data[:_PREFIX], len(data))]
    header = _understood(head, len(data), digest, folder)
    require(_checksum(memoryview(data), _seal(head)) == header.sha256, "its checksum is wrong")
    return header


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    # A pipe or a link under such a name is nobody's snapshot, and opening a pipe would wait.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(path, flags), "rb") as file:
            require(stat.S_ISREG(os.fstat(file.fileno()).st_mode), "it is not a file")
            yield file
    except FileNotFoundError as error:
        raise Unreadable("its file is missing") from error
    except OSError as error:
        raise Unreadable(f"its file cannot be read: {reason_of(error)}") from error
    except MemoryError as error:
        raise Unreadable("its file does not fit in memory") from error


def _begun(file: BinaryIO, digest: str, folder: str) -> Header:
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(_PREFIX)
    return _understood(prefix + file.read(_length(prefix, size)), size, digest, folder)


def _length(prefix: bytes, size: int) -> int:
    """Bytes of the header of a file of `size` bytes."""
    length = int.from_bytes(prefix, "little")
    require(len(prefix) == _PREFIX and length <= size - _PREFIX, "its file is cut off")
    require(length <= MOST_HEADER_BYTES, "its header is too long")
    return length


def _seal(head: bytes) -> int:
    """Where the digits of the checksum begin."""
    found = list(_SEAL.finditer(head))
    require(len(found) == 1, "it has no checksum")
    return found[0].start(1)


def _checksum(data: memoryview, begins: int) -> str:
    """SHA-256 of all bytes, of which 64 count as zeros."""
    summed = hashlib.sha256(data[:begins])
    summed.update(_ZEROS.encode())
    summed.update(data[begins + len(_ZEROS) :])
    return summed.hexdigest()


def _understood(head: bytes, size: int, digest: str, folder: str) -> Header:
    """The header, if it keeps every rule; `head` is all of the file before its tensors."""
    require(len(head) == _PREFIX + int.from_bytes(head[:_PREFIX], "little"), "its file is cut off")
    table = parsed_table(head[_PREFIX:])
    fields = table.pop("__metadata__", None)
    require(isinstance(fields, dict) and fields.get("format") == FORMAT, "it is not a snapshot")
    require(fields.get("version") == str(VERSION), "it is of another version")
    require(set(fields) == _FIELDS, "its fields are not those of a snapshot")
    require(
        all(isinstance(f, str) and _clean(f) == f for f in fields.values()),
        "a field in it is no plain text",
    )
    tensors, nbytes = read_tensors(table)
    require(len(head) + nbytes == size, "its file is not as long as its tensors")
    header = Header(
        identity=Identity(
            recipe=fields["recipe"], fingerprint=fields["fingerprint"], dtype=fields["dtype"],
            device=fields["device"], layout=_number(fields["layout"]),
        ),
        model=fields["model"], parent=_digest(fields["parent"]), offset=_number(fields["offset"]),
        tokens=_tokens(fields["tokens"]), drafted=_truth(fields["drafted"]),
        sha256=_digest(fields["sha256"]), tensors=tensors, nbytes=nbytes, size=size,
    )  # fmt: skip
    require(header.identity.digest == folder, "its folder is another model's")
    require(header.digest == digest, "it holds other tokens than its name says")
    require(not (header.first and header.offset), "it hangs on nothing")
    return header


def _tokens(text: str) -> tuple[int, ...]:
    try:
        tokens = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged("its tokens are not numbers") from error
    require(whole_numbers(tokens, _MOST_TOKEN), "its tokens are not numbers")
    require(0 < len(tokens) <= MOST_TOKENS, "it has no tokens, or too many")
    return tuple(tokens)


def _digest(text: str) -> str:
    require(_DIGEST.fullmatch(text) is not None, "a digest in it is none")
    return text


def _number(text: str) -> int:
    require(_NUMBER.fullmatch(text) is not None, "a number in it is none")
    return int(text)


def _truth(text: str) -> bool:
    require(text in ("true", "false"), "it does not say whether drafts can be relied on")
    return text == "true"


def _clean(text: str) -> str:
    return well_formed(strip_controls(text))
