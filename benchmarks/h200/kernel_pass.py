"""A whole pass of a random llama of SmolLM2's sizes: the kernels together, one behind the other.

Owns the model. Its logits are held against the same weights in float32 without kernels, and the
passes whose kernels overlap against those whose kernels do not, bit for bit.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from benchmarks.h200.kernel_cases import Case, error
from flarechat.engine import kernels
from flarechat.engine.plan import Plan, extent_for
from flarechat.engine.recipes.llama import Model, load
from flarechat.engine.recipes.llama.config import ModelArgs
from flarechat.engine.recipes.llama.weights import shapes
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool

CONFIG = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 1e5,
    "tie_word_embeddings": True,
}  # fmt: skip
TINY = CONFIG | {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 1, "vocab_size": 64, "max_position_embeddings": 96,
}  # fmt: skip


class Pass:
    """A model and one lane of it, by kernels or without them."""

    def __init__(
        self, config: dict[str, object], device: torch.device, dtype: str, *, plain: bool = False
    ) -> None:
        self.plain = plain
        args = ModelArgs.from_config(config)
        generator = torch.Generator().manual_seed(3)

        def drawn(shape: tuple[int, ...]) -> Tensor:
            values = torch.randn(shape, generator=generator)
            values = 1 + values / 10 if len(shape) == 1 else values * shape[-1] ** -0.5
            return values.bfloat16().float()

        tensors = {name: drawn(shape) for name, shape in shapes(args).items()}
        self.context = args.max_position_embeddings
        self.model: Model = load(
            config, tensors, slots=1, context=self.context, dtype=dtype, device=device
        )
        self.pool = SlotPool(1, self.context, args.vocab_size, device)
        self.pool.start(0)
        self.lanes = Lanes(self.pool, (0,))
        self.weights = sum(tensor.numel() for tensor in tensors.values()) * 2

    @torch.inference_mode()
    def logits(self, width: int) -> Tensor:
        """One pass over W tokens behind those that are consumed."""
        inputs = 1 + torch.arange(width, device=self.pool.device)[None]
        extent = extent_for(width, self.context + SCRATCH_ROWS)
        with contextlib.nullcontext() if self.plain else kernels.interpreted():
            return self.model.verify(self.lanes, inputs, Plan(width - 1, extent))[1]

    def at(self, consumed: int) -> None:
        """Stand behind so many tokens."""
        self.pool.consumed.fill_(consumed)

    def case(self, width: int, consumed: int) -> Case:
        """To be timed."""
        self.at(consumed)
        call = lambda: self.logits(width)  # noqa: E731
        name = f"pass at {consumed}"
        return Case(name, width, self.weights, (call, call), lambda: self.logits(width).double())


def truth_of(config: dict[str, object], width: int) -> Tensor:
    """The logits of W first tokens in float32, on the CPU, without kernels."""
    return Pass(config, torch.device("cpu"), "float32", plain=True).logits(width)


def off_by(own: Pass, config: dict[str, object], width: int) -> float:
    """The error of W first tokens' logits."""
    own.at(0)
    return error(own.logits(width).cpu(), truth_of(config, width).double())
