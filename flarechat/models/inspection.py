"""What a model is by its own headers: sizes, tensor types, digest and draft head.

Reads headers only and loads nothing; a digest needs all of a file, once.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarechat import paths
from flarechat.errors import ModelError
from flarechat.models import folder as folders
from flarechat.models import sidecars
from flarechat.models.catalog import CATALOG, known
from flarechat.models.digests import digest
from flarechat.models.gguf import Gguf
from flarechat.models.store import StoredModel, resolve
from flarechat.protocol import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a model's headers say. `tensor_types` counts tensors by how they are stored."""

    name: str
    path: Path
    bytes: int
    kind: str
    architecture: str
    parameters: int
    context: int
    layers: int
    vocabulary: int
    tensor_types: dict[str, int]
    tokenizer: str
    template: bool
    recommended: Sampling
    digest: str
    mtp: str


def fingerprint(path: Path) -> str:
    """The digest by which a draft head names the model at `path`; read once, then remembered."""
    if path.is_dir():
        return folders.fingerprint(path, paths.cache_dir(), lambda stage, done, total: None)
    return digest(path, paths.cache_dir())


def head_of(model: StoredModel) -> str:
    """The file of a pulled model's draft head, "" without one, "?" where its digest is not known
    yet: listing models reads no weights.
    """
    try:
        if model.name in CATALOG:
            known_as = CATALOG[model.name].gguf_sha256
        else:
            known_as = folders.remembered_fingerprint(model.path, paths.cache_dir())
    except ModelError:
        return "?"
    found = sidecars.find(model.path, known_as) if known_as else None
    return found.path.name if found else "" if known_as else "?"


def inspect(name: str) -> Inspection:
    """What the model's own headers say; only its digest needs all of it, once."""
    path = resolve(name, pull_missing=False)
    return _inspect_folder(path) if path.is_dir() else _inspect_gguf(path)


def _inspect_gguf(path: Path) -> Inspection:
    gguf = Gguf(path)
    data = gguf.metadata
    whole = fingerprint(path)
    general_name = str(data.get("general.name", path.stem))
    model = known(fingerprint=whole, general_name=general_name)
    architecture = str(data.get("general.architecture", "unknown"))
    tokenizer = [data.get(f"tokenizer.ggml.{key}") for key in ("model", "pre")]
    return Inspection(
        name=general_name,
        path=path,
        bytes=path.stat().st_size,
        kind="gguf",
        architecture=architecture,
        parameters=gguf.parameters,
        context=_whole(data.get(f"{architecture}.context_length")),
        layers=_whole(data.get(f"{architecture}.block_count")),
        vocabulary=len(data.get("tokenizer.ggml.tokens", [])),
        tensor_types=dict(Counter(t.encoding.name for t in gguf.tensors.values()).most_common()),
        tokenizer=" ".join(str(part) for part in tokenizer if part),
        template="tokenizer.chat_template" in data,
        recommended=model.recommended if model else Sampling(),
        digest=whole,
        mtp=_mtp(path, whole),
    )


def _inspect_folder(path: Path) -> Inspection:
    config = folders.read_json(path / "config.json")
    files = folders.weight_files(path)
    tensors = [entry for file in files for entry in _safetensors_table(file)]
    tokenizer = folders.read_json(path / "tokenizer_config.json", optional=True)
    whole = fingerprint(path)
    return Inspection(
        name=path.resolve().name,
        path=path,
        bytes=sum(file.stat().st_size for file in files),
        kind="safetensors",
        architecture=str(config.get("model_type", "unknown")),
        parameters=sum(math.prod(entry["shape"]) for entry in tensors),
        context=_whole(config.get("max_position_embeddings")),
        layers=_whole(config.get("num_hidden_layers")),
        vocabulary=_whole(config.get("vocab_size")),
        tensor_types=dict(Counter(str(entry["dtype"]) for entry in tensors).most_common()),
        tokenizer=str(tokenizer.get("tokenizer_class", "tokenizer.json")),
        template=bool(folders.chat_template(path)),
        recommended=folders.recommended(path),
        digest=whole,
        mtp=_mtp(path, whole),
    )


def _mtp(path: Path, whole: str) -> str:
    """The draft head that would be loaded, and why others would not, in words."""
    said: list[str] = []
    found = sidecars.find(path, whole, refused=said.append)
    drafts = f"drafts {found.draft_vocabulary or 'all'} tokens" if found else ""
    return " ".join([f"{found.path} ({drafts})" if found else "none", *said])


def _safetensors_table(path: Path) -> list[dict[str, Any]]:
    """The rows of a safetensors header, read without a tensor library."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            table = json.loads(file.read(size))
        return [row for key, row in table.items() if key != "__metadata__"]
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"The weights file {path} cannot be read: {error}.", "Download it again."
        ) from error


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
