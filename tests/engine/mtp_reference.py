"""A plain MTP head for tests: transformers' llama layers over the whole text, no cache kept.

It shares no code with the engine's head. `workbench` puts both over the same tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRotaryEmbedding,
    rotate_half,
)

from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.proposal import Proposal
from flarechat.engine.recipes.llama.mtp import load_head
from flarechat.engine.slot import Lanes
from tests.engine.tiny import (
    CONTEXT,
    CPU,
    VOCABULARY,
    Bench,
    bench,
    cache_of,
    head_record,
    head_tensors,
    reference,
)

RECORDS = {
    "one layer": head_record(),
    "two layers": head_record(layers=2, inner=24),
    "three taps": head_record(taps=(1, 2, 1)),
    "an inner tap": head_record(taps=(1,)),
    "a draft vocabulary": head_record(vocabulary=range(1, VOCABULARY, 2)),
}


class PlainChain:
    """A reference head's chain, computed again from the beginning at every step."""

    hidden: Callable[[Sequence[int]], Tensor]
    forward: Callable[[Tensor, Sequence[int]], tuple[Tensor, Any]]
    logits: Callable[[Tensor], Tensor]

    def chain(
        self, tokens: Sequence[int], depth: int, choose: Callable[[int, Tensor], int]
    ) -> tuple[list[int], list[Tensor]]:
        """Drafts after `tokens` (the last is pending) and the logits each came from.

        `choose(step, logits)` picks the draft.
        """
        hidden, told, drafts, rows = self.hidden(tokens[:-1]), list(tokens[1:]), [], []
        for step in range(depth):
            output, _ = self.forward(hidden, told)
            rows.append(self.logits(output[-1:])[0])
            drafts.append(choose(step, rows[-1]))
            hidden, told = torch.cat([hidden, output[-1:]]), [*told, drafts[-1]]
        return drafts, rows


class ReferenceHead(PlainChain):
    """The equations of the head, written down with transformers' parts."""

    def __init__(
        self, of: LlamaForCausalLM, record: dict[str, Any], tensors: dict[str, Tensor]
    ) -> None:
        self.of, self.record, self.tensors = of, record, tensors
        config = copy.deepcopy(of.config)
        config.intermediate_size = record["intermediate_size"]
        config.num_hidden_layers = record["layers"]
        self.rotary = LlamaRotaryEmbedding(config)
        self.layers = []
        for n in range(record["layers"]):
            layer, base = LlamaDecoderLayer(config, n), f"mtp.layers.{n}."
            own = {k.removeprefix(base): v for k, v in tensors.items() if k.startswith(base)}
            layer.load_state_dict(own)
            self.layers.append(layer.eval().requires_grad_(False))
        self.vocabulary = record["draft_vocabulary"] or list(range(of.config.vocab_size))

    def rms(self, x: Tensor, name: str) -> Tensor:
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.of.config.rms_norm_eps)
        return scaled * self.tensors[f"mtp.{name}.weight"]

    def hidden(self, tokens: Sequence[int]) -> Tensor:
        """[N, D]: what the head starts from at each of N true tokens."""
        seen: dict[int, Tensor] = {}
        hooks = [
            layer.register_forward_hook(lambda _m, _i, out, n=n: seen.update({n: out}))
            for n, layer in enumerate(self.of.model.layers, 1)
        ]
        self.of(torch.tensor([list(tokens)]), use_cache=False)
        for hook in hooks:
            hook.remove()
        tapped = torch.cat([seen[tap][0] for tap in self.record["taps"]], dim=-1)
        fuse = self.tensors.get("mtp.fuse.weight")
        return tapped if fuse is None else tapped @ fuse.T

    def forward(
        self, hidden: Tensor, tokens: Sequence[int]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Pairs hidden [N, D] and N next tokens → outputs [N, D], keys and values by layer."""
        embedded = self.of.model.embed_tokens(torch.tensor(list(tokens)))
        pair = [self.rms(hidden, "pre_fc_norm_hidden"), self.rms(embedded, "pre_fc_norm_embedding")]
        x = (torch.cat(pair, dim=-1) @ self.tensors["mtp.fc.weight"].T)[None]
        count = x.shape[1]
        at = torch.arange(count)[None]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        angles, rows = self.rotary(x, at), []
        for layer in self.layers:
            rows.append(self._keys_and_values(layer, x, angles))
            x = layer(x, attention_mask=mask, position_ids=at, position_embeddings=angles)
        return x[0], rows

    def _keys_and_values(
        self, layer: LlamaDecoderLayer, x: Tensor, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """What the layer's attention would keep of x [1, N, D]: each [H, N, head_dim]."""
        own, (cos, sin) = layer.self_attn, angles
        normed = layer.input_layernorm(x)[0]
        keys, values = (
            product(normed).unflatten(-1, (-1, own.head_dim)).transpose(0, 1)
            for product in (own.k_proj, own.v_proj)
        )
        return keys * cos + rotate_half(keys) * sin, values

    def logits(self, output: Tensor) -> Tensor:
        """[N, D] → [N, V], minus infinity outside the draft vocabulary."""
        full = self.of.lm_head(self.rms(output, "norm"))
        kept = torch.full_like(full, float("-inf"))
        kept[:, self.vocabulary] = full[:, self.vocabulary]
        return kept


Script = Callable[[int, int, int], list[int]]


class StagedMtp(MtpDrafter):
    """The real drafter behind scripted copies: `script(slot, generated, K)` gives those staged."""

    script: Script = staticmethod(lambda slot, done, k: [])
    generated: Tensor

    def propose(self, lanes: Lanes, plan: Any) -> Proposal:
        k = plan.draft_tokens
        copies = [list(self.script(s, int(self.generated[s]), k))[:k] for s in lanes.slots]
        tokens = torch.tensor([c + [0] * (k - len(c)) for c in copies], dtype=torch.int64)
        staged = Proposal(tokens.reshape(len(lanes), k), torch.tensor([len(c) for c in copies]))
        return self.extend(lanes, plan, staged)


def luck(truth: dict[int, list[int]], good: Callable[[int, int], int], *, wrong: bool) -> Script:
    """Copies right for `good(slot, generated)` tokens, then perhaps a wrong one; chain follows."""

    def script(slot: int, done: int, k: int) -> list[int]:
        ahead = truth[slot][done : done + good(slot, done)]
        after = truth[slot][done + len(ahead) : done + len(ahead) + 1]
        return [*ahead, *([(t + 1) % VOCABULARY for t in after] if wrong else [])]

    return script


def workbench(
    of: LlamaForCausalLM, record: dict[str, Any] | None = None,
    tensors: dict[str, Tensor] | None = None, *, slots: int = 4, dtype: str = "float32",
) -> tuple[Bench, ReferenceHead]:  # fmt: skip
    """A bench whose drafter is a StagedMtp, and the reference of its head."""
    record = record or head_record()
    tensors = tensors or head_tensors(record)
    made = bench(of, slots=slots, dtype=dtype)
    head = load_head(made.target, record, tensors, dtype=dtype, device=CPU)
    drafter = StagedMtp(head, slots, CONTEXT, CPU)
    drafter.generated = made.pool.generated
    made.executor.drafter = drafter
    return made, ReferenceHead(of, record, tensors)


def kin(seed: int = 0, *, vocabulary: int = 48, spread: float = 0.35) -> LlamaForCausalLM:
    """A target close to a bigram model, which a head can guess well."""
    of = reference(seed, tied=False, spread=spread, vocabulary=vocabulary)
    for layer in of.model.layers:
        layer.self_attn.o_proj.weight.mul_(0.02)
        layer.mlp.down_proj.weight.mul_(0.02)
    return of


def kin_tensors(record: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """A head for `kin`: it passes the embedding on with some noise, so most guesses are right."""
    tensors = head_tensors(record, seed=seed, spread=0.02)
    dim = record["hidden_size"]
    tensors["mtp.fc.weight"][:, dim:] += torch.eye(dim)
    return tensors


def assert_draft_state(
    made: Bench, head: ReferenceHead, slot: int, tokens: Sequence[int], rows: int | None = None
) -> None:
    """All state of a slot is teacher forcing's over `tokens`, whose last one is pending.

    Draft rows, hidden rows and the target's rows; `rows` limits the draft rows looked at.
    """
    held = list(tokens[:-1])
    drafter = made.executor.drafter
    assert isinstance(drafter, MtpDrafter)

    assert len(held) == int(made.pool.consumed[slot])
    own = list(zip(drafter.cache.keys, drafter.cache.values, strict=True))
    truth = head.hidden(held)
    assert_near(drafter.hidden.rows[slot, : len(held)], truth)
    for pair, expected in zip(made.kv(slot, len(held)), cache_of(head.of, held), strict=True):
        for ours, theirs in zip(pair, expected, strict=True):
            assert_near(ours, theirs)
    count = len(held) - 1 if rows is None else rows
    if count > 0:
        _, expected_rows = head.forward(truth[:count], held[1 : count + 1])
        for pair, expected in zip(own, expected_rows, strict=True):
            for ours, theirs in zip(pair, expected, strict=True):
                assert_near(ours[slot, :, :count], theirs)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Equal to 1e-5 of the largest value; raw hidden states grow to a hundred."""
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual, expected, atol=1e-5 * scale, rtol=0)
