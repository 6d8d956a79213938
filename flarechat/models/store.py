"""From what the user calls a model to where it lies; lists, inspects and removes models.

Owns the answer to "which models are here". Reads headers only and loads nothing.
"""

from __future__ import annotations

import difflib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarechat import paths
from flarechat.errors import ModelError
from flarechat.models import folder as folders
from flarechat.models import hub, sidecars
from flarechat.models import pull as catalog_pull
from flarechat.models.catalog import CATALOG, known
from flarechat.models.digests import converted_path, digest
from flarechat.models.files import storage_error
from flarechat.models.gguf import Gguf, is_gguf
from flarechat.protocol import Sampling

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model on this machine. `kind` is gguf or safetensors, `source` catalog or hub."""

    name: str
    path: Path
    bytes: int
    kind: str
    source: str


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


def resolve(name: str, *, progress: Progress | None = None, pull_missing: bool = True) -> Path:
    """The GGUF file or model folder meant by `name`: a catalog name, a path or a Hugging Face
    name. A named model that is not here is pulled, or refused without `pull_missing`.
    """
    report = progress or (lambda done, total: None)
    if name in CATALOG:
        path = CATALOG[name].path_below(paths.models_dir())
        if catalog_pull.is_whole(CATALOG[name], path):
            return path
        _require_pull(name, pull_missing)
        return catalog_pull.pull(name, report)
    path = Path(name).expanduser()
    if path.exists():
        return _checked(path)
    if hub.is_hub_name(name) and path.suffix != ".gguf":
        if hub.is_pulled(name):
            return hub.folder_of(name)
        _require_pull(name, pull_missing)
        return hub.pull(name, report)
    if path.suffix == ".gguf" or len(path.parts) > 1:
        raise ModelError(
            f"The model file {name} does not exist.", "Check the path given with --model."
        )
    raise _unknown(name)


def pull(name: str, progress: Progress) -> Path:
    """Bring a catalog or Hugging Face model onto this machine."""
    if name in CATALOG:
        return catalog_pull.pull(name, progress)
    if hub.is_hub_name(name):
        return hub.pull(name, progress)
    raise _unknown(name)


def installed() -> list[StoredModel]:
    """The models pulled so far, the catalog's first."""
    models = paths.models_dir()
    found = [
        StoredModel(name=name, path=path, bytes=model.gguf_bytes, kind="gguf", source="catalog")
        for name, model in CATALOG.items()
        if catalog_pull.is_whole(model, path := model.path_below(models))
    ]
    return found + [
        StoredModel(
            name=hub.name_of(place),
            path=place,
            bytes=sum(file.stat().st_size for file in place.rglob("*") if file.is_file()),
            kind="safetensors",
            source="hub",
        )
        for place in sorted(models.glob("[!.]*--*"))
        if (place / "config.json").is_file()
    ]


def remove(name: str) -> StoredModel:
    """Delete a pulled model and its converted form; return what it was."""
    model = next((each for each in installed() if each.name == name), None)
    if model is None:
        names = ", ".join(each.name for each in installed()) or "none"
        raise ModelError(f"The model {name!r} is not on this machine.", f"Pulled models: {names}.")
    try:
        if name in CATALOG:
            converted = converted_path(paths.cache_dir(), CATALOG[name].gguf_sha256)
            converted.unlink(missing_ok=True)
            shutil.rmtree(model.path.parent)
        else:
            shutil.rmtree(model.path)
    except OSError as error:
        raise storage_error(model.path, error) from error
    return model


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
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(
            f"The weights file {path} cannot be read: {error}.", "Download it again."
        ) from error


def _checked(path: Path) -> Path:
    """A path that exists, if it can be a model at all."""
    try:
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise ModelError(
                    f"The folder {path} has no config.json, so it is not a model.",
                    "Give a folder with config.json and safetensors files, or a GGUF file.",
                )
            folders.weight_files(path)
        elif not is_gguf(path):
            raise ModelError(
                f"{path} is not a GGUF file.",
                "Give a GGUF file, a folder with safetensors files, or a model's name.",
            )
    except OSError as error:
        raise ModelError(
            f"The model {path} cannot be read: {error.strerror or error}.",
            "Check its permissions, or give another one with --model.",
        ) from error
    return path


def _require_pull(name: str, allowed: bool) -> None:
    if not allowed:
        raise ModelError(
            f"The model {name} is not on this machine.", f"Run `flarechat models pull {name}`."
        )


def _unknown(name: str) -> ModelError:
    names = sorted({*CATALOG, *(model.name for model in installed())})
    near = difflib.get_close_matches(name, names, n=1)
    guess = f" Did you mean {near[0]}?" if near else ""
    return ModelError(
        f"There is no model {name!r}.{guess}",
        f"Known models: {', '.join(names)}. A GGUF path, a folder or organisation/name work too.",
    )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
