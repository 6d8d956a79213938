"""Finds the learned draft head of a model: a safetensors file that names the models it is for.

Owns the file's header: its bounds, its tensor table and the record under "flarechat.mtp". Reads no
weights and imports no torch. A file that cannot be used is told in one sentence and passed over,
never raised: a chat goes on without a head.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from flarechat import paths
from flarechat.errors import ModelError

RECORD_KEY = "flarechat.mtp"
FORMAT = 1
MOST_HEADER_BYTES = 8 << 20
_MOST_DIMENSIONS = 4
_MOST = 2**31 - 1
_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}
_READ = "BF16, F16, F32 and packed ones"
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_SHOWN = 16
_REFUSED = "The MTP file"

Refused = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """A head that is for the model asked about. `record` is checked in form, not against weights;
    `tensors` gives the shape of every tensor by name.
    """

    path: Path
    record: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.tensors.values())

    @property
    def draft_vocabulary(self) -> int | None:
        """Tokens it can draft; None means all of the model's."""
        ids = self.record["draft_vocabulary"]
        return None if ids is None else len(ids)


class _NoRecord(ModelError):
    """A safetensors file of something else."""


def find(
    model: Path, fingerprint: str, *, explicit: Path | None = None, refused: Refused | None = None
) -> Sidecar | None:
    """The first head for the model at `model` (a GGUF file or a folder) with this fingerprint, or
    None; `refused` hears a sentence for every file that was passed over.
    """
    return next(candidates(model, fingerprint, explicit=explicit, refused=refused), None)


def candidates(
    model: Path, fingerprint: str, *, explicit: Path | None = None, refused: Refused | None = None
) -> Iterator[Sidecar]:
    """Every head for this model, the one to try first first: the file asked for, those beside the
    model, those that ship with flarechat. Read one at a time, as they are asked for.
    """
    tell = refused or (lambda sentence: None)
    seen: set[str] = set()
    for path, asked in _places(model, explicit):
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        try:
            sidecar = _matching(path, fingerprint, asked)
        except ModelError as error:
            tell(error.message)
            continue
        if sidecar is not None:
            yield sidecar


def refusal(path: Path, why: str) -> ModelError:
    """The error of a file that cannot be used; its message is the notice."""
    return ModelError(f"{_REFUSED} {path} is not used: {why}.", "The chat goes on without it.")


def is_refusal(notice: str) -> bool:
    """Whether a notice of the engine is about a file that cannot be used."""
    return notice.startswith(_REFUSED)


def refusal_for(path: Path, error: ModelError) -> ModelError:
    """The same, in the words of the error that came of the file."""
    return refusal(path, error.message[:1].lower() + error.message[1:].removesuffix("."))


def _places(model: Path, explicit: Path | None) -> Iterator[tuple[Path, bool]]:
    """Files to look at, and whether the user asked for this very one."""
    if explicit is not None:
        yield explicit, True
    for folder in (model if model.is_dir() else model.parent, paths.assets_dir()):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            if "mtp" in name.lower() and name.endswith(".safetensors"):
                yield folder / name, False


def _matching(path: Path, fingerprint: str, asked: bool) -> Sidecar | None:
    """The head in `path` if it is for this model; None for a file that is for something else."""
    try:
        header, room = _header(path)
        record = _record(path, header.pop("__metadata__", None))
    except _NoRecord as error:
        if asked:
            raise refusal(path, error.message) from None
        return None
    targets = _targets(path, record)
    if fingerprint not in targets:
        if asked:
            named = ", ".join(target[:_SHOWN] for target in targets[:3])
            more = f" and {len(targets) - 3} more" if len(targets) > 3 else ""
            raise refusal(
                path, f"this model is {fingerprint[:_SHOWN]}, and the file is for {named}{more}"
            )
        return None
    _check_record(path, record)
    tensors = {name: _shape(path, name, entry, room) for name, entry in header.items()}
    return Sidecar(path=path, record=record, tensors=tensors)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header's table and the bytes of tensors behind it. Nothing is read on trust."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise refusal(path, "it is no file")
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > MOST_HEADER_BYTES:
                limit = MOST_HEADER_BYTES
                raise refusal(path, f"it claims a header of {size} bytes; at most {limit} are read")
            if found.st_size < 8 or size > found.st_size - 8:
                raise refusal(path, "it is cut off inside its header")
            text = file.read(size).decode()
    except OSError as error:
        raise refusal(path, error.strerror or type(error).__name__) from error
    except UnicodeDecodeError:
        raise refusal(path, "its header is not UTF-8") from None
    return _object(path, text, "header"), found.st_size - 8 - size


def _object(path: Path, text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise refusal(path, f"its {what} is not JSON") from None
    if not isinstance(found, dict):
        raise refusal(path, f"its {what} is no JSON object")
    return found


def _record(path: Path, metadata: Any) -> dict[str, Any]:
    text = metadata.get(RECORD_KEY) if isinstance(metadata, dict) else None
    if text is None:
        raise _NoRecord(f"its header has no {RECORD_KEY!r} record")
    if not isinstance(text, str):
        raise refusal(path, "its record is not a text")
    return _object(path, text, "record")


def _targets(path: Path, record: dict[str, Any]) -> list[str]:
    targets = record.get("targets")
    fits = isinstance(targets, list) and all(
        isinstance(target, str) and _FINGERPRINT.fullmatch(target) for target in targets
    )
    if not targets or not isinstance(targets, list) or not fits:
        raise refusal(path, "its record does not name the models it is for")
    return targets


def _check_record(path: Path, record: dict[str, Any]) -> None:
    """Refuse a record of another format, or whose numbers are none."""
    version = record.get("format")
    if type(version) is not int or version < 1:
        raise refusal(path, f"its record has format = {_short(version)}")
    if version > FORMAT:
        raise refusal(
            path, f"it has format {_short(version)}, and this version of flarechat reads {FORMAT}"
        )
    for key in ("hidden_size", "layers", "intermediate_size"):
        if not _is_count(record.get(key)):
            raise refusal(path, f"its record has {key} = {_short(record.get(key))}")
    taps = record.get("taps")
    if not isinstance(taps, list) or not taps or not all(map(_is_count, taps)):
        raise refusal(path, f"its record has taps = {_short(record.get('taps'))}")
    if "draft_vocabulary" not in record:
        raise refusal(path, "its record lacks draft_vocabulary")
    ids = record["draft_vocabulary"]
    if ids is not None and not _is_rising(ids):
        raise refusal(path, "its draft_vocabulary is no list of rising token ids")


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _MOST


def _is_rising(values: Any) -> bool:
    """Whether this is a list of at least one token id, each above the one before."""
    if not isinstance(values, list) or not values:
        return False
    if any(type(value) is not int or not 0 <= value <= _MOST for value in values):
        return False
    return all(a < b for a, b in pairwise(values))


def _shape(path: Path, name: str, entry: Any, room: int) -> tuple[int, ...]:
    """The checked shape of one tensor that lies within the `room` bytes behind the header."""
    what = f"its tensor {_short(name)}"
    if not isinstance(entry, dict) or not isinstance(entry.get("shape"), list):
        raise refusal(path, f"{what} has no shape")
    kind, shape, span = entry.get("dtype"), entry["shape"], entry.get("data_offsets")
    if not isinstance(kind, str) or kind not in _BYTES:
        raise refusal(path, f"{what} has the dtype {_short(kind)}; {_READ} are read")
    if len(shape) > _MOST_DIMENSIONS or not all(_is_count(size) for size in shape):
        raise refusal(path, f"{what} has the shape {_short(shape)}")
    if not isinstance(span, list) or len(span) != 2 or any(type(at) is not int for at in span):
        raise refusal(path, f"{what} has data_offsets = {_short(span)}")
    if span[0] < 0 or span[1] - span[0] != math.prod(shape) * _BYTES[kind]:
        raise refusal(path, f"{what} has data_offsets = {_short(span)}")
    if span[1] > room:
        raise refusal(path, f"it is cut off: {what} ends behind the file's end")
    return tuple(shape)


def _short(value: Any) -> str:
    """A value from the file, short enough for a sentence."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or a deep list
        return "a value too large to print"
    return text if len(text) <= 40 else f"{text[:37]}..."
