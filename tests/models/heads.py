"""Draft head files for the tiny GGUF, written by hand: whole ones, and ones with a fault."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from flarechat.models.digests import digest
from tests.models import tiny

INNER = 48
TARGET = "ab" * 32


def record(targets: Iterable[str] = (TARGET,), **changes: Any) -> dict[str, Any]:
    """The record of a head with one block for the tiny model; a change to ... drops a key."""
    made = {
        "format": 1,
        "targets": list(targets),
        "hidden_size": tiny.HIDDEN,
        "layers": 1,
        "intermediate_size": INNER,
        "taps": [tiny.LAYERS],
        "draft_vocabulary": list(range(0, len(tiny.vocabulary()), 2)),
        "licence": "Apache-2.0",
        "tokens": 1_000_000,
        "acceptance": {"depth 1": 0.62},
        **changes,
    }
    return {key: value for key, value in made.items() if value is not ...}


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors under the names of the format."""
    random, dim = np.random.default_rng(seed), tiny.HIDDEN
    kv, block = tiny.KV_HEADS * tiny.HEAD_DIM, "mtp.layers.0"
    shapes = {
        "mtp.fc": (dim, 2 * dim),
        "mtp.pre_fc_norm_hidden": (dim,),
        "mtp.pre_fc_norm_embedding": (dim,),
        "mtp.norm": (dim,),
        f"{block}.input_layernorm": (dim,),
        f"{block}.post_attention_layernorm": (dim,),
        f"{block}.self_attn.q_proj": (dim, dim),
        f"{block}.self_attn.k_proj": (kv, dim),
        f"{block}.self_attn.v_proj": (kv, dim),
        f"{block}.self_attn.o_proj": (dim, dim),
        f"{block}.mlp.gate_proj": (INNER, dim),
        f"{block}.mlp.up_proj": (INNER, dim),
        f"{block}.mlp.down_proj": (dim, INNER),
    }
    return {
        f"{name}.weight": random.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def content(
    made: dict[str, Any] | None = None, values: dict[str, np.ndarray] | None = None
) -> bytes:
    """The bytes of a head file with this record and these tensors."""
    table: dict[str, Any] = {"__metadata__": {"flarechat.mtp": json.dumps(made or record())}}
    body = b""
    for name, value in (tensors() if values is None else values).items():
        raw = value.astype("<f4").tobytes()
        span = [len(body), len(body) + len(raw)]
        table[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": span}
        body += raw
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + body


def write(
    path: Path, made: dict[str, Any] | None = None, values: dict[str, np.ndarray] | None = None
) -> Path:
    """Write a head file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content(made, values))
    return path


def beside(model: Path, cache: Path, **changes: Any) -> Path:
    """A head file for this GGUF, next to it."""
    made = record([digest(model, cache)], **changes)
    return write(model.with_name(f"{model.stem}-mtp.safetensors"), made)
