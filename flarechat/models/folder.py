"""What a model folder in the Hugging Face form says before its weights are loaded.

Owns the names of its files: config.json, tokenizer_config.json, generation_config.json, the
template and the list of safetensors files. Imports no torch and never opens a pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flarechat.errors import ModelError, SettingsError
from flarechat.models.digests import digest, remembered
from flarechat.protocol import Sampling

REMEDY = "Download the model again, or give another one with --model."
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_QWEN = {"temperature": 1.0, "top_k": 20, "top_p": 0.95}
_FAMILY_SAMPLING = {"qwen4_exp": _QWEN, "qwen4_exp_text": _QWEN}
_INDEX = "model.safetensors.index.json"
_HEAD_RECORD, _MOST_HEADER_BYTES = b'"flarechat.mtp"', 8 << 20
_PICKLES = ("*.bin", "*.pt", "*.pth")


def weight_files(source: Path) -> list[Path]:
    """The safetensors files of the folder, in order; none, or only pickles, is a ModelError."""
    index, single = source / _INDEX, source / "model.safetensors"
    if index.exists():
        shards = sorted({str(name) for name in _weight_map(source).values()})
        for name in shards:
            inside = not Path(name).is_absolute() and ".." not in Path(name).parts
            if not inside or not (source / name).is_file():
                raise ModelError(f"{index} names {name!r}, which is not in its folder.", REMEDY)
        return [source / name for name in shards]
    if single.exists():
        return [single]
    if loose := [file for file in sorted(source.glob("*.safetensors")) if not _is_head(file)]:
        return loose
    if any(next(source.glob(pattern), None) for pattern in _PICKLES):
        raise ModelError(
            f"{source} has its weights only as pickle files, which flarechat never opens.",
            "Convert them to safetensors, or give another model with --model.",
        )
    raise ModelError(f"{source} has no safetensors weights.", REMEDY)


def _is_head(file: Path) -> bool:
    """Whether this is a draft head that lies beside the weights, by the record in its header."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            return _HEAD_RECORD in opened.read(min(size, _MOST_HEADER_BYTES))
    except OSError:
        return False


def fingerprint(source: Path, cache: Path, progress: Callable[[str, int, int], None]) -> str:
    """One digest over the files that decide what the model says."""
    files = _deciding_files(source)
    total, before, whole = sum(file.stat().st_size for file in files), 0, hashlib.sha256()
    for file in files:
        report = partial(_report, progress, before, total)
        whole.update(f"{file.name} {digest(file, cache, report)}\n".encode())
        before += file.stat().st_size
    return whole.hexdigest()


def remembered_fingerprint(source: Path, cache: Path) -> str:
    """The same if every file's digest was computed before, else ""; reads no weights."""
    if all(remembered(file, cache) for file in _deciding_files(source)):
        return fingerprint(source, cache, lambda stage, done, total: None)
    return ""


def _deciding_files(source: Path) -> list[Path]:
    names = ("config.json", "tokenizer.json")
    return [source / name for name in names if (source / name).exists()] + weight_files(source)


def chat_template(source: Path) -> str:
    """The folder's template, from its own file or from tokenizer_config.json; may be empty."""
    own = source / "chat_template.jinja"
    if own.exists():
        return read_text(own)
    found = read_json(source / "tokenizer_config.json", optional=True).get("chat_template", "")
    if isinstance(found, list):
        named = {str(item.get("name")): item.get("template", "") for item in found}
        found = named.get("default", "")
    return str(found or "")


def recommended(source: Path) -> Sampling:
    """The sampling in generation_config.json, as far as it gives any, over its family's own."""
    path = source / "generation_config.json"
    found = read_json(path, optional=True)
    given = {key: found[key] for key in _SAMPLING if found.get(key) is not None}
    family = str(read_json(source / "config.json", optional=True).get("model_type"))
    try:
        return Sampling(**{**_FAMILY_SAMPLING.get(family, {}), **given})
    except (SettingsError, TypeError) as error:
        raise ModelError(
            f"{path} recommends a sampling that cannot be used: {error}", "Correct the file."
        ) from error


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """The object in a JSON file; an optional one may be missing."""
    if optional and not path.exists():
        return {}
    try:
        found = json.loads(read_text(path))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}.", REMEDY) from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} does not hold a JSON object.", REMEDY)
    return found


def read_text(path: Path) -> str:
    """The text of one of its files."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{path} cannot be read: {reason}.", REMEDY) from error


def _report(
    progress: Callable[[str, int, int], None], before: int, total: int, done: int, _size: int
) -> None:
    progress("checking", before + done, total)


def _weight_map(source: Path) -> dict[str, Any]:
    found = read_json(source / _INDEX).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ModelError(f"{source / _INDEX} has no weight_map.", REMEDY)
    return found
