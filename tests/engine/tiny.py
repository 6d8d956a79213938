"""Small parts for tests of the page: a random llama, a scripted drafter, a plain reference.

The reference is transformers' own llama, run without a cache over the whole text for every
token, so it shares no code with the engine. Everything is float32 and seeded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from flarechat.engine.drafters.none import NoDrafter
from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.frame import LaneRecord, read
from flarechat.engine.kernels import cpu
from flarechat.engine.layers.linear import packed_half_available
from flarechat.engine.offer import Offer
from flarechat.engine.plan import LawShape, Plan, extent_for
from flarechat.engine.proposal import Proposal
from flarechat.engine.recipes.llama import Model, load
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.protocol import PACKED, STORED, Sampling

PACKED_HALF = pytest.param(
    PACKED,
    marks=pytest.mark.skipif(
        not packed_half_available(), reason="this torch has no packed fp16 kernel"
    ),
)
STORED_TILES = pytest.param(
    STORED,
    marks=pytest.mark.skipif(cpu.library() is None, reason=f"the CPU kernels are {cpu.reason()}"),
)
VOCABULARY = 48
CONTEXT = 96
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
PROMPTS = (PROMPT, (2, 7, 1, 8), (1, 6, 1, 8, 0, 3), (1, 4))
COUNT = 40
CPU = torch.device("cpu")


def reference(
    seed: int = 0, *, tied: bool = True, spread: float = 0.6, vocabulary: int = VOCABULARY
) -> LlamaForCausalLM:
    """A random two-layer llama whose logits are well apart."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        initializer_range=spread,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def target(of: LlamaForCausalLM, *, slots: int = 4, dtype: str = "float32") -> Model:
    """The engine's model with the reference's weights, as they are stored in bfloat16 for that."""
    weights = of.state_dict()
    if dtype == STORED:
        weights = {name: tensor.bfloat16() for name, tensor in weights.items()}
    return load(of.config.to_dict(), weights, slots=slots, context=CONTEXT, dtype=dtype, device=CPU)


def greedy(of: LlamaForCausalLM, prompt: Sequence[int], count: int) -> list[int]:
    """Plain argmax decoding: the whole text again for every token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(of(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@functools.cache
def shared() -> tuple[LlamaForCausalLM, dict[int, list[int]]]:
    """A reference, and what plain decoding says after each of PROMPTS."""
    of = reference()
    return of, {slot: greedy(of, prompt, COUNT + 8) for slot, prompt in enumerate(PROMPTS)}


def cache_of(of: LlamaForCausalLM, tokens: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Per layer the keys and values [H, N, D] of teacher forcing over `tokens`."""
    cache = of(torch.tensor([list(tokens)]), use_cache=True).past_key_values
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


def head_record(
    *, layers: int = 1, inner: int = 40, taps: Sequence[int] = (2,),
    vocabulary: Sequence[int] | None = None, targets: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """The record of an MTP head for a target of hidden size 32 with two layers."""
    return {
        "format": 1,
        "targets": list(targets),
        "hidden_size": 32,
        "layers": layers,
        "intermediate_size": inner,
        "taps": list(taps),
        "draft_vocabulary": None if vocabulary is None else list(vocabulary),
        "licence": "Apache-2.0",
    }


def head_tensors(
    record: dict[str, Any], *, seed: int = 0, spread: float = 0.3, heads: int = 4,
    kv_heads: int = 2, head_dim: int = 8,
) -> dict[str, Tensor]:  # fmt: skip
    """Random tensors of a head with that record; it drafts badly, but never the same."""
    dim, inner = record["hidden_size"], record["intermediate_size"]
    wide, kv = heads * head_dim, kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (dim, 2 * dim), "pre_fc_norm_hidden": (dim,), "pre_fc_norm_embedding": (dim,),
        "norm": (dim,),
    }  # fmt: skip
    for n in range(record["layers"]):
        shapes |= {
            f"layers.{n}.input_layernorm": (dim,),
            f"layers.{n}.post_attention_layernorm": (dim,),
            f"layers.{n}.self_attn.q_proj": (wide, dim),
            f"layers.{n}.self_attn.k_proj": (kv, dim),
            f"layers.{n}.self_attn.v_proj": (kv, dim),
            f"layers.{n}.self_attn.o_proj": (dim, wide),
            f"layers.{n}.mlp.gate_proj": (inner, dim),
            f"layers.{n}.mlp.up_proj": (inner, dim),
            f"layers.{n}.mlp.down_proj": (dim, inner),
        }
    if len(record["taps"]) > 1:
        shapes["fuse"] = (dim, dim * len(record["taps"]))
    generator = torch.Generator().manual_seed(seed)

    def drawn(shape: tuple[int, ...]) -> Tensor:
        values = spread * torch.randn(shape, generator=generator)
        return values + 1 if len(shape) == 1 else values

    return {f"mtp.{name}.weight": drawn(shape) for name, shape in shapes.items()}


class ScriptedDrafter(NoDrafter):
    """Right for exactly `good(slot, generated)` guesses of each round, then wrong.

    `truth` maps a slot to the tokens plain decoding gives it. `spread` > 0 makes the proposals
    MTP-like: the guess keeps that mass, the rest is even over the vocabulary.
    """

    def __init__(
        self,
        pool: SlotPool,
        truth: dict[int, list[int]],
        good: Callable[[int, int], int],
    ) -> None:
        self.pool, self.truth, self.good = pool, truth, good

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        rows = [self._guess(slot, plan.draft_tokens) for slot in lanes.slots]
        tokens = torch.tensor(rows, dtype=torch.int64).reshape(len(lanes), plan.draft_tokens)
        return Proposal(tokens, torch.full((len(lanes),), plan.draft_tokens))

    def _guess(self, slot: int, depth: int) -> list[int]:
        done = int(self.pool.generated[slot])
        truth = self.truth.get(slot, [])
        good = self.good(slot, done)
        true = [truth[done + i] if done + i < len(truth) else 0 for i in range(depth)]
        return [t if i < good else (t + 1) % VOCABULARY for i, t in enumerate(true)]


@dataclass
class Bench:
    """A pool, a target and an executor put together, with slots opened for prompts."""

    pool: SlotPool
    target: Model
    executor: EagerExecutor

    def open(
        self, slot: int, prompt: Sequence[int] = PROMPT, *, budget: int = 40,
        eos: Sequence[int] = (), sampling: Sampling | None = None, seed: int = 7,
        match: bool = True, chunk: int = 256, generated: Sequence[int] = (), restored: int = 0,
        mtp: bool = True,
    ) -> None:  # fmt: skip
        """Bind a slot and prefill it, past what is restored, in chunks of `chunk` tokens."""
        self.pool.open(
            slot, prompt, generated, sampling=sampling or Sampling(temperature=0), seed=seed,
            match=match, budget=budget, eos=eos, restored=restored,
        )  # fmt: skip
        held = [*prompt, *generated]
        self.executor.drafter.open(
            slot, f"r{slot}", held, restored=restored, history=False, mtp=mtp
        )
        for start in range(restored, len(held) - 1, chunk):
            piece = held[start : min(start + chunk, len(held) - 1)]
            extent = extent_for(start + len(piece), CONTEXT + SCRATCH_ROWS)
            absorb = mtp or self.executor.drafter.always_absorbs
            plan = Plan(len(piece) - 1, extent, absorb=absorb)
            self.executor.prefill(Lanes(self.pool, (slot,)), torch.tensor([piece]), plan)
        self.pool.start(slot)

    def play(
        self, slots: Sequence[int], draft_tokens: int, *, law: LawShape | None = None,
        acceptance: str = "match", logprobs: int = 0, absorb: bool = True, judged: bool = False,
    ) -> list[LaneRecord]:  # fmt: skip
        """One round at a width, staged before and committed after."""
        drafter = self.executor.drafter
        for slot in slots:
            drafter.stage(slot, draft_tokens)
        most = int(self.pool.consumed[list(slots)].max()) + draft_tokens + 1
        extent = extent_for(most, CONTEXT + SCRATCH_ROWS)
        plan = Plan(
            draft_tokens, extent, law or LawShape(1), acceptance, logprobs, absorb=absorb,
            judged=judged,
        )  # fmt: skip
        records = read(self.executor.play(Lanes(self.pool, slots), plan))
        for slot, record in zip(slots, records, strict=True):
            drafter.commit(slot, record.tokens)
        return records

    def kv(self, slot: int, rows: int) -> list[tuple[Tensor, Tensor]]:
        """Per layer the first `rows` keys and values of a slot."""
        cache = self.target.kv
        return [
            (k[slot, :, :rows], v[slot, :, :rows])
            for k, v in zip(cache.keys, cache.values, strict=True)
        ]


def bench(of: LlamaForCausalLM, *, slots: int = 4, dtype: str = "float32") -> Bench:
    """A bench without a drafter; set `executor.drafter` for a scripted one."""
    pool = SlotPool(slots, CONTEXT, of.config.vocab_size, CPU)
    model = target(of, slots=slots, dtype=dtype)
    return Bench(pool, model, EagerExecutor(model, NoDrafter(slots, CPU)))


__all__ = ["Bench", "Offer", "ScriptedDrafter", "bench", "cache_of", "greedy", "reference"]
