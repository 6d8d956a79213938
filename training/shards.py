"""Conversations on disk: numbered safetensors files, each a function of the seed and its number."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from training.conversations import Conversations


def shard_path(folder: Path, number: int) -> Path:
    """Where shard `number` lies."""
    return folder / f"conversations-{number:04d}.safetensors"


def write_shard(path: Path, talk: Conversations, record: dict[str, object]) -> None:
    """Write one shard, whole or not at all."""
    tensors = {"tokens": talk.tokens, "roles": talk.roles, "voice": talk.voice}
    part = path.with_suffix(".part")
    save_file(
        {name: t.cpu().contiguous() for name, t in tensors.items()},
        part,
        {"generated": json.dumps(record)},
    )
    part.replace(path)


def read_shards(folder: Path) -> Conversations:
    """All shards of a folder, in the order of their numbers."""
    paths = sorted(folder.glob("conversations-*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no conversations; run `training generate` first")
    parts: dict[str, list[torch.Tensor]] = {"tokens": [], "roles": [], "voice": []}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name, tensors in parts.items():
                tensors.append(file.get_tensor(name))
    return Conversations(**{name: torch.cat(tensors) for name, tensors in parts.items()})
