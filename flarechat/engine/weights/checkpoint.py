"""A model on disk, ready to be built: what it says about itself and its tensors, read lazily.

Owns no memory but what the operating system maps. Whether the tensors are the right ones is for
the recipe to say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flarechat.engine.weights import tiles as layout
from flarechat.errors import ModelError
from flarechat.protocol import Sampling

Packing = tuple[str, int, int]
"""Kind, rows and columns of a tensor in tiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One model. `config` has the keys of a config.json, `tensors` the names of its family's
    safetensors files, with rotary rows in the rotate-half order; those that are kept packed are
    decoded when they are asked for. `fingerprint` is the hex SHA-256 of the source.
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


class SafetensorsFiles(Mapping[str, Tensor]):
    """Tensors of one or more safetensors files by name; nothing is read before it is asked for."""

    def __init__(self, places: Mapping[str, Path]) -> None:
        self._places = dict(places)
        self._open: dict[Path, Any] = {}

    def __getitem__(self, name: str) -> Tensor:
        path = self._places[name]
        with _readable(path):
            tensor: Tensor = self._opened(path).get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor, which is not read for it."""
        path = self._places[name]
        with _readable(path):
            return tuple(self._opened(path).get_slice(name).get_shape())

    def packing(self, name: str) -> Packing | None:
        """How the tensor can be kept in tiles without rounding a number; None if it cannot."""
        path = self._places[name]
        with _readable(path):
            found = self._opened(path).get_slice(name)
            held, size = found.get_dtype(), tuple(found.get_shape())
        return ("bf16", size[0], size[1]) if held == "BF16" and len(size) == 2 else None

    def _opened(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = open_safetensors(path)
        return self._open[path]


class TiledFile(SafetensorsFiles):
    """Tensors of a converted file, where those `packed` lie in tiles and are mapped as such. The
    float32 tensor of one is decoded whenever it is asked for.
    """

    def __init__(self, names: Collection[str], path: Path, packed: Mapping[str, Packing]) -> None:
        super().__init__(dict.fromkeys(names, path))
        self._packed = packed

    def __getitem__(self, name: str) -> Tensor:
        return self.tiles(name).decode() if name in self._packed else super().__getitem__(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor, decoded."""
        return self._packed[name][1:] if name in self._packed else super().shape(name)

    def packing(self, name: str) -> Packing | None:
        """How the tensor is kept, if it is in tiles."""
        return self._packed.get(name)

    def tiles(self, name: str) -> layout.Tiles:
        """The tiles of a tensor that has a packing, mapped."""
        return layout.Tiles(*self._packed[name], super().__getitem__(name))

    def fits(self) -> bool:
        """Whether the file has of every packed tensor the bytes that its tiles take."""
        stored = super().shape
        return all(stored(name) == layout.shape(*packed) for name, packed in self._packed.items())


def shape_of(tensors: Mapping[str, Tensor], name: str) -> tuple[int, ...]:
    """The shape of a tensor; where it lies in a file it is not read for it."""
    if isinstance(tensors, SafetensorsFiles):
        return tensors.shape(name)
    return tuple(tensors[name].shape)


def packing_of(tensors: Mapping[str, Tensor], name: str) -> Packing | None:
    """How a tensor can be kept in tiles without rounding a number; None if it cannot."""
    if isinstance(tensors, SafetensorsFiles):
        return tensors.packing(name)
    held = tensors[name]
    bfloat16 = held.dtype is torch.bfloat16 and held.ndim == 2
    return ("bf16", held.shape[0], held.shape[1]) if bfloat16 else None


def tiles_of(tensors: Mapping[str, Tensor], name: str) -> layout.Tiles:
    """The tiles of a tensor that has a packing; mapped, where they lie in a converted file."""
    if isinstance(tensors, TiledFile):
        return tensors.tiles(name)
    return layout.from_bfloat16(tensors[name])


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
