"""A model on disk, ready to be built: what it says about itself and its tensors, read lazily.

Owns no memory but what the operating system maps. Whether the tensors are the right ones is for
the recipe to say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flarechat.errors import ModelError
from flarechat.protocol import Sampling

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One model. `config` has the keys of a config.json, `tensors` the names of its family's
    safetensors files, with rotary rows in the rotate-half order. `fingerprint` is the hex
    SHA-256 of the source.
    """

    name: str
    architecture: str
    config: dict[str, Any]
    tokenizer_json: str
    chat_template: str
    eos_token_ids: tuple[int, ...]
    bos_token: str
    eos_token: str
    recommended: Sampling
    fingerprint: str
    tensors: Mapping[str, Tensor]


class SafetensorsFiles(Mapping[str, "Tensor"]):
    """Tensors of one or more safetensors files by name; nothing is read before it is asked for."""

    def __init__(self, places: Mapping[str, Path]) -> None:
        self._places = dict(places)
        self._open: dict[Path, Any] = {}

    def __getitem__(self, name: str) -> Tensor:
        path = self._places[name]
        if path not in self._open:
            self._open[path] = open_safetensors(path)
        with _readable(path):
            tensor: Tensor = self._open[path].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def open_safetensors(path: Path) -> Any:
    """The mapped file; a torn or alien one is a ModelError."""
    from safetensors import safe_open

    with _readable(path):
        return safe_open(path, framework="pt")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What goes wrong with a safetensors file inside is a ModelError that names it."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"The weights file {path} cannot be read: {error}.",
            "Download it again, or give another model with --model.",
        ) from error


def require_supported(source: Path, architecture: str, supported: Collection[str]) -> None:
    """Refuse a model no recipe can build."""
    if architecture not in supported:
        raise ModelError(
            f"{source} has the architecture {architecture!r}, which flarechat cannot run.",
            f"Give a model of one of these with --model: {', '.join(sorted(supported))}.",
        )
