"""A random Qwen4 model four layers deep, as transformers has it, and the engine's with its weights.

transformers' own class is the reference. Its initial weights leave every offset norm and the
n-gram convolution at zero, so all of them are drawn again.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import (
    Qwen4ExpForCausalLM,
    Qwen4ExpTextQSAIndexer,
)

from flarechat.engine.drafters.none import NoDrafter
from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.recipes.qwen38 import Model, load
from flarechat.engine.slot import SlotPool
from tests.engine.tiny import Bench

VOCABULARY = 256
EOS = 1
CONTEXT = 96
CPU = torch.device("cpu")
PROMPT = (7, 23, 9, 101, 55, 23, 9, 200, 3)

CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "hc_count": 4, "hc_lowrank": 16, "ple_layer_ids": [2], "ple_embed_dim": 64,
    "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 2,
    "ngram_vocab_size_base": 200, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 4,
    "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16,
    "indexer_compress_ratio": 4, "output_gate_type": "sigmoid", "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1], "mrope_interleaved": True,
    },
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "eos_token_id": EOS, "bos_token_id": EOS, "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip


def config(**changes: Any) -> dict[str, Any]:
    """The config.json of the tiny model, with `changes`."""
    return copy.deepcopy(CONFIG) | changes


def lower_of_ties(scores: Tensor, k: int, dim: int = -1) -> Any:
    """As Tensor.topk, the lower index first among equals."""
    values, indices = scores.sort(dim=dim, descending=True, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


class Indexer(Qwen4ExpTextQSAIndexer):
    """Transformers' own, which leaves open which of equal blocks it takes: the lower one."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        with mock.patch.object(torch.Tensor, "topk", lower_of_ties):
            return super().forward(*args, **kwargs)


@functools.cache
def reference(seed: int = 0) -> Qwen4ExpForCausalLM:
    """The tiny model in float32, every weight drawn anew but A_log and dt_bias."""
    torch.manual_seed(seed)
    model = Qwen4ExpForCausalLM(Qwen4ExpTextConfig(**config())).eval().float()
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, Qwen4ExpTextQSAIndexer):
            module.__class__ = Indexer
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        redraw(name, weight, generator)
    return model


def redraw(name: str, weight: Tensor, generator: torch.Generator) -> None:
    """Draw one parameter again, in place, by what it is."""
    if name.endswith(("A_log", "dt_bias")):
        return
    if name.endswith("linear_attn.norm.weight"):
        weight.uniform_(0.5, 1.5, generator=generator)
    elif name.endswith("ple.conv1d.weight"):
        weight.normal_(0, 0.3, generator=generator)
    elif weight.dim() == 1:
        weight.normal_(0, 0.2, generator=generator)
    else:
        fan = weight.shape[-1] * (weight.shape[-2] if "conv1d" in name else 1)
        weight.normal_(0, 1 / math.sqrt(fan), generator=generator)


def checkpoint(of: Qwen4ExpForCausalLM) -> dict[str, Tensor]:
    """The reference's tensors by the names that a checkpoint has, the n-gram table in shards."""
    named: dict[str, Tensor] = {}
    for name, tensor in of.state_dict().items():
        if name.endswith("ngram_embedding.weight"):
            parts = tensor.chunk(CONFIG["split_ngram_parts"])
            base = name.removesuffix("weight").replace("model.", "model.language_model.", 1)
            named |= {f"{base}shard_{i}.weight": part for i, part in enumerate(parts)}
        else:
            named[name.replace("model.", "model.language_model.", 1)] = tensor
    return named


def target(
    of: Qwen4ExpForCausalLM, *, slots: int = 4, context: int = CONTEXT, dtype: str = "float32",
    commit: str = "records",
) -> Model:  # fmt: skip
    """The engine's model with the reference's weights."""
    return load(
        config(), checkpoint(of), slots=slots, context=context, dtype=dtype, device=CPU,
        commit=commit,
    )  # fmt: skip


def bench(of: Qwen4ExpForCausalLM, *, slots: int = 4, commit: str = "records") -> Bench:
    """A pool, the target and an executor without a drafter."""
    pool = SlotPool(slots, CONTEXT, VOCABULARY, CPU)
    model = target(of, slots=slots, commit=commit)
    return Bench(pool, model, EagerExecutor(model, NoDrafter(slots, CPU)))


def logits_of(of: Qwen4ExpForCausalLM, tokens: Sequence[int]) -> Tensor:
    """[N, V]: plain teacher forcing without a cache."""
    return of(torch.tensor([list(tokens)]), use_cache=False).logits[0]


def greedy(of: Qwen4ExpForCausalLM, prompt: Sequence[int], count: int) -> list[int]:
    """Plain argmax decoding: the whole text again for every token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(of, tokens)[-1].argmax()))
    return tokens[len(prompt) :]
