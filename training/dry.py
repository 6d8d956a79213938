"""The dry run: generate, train, resume, evaluate and export over a random tiny llama on the CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from training import evaluation_file
from training.conversations import Frame, Voices, converse
from training.evaluate import evaluate, table
from training.head import HeadShape
from training.model import Loaded
from training.shards import read_shards, shard_path, write_shard
from training.target import Target
from training.train import TrainSettings, train, trained

CONFIG: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
FRAME = Frame((1, 5, 6), (7, 1, 8), (7, 1, 5), (2,))
LENGTH = 48
SETTINGS = TrainSettings(
    HeadShape(1, 48, (3,)), tokens=LENGTH * 8 * 40, batch=8, steps=3, vocabulary=64, warmup=5,
    rate=3e-3,
)  # fmt: skip


def tiny_target(dtype: torch.dtype = torch.float32, seed: int = 0) -> Target:
    """A random llama with CONFIG's sizes."""
    from flarechat.engine.recipes.llama.config import ModelArgs
    from flarechat.engine.recipes.llama.weights import shapes

    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.ones(shape)
        if name.endswith("norm.weight")
        else 0.3 * torch.randn(shape, generator=generator)
        for name, shape in shapes(
            ModelArgs.from_config({**CONFIG, "max_position_embeddings": LENGTH})
        ).items()
    }
    return Target(CONFIG, tensors, rows=2 * LENGTH, dtype=dtype, device=torch.device("cpu"))


def play(folder: Path, export: Callable[[Loaded, Path, Path, str], int]) -> Path:
    """Run everything into `folder` and return the sidecar's path."""
    torch.set_num_threads(1)
    target = tiny_target()
    for part, seeds in (("data", (0, 1)), ("heldout", (9,))):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds):
            talk = converse(target, FRAME, Voices(), batch=20, length=LENGTH, seed=seed)
            write_shard(shard_path(folder / part, number), talk, {"seed": seed})
    talk, heldout = read_shards(folder / "data"), read_shards(folder / "heldout")
    run, sidecar = folder / "run", folder / "tiny-mtp.safetensors"
    train(target, talk, replace(SETTINGS, tokens=SETTINGS.tokens // 2), run)
    train(target, talk, SETTINGS, run)
    head, _, ids, _ = trained(run / "state.safetensors", target)
    found = evaluate(target, head, ids, heldout, depth=3)
    evaluation_file.write(run, found, heldout)
    print(table(found))
    fingerprint = hashlib.sha256(b"dry run").hexdigest()
    loaded = Loaded(target, None, FRAME, fingerprint)  # type: ignore[arg-type]
    print(f"{sidecar}: {export(loaded, run, sidecar, 'Apache-2.0')} bytes")
    return sidecar
