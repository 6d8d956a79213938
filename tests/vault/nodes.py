"""Small node files, made by safetensors' own writer, and the forged ones that no writer makes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import numpy as safetensors

from flarechat.vault.identity import Identity, digest_of
from flarechat.vault.nodefile import SUFFIX, metadata, sealed

IDENTITY = Identity(recipe="llama", fingerprint="ab12|", dtype="float32", device="cpu")
ALIEN = Identity(recipe="llama", fingerprint="ab12|", dtype="float32", device="cuda")


@dataclass(frozen=True)
class Made:
    """A node, its digest and its file."""

    identity: Identity
    parent: str
    offset: int
    tokens: tuple[int, ...]
    tensors: Mapping[str, np.ndarray[Any, Any]]
    data: bytes

    @property
    def digest(self) -> str:
        return digest_of(self.parent, self.offset, self.tokens)

    @property
    def name(self) -> str:
        return self.digest + SUFFIX

    def put(self, root: Path) -> Path:
        """Write the file where it belongs, by no code of the vault's."""
        path = root / self.identity.digest / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


def tensors_of(seed: int, rows: int) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors as states have them: of several types, one without rows, one without dimensions."""
    rng = np.random.default_rng(seed)
    return {
        "rows.target.0.keys": rng.standard_normal((2, rows, 4), dtype=np.float32),
        "rows.target.0.values": rng.standard_normal((2, rows, 4)).astype(np.float16),
        "rows.draft.0.empty": np.zeros((2, 0, 4), dtype=np.float32),
        "beside.target.1.ring": rng.integers(0, 99, (3,), dtype=np.int64),
        "passed.logits": np.array(rng.standard_normal(), dtype=np.float32),
    }


def made(
    tokens: Sequence[int], after: Made | None = None, offset: int | None = None, *,
    identity: Identity = IDENTITY, model: str = "smol", drafted: bool = True, extra: int = 0,
) -> Made:  # fmt: skip
    """A node behind another one, at its end unless `offset` says where, or behind none; with
    `extra` bytes more than it needs."""
    parent = after.digest if after else identity.digest
    place = (len(after.tokens) if after else 0) if offset is None else offset
    tensors = tensors_of(sum(tokens) + place, len(tokens))
    if extra:
        tensors["beside.extra"] = np.ones(extra, dtype=np.uint8)
    said = metadata(
        identity, model=model, parent=parent, offset=place, tokens=tokens, drafted=drafted
    )
    data = sealed(safetensors.save(tensors, said))
    return Made(identity, parent, place, tuple(tokens), tensors, data)


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a file as JSON, and its tensors' bytes."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(head: object, body: bytes) -> bytes:
    """A file of this header, be it bytes or JSON, and these bytes of tensors."""
    text = head if isinstance(head, bytes) else json.dumps(head, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + body
