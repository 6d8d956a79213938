"""Checkpoints of every published format, ready to be loaded or spoilt."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from flarechat.engine.drafters.none import NoDrafter
from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.plan import Plan
from flarechat.engine.recipes.qwen38 import Model, load
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.engine.weights.qwen38 import Qwen38Tensors
from tests.engine.qwen38 import packing, tiny
from tests.engine.qwen38.mtp_reference import reference_head, tensors_of
from tests.engine.qwen38.packing import EXPERTS, Stored
from tests.engine.tiny import Bench

E = EXPERTS.format(0)


@functools.cache
def made(form: str) -> Stored:
    reference = tiny.reference()
    return packing.stored(form, tiny.checkpoint(reference), tensors_of(reference_head(reference)))


def config(form: str) -> dict[str, Any]:
    layers = made(form).layers
    return tiny.config(quantization_config={"quantized_layers": layers} if layers else {})


def opened(form: str, tensors: dict[str, Tensor] | None = None) -> Qwen38Tensors:
    return Qwen38Tensors(made(form).tensors if tensors is None else tensors, config(form))


def loaded(config: dict[str, Any], tensors: dict[str, Tensor]) -> Model:
    return load(config, tensors, slots=1, context=tiny.CONTEXT, dtype="float32", device=tiny.CPU)


def logits(model: Model) -> Tensor:
    """[8, V] of a window of eight tokens after six that are prefilled."""
    tokens = [7, 23, 9, 101, 55, 23, 1, 200, 3, 88, 4, 7, 23, 9]
    pool = SlotPool(1, tiny.CONTEXT, tiny.VOCABULARY, tiny.CPU)
    bench = Bench(pool, model, EagerExecutor(model, NoDrafter(1, tiny.CPU)))
    bench.open(0, tokens[:7])
    plan = Plan(7, tiny.CONTEXT + SCRATCH_ROWS)
    return model.verify(Lanes(pool, (0,)), torch.tensor([tokens[6:]]), plan)[1][0]
