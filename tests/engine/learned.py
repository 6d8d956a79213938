"""Engines with a draft head that is often right, for tests of drafting as the engine does it.

The tiny model is softened towards a bigram model, which its head can guess by passing the last
token's embedding on, with the target's last norm. Everything is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import Tensor

from flarechat.engine.engine import Engine
from flarechat.engine.layers.linear import Linear
from flarechat.models.digests import digest
from tests.engine.conftest import Desk
from tests.models import heads, tiny

SOFT = 0.002


def write_head(folder: Path, model: Path, cache: Path) -> Path:
    """A head file for the softened tiny model, in a folder of its own."""
    values = {}
    for name, value in heads.tensors(seed=1).items():
        values[name] = 0.05 * value if value.ndim == 2 else np.ones_like(value)
    values["mtp.fc.weight"][:, tiny.HIDDEN :] += np.eye(tiny.HIDDEN, dtype=np.float32)
    values["mtp.norm.weight"] = tiny.weights()["model.norm.weight"]
    made = heads.record([digest(model, cache)], draft_vocabulary=None)
    return heads.write(folder / "good-mtp.safetensors", made, values)


def soften(engine: Engine) -> None:
    """Let the blocks of the engine's target say little beside the embedding."""
    for block in engine.executor.target.blocks:  # type: ignore[attr-defined]
        block.attention.out, block.mlp.down = softer(block.attention.out), softer(block.mlp.down)


def softer(product: Linear) -> Callable[[Tensor], Tensor]:
    return lambda x: SOFT * product(x)


class LearnedDesk(Desk):
    """A desk on the softened tiny model."""

    def __init__(self, model: Path, cache: Path, **boot: object) -> None:
        super().__init__(model, cache, **{"dtype": "float32", **boot})
        soften(self.engine)
