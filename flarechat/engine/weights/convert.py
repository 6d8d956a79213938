"""From a GGUF file or a model folder to a Checkpoint.

A GGUF is converted once, into a safetensors file named by the digest of its source, with everything
else a checkpoint says in that file's header; later loads map it. Weights in a kind that the CPU's
kernels read lie in it as tiles of that kind, all else as float32: no number is rounded. Owns that
converted file; which architectures can be built is the caller's to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flarechat.engine.weights import folder, llama, tiles
from flarechat.engine.weights.checkpoint import (
    Checkpoint,
    Packing,
    TiledFile,
    open_safetensors,
    require_supported,
)
from flarechat.errors import ModelError
from flarechat.models import catalog
from flarechat.models.digests import converted_path, digest, outdated_paths
from flarechat.models.files import require_space, written_whole
from flarechat.models.gguf import REMEDY, Gguf

if TYPE_CHECKING:
    import numpy as np

Report = Callable[[str, int, int], None]

_FORMS = {"llama": llama}
_HEADER_KEY = "checkpoint"
_ALIGNMENT = 64
_DERIVED = ("recommended", "tensors")
_STORED = {field.name for field in fields(Checkpoint)} - set(_DERIVED)


def load_checkpoint(
    source: Path, cache: Path, progress: Report, *, supported: Collection[str]
) -> Checkpoint:
    """The model at `source`; `progress(stage, done, total)` tells of hashing and conversion."""
    if source.is_dir():
        return folder.load(source, cache, progress, supported)
    if not source.exists():
        raise ModelError(
            f"The model {source} does not exist.", "Check the path given with --model."
        )
    fingerprint = digest(source, cache, lambda done, size: progress("checking", done, size))
    converted = converted_path(cache, fingerprint)
    checkpoint = _load_converted(converted, fingerprint)
    if checkpoint is None:
        _convert(Gguf(source), fingerprint, cache, progress, supported)
        checkpoint = _load_converted(converted, fingerprint)
    if checkpoint is None:
        raise ModelError(
            f"The converted model {converted} is damaged right after it was written.",
            "Check the disk, or set FLARECHAT_HOME to a folder on another one.",
        )
    require_supported(source, checkpoint.architecture, supported)
    return checkpoint


def _load_converted(path: Path, fingerprint: str) -> Checkpoint | None:
    """The checkpoint in a converted file; None when it is missing, torn or of something else."""
    if not path.exists():
        return None
    try:
        file = open_safetensors(path)
        facts = json.loads(file.metadata()[_HEADER_KEY])
        count, packed = facts.pop("tensor_count"), facts.pop("packed")
        names = list(file.keys())
        whole = set(facts) == _STORED and facts["fingerprint"] == fingerprint
        tensors = TiledFile(names, path, {name: tuple(how) for name, how in packed.items()})
        whole = whole and count == len(names) and tensors.fits()
    except (ModelError, KeyError, TypeError, ValueError, AttributeError):
        return None
    if not whole:
        return None
    known = catalog.known(fingerprint=fingerprint)
    named = {"name": known.title} if known else {}
    return Checkpoint(
        **{**facts, "eos_token_ids": tuple(facts["eos_token_ids"]), **named},
        recommended=catalog.recommended(fingerprint=fingerprint, general_name=facts["name"]),
        tensors=tensors,
    )


def _convert(
    gguf: Gguf, fingerprint: str, cache: Path, progress: Report, supported: Collection[str]
) -> None:
    """Write every tensor, one at a time, into its file, and drop those of earlier versions."""
    architecture = str(gguf.metadata.get("general.architecture", "unknown"))
    require_supported(gguf.path, architecture, supported)
    form = _FORMS.get(architecture)
    if form is None:
        raise ModelError(
            f"{gguf.path} is a GGUF of the architecture {architecture!r}, not readable from GGUF.",
            f"Give its safetensors folder with --model, or a GGUF of {', '.join(_FORMS)}.",
        )
    config = form.config(gguf)
    places = [_Place.of(gguf, *pair) for pair in form.tensor_names(gguf).items()]
    places.sort(key=lambda place: -min(place.size & -place.size, _ALIGNMENT))
    packed = {place.name: place.packing for place in places if place.packing}
    facts = _facts(gguf, architecture, config, fingerprint)
    facts |= {"tensor_count": len(places), "packed": packed}
    header, size = _safetensors_header(places, {_HEADER_KEY: json.dumps(facts)})
    target = converted_path(cache, fingerprint)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    require_space(target.parent, len(header) + size, "the converted model")
    with written_whole(target) as file:
        file.write(header)
        for done, place in enumerate(places):
            progress("converting", done, len(places))
            file.write(_content(gguf, place, form, config).data)
    for path in outdated_paths(cache, fingerprint):
        path.unlink(missing_ok=True)
    progress("converting", len(places), len(places))


@dataclass(frozen=True, slots=True)
class _Place:
    """One tensor of the converted file: its name there and in the GGUF, and what it takes. Those
    that fill whole lines of memory come first, so that all of them begin one."""

    name: str
    inside: str
    packing: Packing | None
    shape: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, gguf: Gguf, name: str, inside: str) -> _Place:
        entry = gguf.tensors[inside]
        kind = entry.encoding.name.lower()
        if kind not in tiles.KINDS or len(entry.shape) != 2:
            return cls(name, inside, None, entry.shape, 4 * entry.values)
        packing = (kind, *entry.shape)
        return cls(name, inside, packing, tiles.shape(*packing), tiles.size(*packing))


def _content(gguf: Gguf, place: _Place, form: Any, config: dict[str, Any]) -> np.ndarray:
    """The bytes of a tensor in the converted file."""
    if place.packing is None:
        found: np.ndarray = form.read(gguf, place.inside, config)
        return found.astype("<f4", copy=False)
    raw, order = gguf.raw(place.inside), form.row_order(gguf, place.inside, config)
    whole = tiles.from_blocks(place.packing[0], raw if order is None else raw[order])
    return whole.data.numpy()


def _facts(
    gguf: Gguf, architecture: str, config: dict[str, Any], fingerprint: str
) -> dict[str, Any]:
    """Every stored field of the checkpoint, plain JSON."""
    from flarechat.engine.text.tokenizer import json_from_gguf

    tokens = gguf.metadata.get("tokenizer.ggml.tokens", [])
    return {
        "name": str(gguf.metadata.get("general.name", gguf.path.stem)),
        "architecture": architecture,
        "config": config,
        "tokenizer_json": json_from_gguf(gguf.metadata, gguf.path),
        "chat_template": str(gguf.metadata.get("tokenizer.chat_template", "")),
        "eos_token_ids": _eos_ids(gguf, len(tokens)),
        "bos_token": _token(gguf, "bos", tokens),
        "eos_token": _token(gguf, "eos", tokens),
        "fingerprint": fingerprint,
    }


def _eos_ids(gguf: Gguf, vocabulary: int) -> list[int]:
    """Every token that ends an answer: end of sequence, of turn, of message."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    ids = [gguf.metadata[key] for key in keys if key in gguf.metadata]
    if not ids:
        raise ModelError(f"The model file {gguf.path} names no end-of-sequence token.", REMEDY)
    for token in ids:
        if not isinstance(token, int) or not 0 <= token < vocabulary:
            raise ModelError(
                f"The model file {gguf.path} ends answers with the token {token!r}, "
                f"outside its vocabulary of {vocabulary}.",
                REMEDY,
            )
    return list(dict.fromkeys(ids))


def _token(gguf: Gguf, name: str, tokens: list[str]) -> str:
    token = gguf.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return tokens[token] if isinstance(token, int) and 0 <= token < len(tokens) else ""


def _safetensors_header(places: list[_Place], metadata: dict[str, str]) -> tuple[bytes, int]:
    """The header of a safetensors file of these tensors in this order, and their bytes."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    at = 0
    for place in places:
        kind, span = "U8" if place.packing else "F32", [at, at + place.size]
        table[place.name] = {"dtype": kind, "shape": list(place.shape), "data_offsets": span}
        at += place.size
    body = json.dumps(table, separators=(",", ":")).encode()
    body += b" " * (-(8 + len(body)) % _ALIGNMENT)
    return len(body).to_bytes(8, "little") + body, at
