"""Opens a target for training: weights, tokenizer and the template's frame."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from flarechat import paths
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.engine.weights import load_checkpoint
from training.conversations import Frame
from training.target import Target


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target ready to speak and to be learned from."""

    target: Target
    tokenizer: Tokenizer
    frame: Frame
    fingerprint: str


def load(source: Path, *, rows: int) -> Loaded:
    """The llama at `source` (GGUF or folder), in BF16 on a GPU, else in float32."""
    checkpoint = load_checkpoint(
        source, paths.cache_dir(), lambda *told: None, supported=("llama",)
    )
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    target = Target(
        checkpoint.config,
        checkpoint.tensors,
        rows=rows,
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        device=torch.device("cuda" if on_gpu else "cpu"),
    )
    return Loaded(
        target, Tokenizer(checkpoint.tokenizer_json), Frame.of(checkpoint), checkpoint.fingerprint
    )


def local_rank() -> int:
    """The worker's number on this machine under torchrun, else 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))
