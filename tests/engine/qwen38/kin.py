"""A Qwen4 target close to a bigram model, with a head that guesses it well."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import (
    Qwen4ExpForCausalLM,
    Qwen4ExpTextQSAIndexer,
)

from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.recipes.qwen38 import load, load_head
from flarechat.engine.slot import SlotPool
from tests.engine.mtp_reference import StagedMtp
from tests.engine.qwen38.mtp_reference import ReferenceHead, draw, tensors_of
from tests.engine.qwen38.tiny import CONTEXT, CPU, Indexer, checkpoint, config, redraw
from tests.engine.tiny import Bench

_SOFT = 0.05
_WRITERS = (
    "o_proj.weight",
    "out_proj.weight",
    "down_proj",
    "down_proj.weight",
    "value_proj.weight",
)


@functools.cache
def kin(vocabulary: int = 64) -> Qwen4ExpForCausalLM:
    """A target whose layers say little beside the embedding."""
    torch.manual_seed(0)
    of = Qwen4ExpForCausalLM(Qwen4ExpTextConfig(**config(vocab_size=vocabulary))).eval().float()
    of.requires_grad_(False)
    for module in of.modules():
        if isinstance(module, Qwen4ExpTextQSAIndexer):
            module.__class__ = Indexer
    generator = torch.Generator().manual_seed(4)
    for name, weight in of.named_parameters():
        redraw(name, weight, generator)
        if name.endswith(_WRITERS):
            weight.mul_(_SOFT)
    of.model.embed_tokens.weight.mul_(math.sqrt(config()["hidden_size"]))
    of.lm_head.weight.mul_(3)
    return of


@functools.cache
def kin_head(of: Qwen4ExpForCausalLM) -> ReferenceHead:
    """A head that passes the embedding on through the target's own mixer."""
    head = draw(of, 5)
    dim = of.config.hidden_size
    for name, weight in head.named_parameters():
        if name.endswith((*_WRITERS, "fc_hidden.weight")):
            weight.mul_(_SOFT)
    head.fc_embedding.weight.copy_(torch.eye(dim) + 0.02 * head.fc_embedding.weight)
    head.pre_fc_norm_embedding.weight.zero_()
    head.hyper_connection_mixer.load_state_dict(of.model.hyper_connection_mixer.state_dict())
    return head


def bench(
    of: Qwen4ExpForCausalLM, *, slots: int = 4, context: int = CONTEXT,
    record: dict[str, Any] | None = None, commit: str = "records",
) -> tuple[Bench, ReferenceHead]:  # fmt: skip
    """A bench of such a target with its head as a StagedMtp."""
    vocabulary, tensors = of.config.vocab_size, checkpoint(of)
    model = load(
        config(vocab_size=vocabulary), tensors, slots=slots, context=context, dtype="float32",
        device=CPU, commit=commit,
    )  # fmt: skip
    head: dict[str, Tensor] = tensors_of(kin_head(of))
    own = load_head(model, record or {}, head, dtype="float32", device=CPU)
    pool = SlotPool(slots, context, vocabulary, CPU)
    drafter = StagedMtp(own, slots, context, CPU)
    drafter.generated = pool.generated
    return Bench(pool, model, EagerExecutor(model, drafter)), kin_head(of)
