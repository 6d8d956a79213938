"""A trained head as a sidecar file: tensors in BF16, everything to know about it in the header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from training.head import DraftHead
from training.target import Shape

RECORD = "flarechat.mtp"
LIMIT = 12_000_000


def tensors_of(head: DraftHead, shape: Shape) -> dict[str, Tensor]:
    """The head's tensors by the sidecar's names, float32."""
    named = {
        "mtp.fc": head.fc,
        "mtp.pre_fc_norm_hidden": head.norm_hidden,
        "mtp.pre_fc_norm_embedding": head.norm_embedding,
        "mtp.norm": head.norm,
    }
    if head.fuse is not None:
        named["mtp.fuse"] = head.fuse
    for number, layer in enumerate(head.layers):
        base = f"mtp.layers.{number}"
        named[f"{base}.input_layernorm"] = layer.input_norm
        named[f"{base}.post_attention_layernorm"] = layer.mlp_norm
        named |= {
            f"{base}.self_attn.{n}_proj": t
            for n, t in zip("qkv", layer.qkv.split(shape.split), strict=True)
        }
        named[f"{base}.self_attn.o_proj"] = layer.out
        gate, up = layer.gate_up.chunk(2)
        named |= {f"{base}.mlp.gate_proj": gate, f"{base}.mlp.up_proj": up}
        named[f"{base}.mlp.down_proj"] = layer.down
    return {f"{name}.weight": tensor.detach() for name, tensor in named.items()}


def export(
    head: DraftHead, target: Shape, ids: list[int] | None, fingerprint: str, path: Path,
    facts: dict[str, Any],
) -> int:  # fmt: skip
    """Write the sidecar and return its size in bytes; larger than LIMIT is a ValueError.

    `facts` are further keys of the record: tokens, seeds, losses, acceptance, versions.
    """
    record = {
        "format": 1,
        "targets": [fingerprint],
        "hidden_size": target.hidden_size,
        "layers": head.shape.layers,
        "intermediate_size": head.shape.intermediate_size,
        "taps": list(head.shape.taps),
        "draft_vocabulary": ids,
        **facts,
    }
    tensors = {
        name: t.to(device="cpu", dtype=torch.bfloat16).contiguous()
        for name, t in tensors_of(head, target).items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    save_file(tensors, part, {RECORD: json.dumps(record, separators=(",", ":"))})
    size = part.stat().st_size
    if size > LIMIT:
        part.unlink()
        raise ValueError(f"the head takes {size} bytes; at most {LIMIT} may be shipped")
    part.replace(path)
    return size
