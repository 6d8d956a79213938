"""From what the user calls a model to where it lies; lists and removes models.

Owns the answer to "which models are here". Loads nothing.
"""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flarechat import paths
from flarechat.errors import ModelError
from flarechat.models import folder as folders
from flarechat.models import hub
from flarechat.models import pull as catalog_pull
from flarechat.models.catalog import CATALOG
from flarechat.models.digests import converted_path
from flarechat.models.files import storage_error
from flarechat.models.gguf import is_gguf

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model on this machine. `kind` is gguf or safetensors, `source` catalog or hub."""

    name: str
    path: Path
    bytes: int
    kind: str
    source: str


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
