"""A folder in the Hugging Face form: config.json, tokenizer.json and safetensors weights.

Owns the reading of its files. Never opens a pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from flarechat.engine.weights.checkpoint import (
    Checkpoint,
    SafetensorsFiles,
    open_safetensors,
    require_supported,
)
from flarechat.engine.weights.digests import digest
from flarechat.errors import ModelError, SettingsError
from flarechat.protocol import Sampling

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_REMEDY = "Download the model again, or give another one with --model."
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth")


def load(
    source: Path, cache: Path, progress: Callable[[str, int, int], None], supported: Collection[str]
) -> Checkpoint:
    """The checkpoint in the folder `source`."""
    config = read_json(source / "config.json")
    architecture = str(config.get("model_type", "unknown"))
    require_supported(source, architecture, supported)
    places = _places(source)
    settings = read_json(source / "tokenizer_config.json", optional=True)
    generation = read_json(source / "generation_config.json", optional=True)
    tokenizer_json = _tokenizer_json(source)
    eos_token = _text(settings.get("eos_token"))
    return Checkpoint(
        name=str(config.get("_name_or_path") or source.resolve().name),
        architecture=architecture,
        config=config,
        tokenizer_json=tokenizer_json,
        chat_template=chat_template(source),
        eos_token_ids=_eos_ids(source, config, generation, tokenizer_json, eos_token),
        bos_token=_text(settings.get("bos_token")),
        eos_token=eos_token,
        recommended=recommended(source),
        fingerprint=fingerprint(source, cache, progress),
        tensors=SafetensorsFiles(places),
    )


def weight_files(source: Path) -> list[Path]:
    """The safetensors files of the folder, in order; none, or only pickles, is a ModelError."""
    index, single = source / _INDEX, source / "model.safetensors"
    if index.exists():
        shards = sorted({str(name) for name in _weight_map(source).values()})
        for name in shards:
            if Path(name).name != name or not (source / name).is_file():
                raise ModelError(f"{index} names {name!r}, which is not in its folder.", _REMEDY)
        return [source / name for name in shards]
    if single.exists():
        return [single]
    if any(next(source.glob(pattern), None) for pattern in _PICKLES):
        raise ModelError(
            f"{source} has its weights only as pickle files, which flarechat never opens.",
            "Convert them to safetensors, or give another model with --model.",
        )
    raise ModelError(f"{source} has no safetensors weights.", _REMEDY)


def fingerprint(source: Path, cache: Path, progress: Callable[[str, int, int], None]) -> str:
    """One digest over the files that decide what the model says."""
    names = ("config.json", "tokenizer.json")
    files = [source / name for name in names if (source / name).exists()] + weight_files(source)
    total, before, whole = sum(file.stat().st_size for file in files), 0, hashlib.sha256()
    for file in files:
        report = partial(_report, progress, before, total)
        whole.update(f"{file.name} {digest(file, cache, report)}\n".encode())
        before += file.stat().st_size
    return whole.hexdigest()


def _report(
    progress: Callable[[str, int, int], None], before: int, total: int, done: int, _size: int
) -> None:
    progress("checking", before + done, total)


def chat_template(source: Path) -> str:
    """The folder's template, from its own file or from tokenizer_config.json; may be empty."""
    own = source / "chat_template.jinja"
    if own.exists():
        return _read_text(own)
    found = read_json(source / "tokenizer_config.json", optional=True).get("chat_template", "")
    if isinstance(found, list):
        named = {str(item.get("name")): item.get("template", "") for item in found}
        found = named.get("default", "")
    return str(found or "")


def recommended(source: Path) -> Sampling:
    """The sampling in generation_config.json, as far as it gives any."""
    path = source / "generation_config.json"
    found = read_json(path, optional=True)
    given = {key: found[key] for key in _SAMPLING if found.get(key) is not None}
    try:
        return Sampling(**given)
    except (SettingsError, TypeError) as error:
        raise ModelError(
            f"{path} recommends a sampling that cannot be used: {error}", "Correct the file."
        ) from error


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """The object in a JSON file; an optional one may be missing."""
    if optional and not path.exists():
        return {}
    try:
        found = json.loads(_read_text(path))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}.", _REMEDY) from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} does not hold a JSON object.", _REMEDY)
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{path} cannot be read: {reason}.", _REMEDY) from error


def _places(source: Path) -> dict[str, Path]:
    """Which file has which tensor, as the files themselves say."""
    return {
        name: path for path in weight_files(source) for name in open_safetensors(path).keys()
    }  # fmt: skip


def _weight_map(source: Path) -> dict[str, Any]:
    found = read_json(source / _INDEX).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ModelError(f"{source / _INDEX} has no weight_map.", _REMEDY)
    return found


def _tokenizer_json(source: Path) -> str:
    path = source / "tokenizer.json"
    if not path.exists() and (source / "tokenizer.model").exists():
        raise ModelError(
            f"{source} has its tokenizer only as tokenizer.model.",
            "Save a tokenizer.json beside it (transformers can), or give another model.",
        )
    return _read_text(path)


def _eos_ids(
    source: Path,
    config: dict[str, Any],
    generation: dict[str, Any],
    tokenizer_json: str,
    eos_token: str,
) -> tuple[int, ...]:
    """Every token that ends an answer, from the three files that may say so."""
    ids: list[int] = []
    for found in (generation.get("eos_token_id"), config.get("eos_token_id")):
        ids += [found] if isinstance(found, int) else (found or [])
    try:
        added = json.loads(tokenizer_json).get("added_tokens", [])
        ids += [item["id"] for item in added if eos_token and item["content"] == eos_token]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{source / 'tokenizer.json'} cannot be understood.", _REMEDY) from error
    if not ids or not all(isinstance(token, int) and token >= 0 for token in ids):
        raise ModelError(f"{source} names no usable end-of-sequence token: {ids}.", _REMEDY)
    return tuple(dict.fromkeys(ids))


def _text(token: Any) -> str:
    """A token given as text or as an object with `content`."""
    return str(token.get("content", "") if isinstance(token, dict) else token or "")
