"""Reads text files below one folder, and nothing else.

Links are followed as far as they stay below it. The file is then opened step by step without
following any, so that nothing exchanged meanwhile leads out.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from flarechat.errors import reason_of
from flarechat.tools.results import ToolError

_STEP = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class ReadError(ToolError):
    """The file cannot be read; the message is a sentence."""


def read_text(folder: Path, name: str, limit: int) -> str:
    """The text of the file `name` below `folder`, cut behind `limit` bytes with a note."""
    try:
        root = folder.resolve(strict=True)
        path = (root / name).resolve(strict=True)
        parts = path.relative_to(root).parts
        data, size = _read(root, parts, limit)
    except (ValueError, RuntimeError):
        raise ReadError(f"{name!r} is not below the folder that may be read.") from None
    except OSError as error:
        raise ReadError(f"{name!r} cannot be read: {reason_of(error)}.") from None
    text = _text(name, data, cut=size > len(data))
    if size > len(data):
        text += f"\n[cut here: the file has {size} bytes, {limit} are the most that is read]"
    return text


def _read(root: Path, parts: tuple[str, ...], limit: int) -> tuple[bytes, int]:
    """The first `limit` bytes of a file and how many it has."""
    with contextlib.ExitStack() as opened:
        at = os.open(root, _STEP | os.O_DIRECTORY)
        opened.callback(os.close, at)
        for number, part in enumerate(parts, start=1):
            kind = os.O_NONBLOCK if number == len(parts) else os.O_DIRECTORY
            at = os.open(part, _STEP | kind, dir_fd=at)
            opened.callback(os.close, at)
        found = os.fstat(at)
        if not stat.S_ISREG(found.st_mode):
            word = "a folder" if stat.S_ISDIR(found.st_mode) else "no file"
            raise OSError(0, f"it is {word}")
        data = b""
        while len(data) < limit and (piece := os.read(at, limit - len(data))):
            data += piece
        return data, max(found.st_size, len(data))


def _text(name: str, data: bytes, *, cut: bool) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not cut or len(data) - error.start > 3:
            raise ReadError(f"{name!r} is no text: it is not UTF-8.") from None
        text = data[: error.start].decode()
    if "\0" in text:
        raise ReadError(f"{name!r} is no text.")
    return text
