"""What a model is by its own headers: sizes, tensor types, digest and draft head.

Reads headers only and loads nothing; a digest needs all of a file, once.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarechat import paths
from flarechat.errors import ModelError
from flarechat.models import folder as folders
from flarechat.models import headers, sidecars
from flarechat.models.catalog import CATALOG, known
from flarechat.models.digests import digest
from flarechat.models.gguf import Gguf
from flarechat.models.store import StoredModel, resolve
from flarechat.protocol import Sampling

INSIDE = "inside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a model's headers say. `tensor_types` counts tensors by their types, `stored` their
    values by format; `experts` are the routed ones of a layer.
    """

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
    stored: dict[str, int]
    experts: str
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
    """The file of a pulled model's draft head, "inside" if it is among the model's tensors, ""
    without one, "?" where its digest is not known yet: listing models reads no weights.
    """
    try:
        if model.kind == "safetensors" and headers.has_head(headers.folder_table(model.path)):
            return INSIDE
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
    data, stored = gguf.metadata, Counter[str]()
    for tensor in gguf.tensors.values():
        stored[tensor.encoding.name] += math.prod(tensor.shape)
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
        stored=dict(stored.most_common()),
        experts="none",
        tokenizer=" ".join(str(part) for part in tokenizer if part),
        template="tokenizer.chat_template" in data,
        recommended=model.recommended if model else Sampling(),
        digest=whole,
        mtp=_mtp(path, whole),
    )


def _inspect_folder(path: Path) -> Inspection:
    config = folders.read_json(path / "config.json")
    own = config.get("text_config")
    text: dict[str, Any] = own if isinstance(own, dict) else config
    table = headers.folder_table(path)
    stored, types = headers.stored(table), Counter(str(row["dtype"]) for row in table.values())
    tokenizer = folders.read_json(path / "tokenizer_config.json", optional=True)
    whole = fingerprint(path)
    return Inspection(
        name=path.resolve().name,
        path=path,
        bytes=sum(file.stat().st_size for file in folders.weight_files(path)),
        kind="safetensors",
        architecture=str(config.get("model_type", "unknown")),
        parameters=sum(stored.values()),
        context=_whole(text.get("max_position_embeddings")),
        layers=_whole(text.get("num_hidden_layers")),
        vocabulary=_whole(text.get("vocab_size")),
        tensor_types=dict(types.most_common()),
        stored=stored,
        experts=_experts(text),
        tokenizer=str(tokenizer.get("tokenizer_class", "tokenizer.json")),
        template=bool(folders.chat_template(path)),
        recommended=folders.recommended(path),
        digest=whole,
        mtp=f"{INSIDE} the checkpoint" if headers.has_head(table) else _mtp(path, whole),
    )


def _experts(text: dict[str, Any]) -> str:
    count, chosen = text.get("num_experts"), text.get("num_experts_per_tok")
    return f"{count} a layer, {chosen} of them a token" if count else "none"


def _mtp(path: Path, whole: str) -> str:
    """The draft head that would be loaded, and why others would not, in words."""
    said: list[str] = []
    found = sidecars.find(path, whole, refused=said.append)
    drafts = f"drafts {found.draft_vocabulary or 'all'} tokens" if found else ""
    return " ".join([f"{found.path} ({drafts})" if found else "none", *said])


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
