"""Loads a model folder in the Hugging Face form; its weights stay mapped until asked for.

Owns nothing on disk. Never opens a pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from flarechat.engine.weights.checkpoint import (
    Checkpoint,
    SafetensorsFiles,
    open_safetensors,
    require_supported,
)
from flarechat.errors import ModelError
from flarechat.models.folder import (
    REMEDY,
    chat_template,
    fingerprint,
    read_json,
    read_text,
    recommended,
    weight_files,
)

_QUANTISATION = "quantization_config"


def load(
    source: Path, cache: Path, progress: Callable[[str, int, int], None], supported: Collection[str]
) -> Checkpoint:
    """The checkpoint in the folder `source`."""
    config = read_json(source / "config.json")
    architecture = str(config.get("model_type", "unknown"))
    require_supported(source, architecture, supported)
    config = _flat(config | _quantisation(source, config))
    tensors = read_tensors(source)
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
        tensors=tensors,
    )


def read_tensors(source: Path) -> SafetensorsFiles:
    """The tensors of a folder, or of one file; which file has which is for the files to say."""
    files = weight_files(source) if source.is_dir() else [source]
    return SafetensorsFiles(
        {name: path for path in files for name in open_safetensors(path).keys()}
    )


def read_config(source: Path) -> dict[str, Any]:
    """The config.json of a folder, if it has one, flat."""
    config = read_json(source / "config.json", optional=True)
    return _flat(config | _quantisation(source, config))


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the values of its language model, if those are inside it, on top."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        return config
    outer = {key: value for key, value in config.items() if key != "text_config"}
    named = {key: outer[key] for key in ("model_type", _QUANTISATION) if key in outer}
    return {**outer, **text, **named}


def _quantisation(source: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The quantisation told in a file of its own, where the configuration itself tells none."""
    if _QUANTISATION in config or _QUANTISATION in (config.get("text_config") or {}):
        return {}
    found = read_json(source / "hf_quant_config.json", optional=True)
    return {_QUANTISATION: found.get("quantization", found)} if found else {}


def _tokenizer_json(source: Path) -> str:
    path = source / "tokenizer.json"
    if not path.exists() and (source / "tokenizer.model").exists():
        raise ModelError(
            f"{source} has its tokenizer only as tokenizer.model.",
            "Save a tokenizer.json beside it (transformers can), or give another model.",
        )
    return read_text(path)


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
        raise ModelError(f"{source / 'tokenizer.json'} cannot be understood.", REMEDY) from error
    if not ids or not all(isinstance(token, int) and token >= 0 for token in ids):
        raise ModelError(f"{source} names no usable end-of-sequence token: {ids}.", REMEDY)
    return tuple(dict.fromkeys(ids))


def _text(token: Any) -> str:
    """A token given as text or as an object with `content`."""
    return str(token.get("content", "") if isinstance(token, dict) else token or "")
