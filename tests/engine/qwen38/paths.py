"""What transformers holds at every token of a text: the states of the target and of its head.

One token at a time through transformers' own cache; every state that the engine keeps of a slot is
compared with it, element by element.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.recipes.qwen38 import Model
from flarechat.engine.recipes.qwen38.mtp import HeadRows
from flarechat.engine.state.indexer import RING, IndexerState
from flarechat.engine.state.kv import KVState
from tests.engine.qwen38.mtp_reference import RATIO, ReferenceHead, block_keys
from tests.engine.qwen38.tiny import VOCABULARY


@dataclass
class Path:
    """`tokens` are a prompt and its greedy continuation; `states[n]` what n consumed tokens leave.

    `logits[n]` [V] are those after n tokens, `hidden` [N, S * D] the head's inputs.
    """

    of: Qwen4ExpForCausalLM
    prompt: tuple[int, ...]
    tokens: list[int]
    states: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    logits: dict[int, Tensor] = field(default_factory=dict)
    hidden: Tensor = field(default_factory=Tensor)
    head_rows: list[dict[str, Tensor]] = field(default_factory=list)

    @property
    def answer(self) -> list[int]:
        """The greedy continuation."""
        return self.tokens[len(self.prompt) :]

    def behind(self, count: int) -> Path:
        """The same text as the answer to its first `count` tokens, which are prompt and answer."""
        assert count >= len(self.prompt)
        return replace(self, prompt=tuple(self.tokens[:count]))


@functools.cache
def path(of: Qwen4ExpForCausalLM, prompt: tuple[int, ...], count: int) -> Path:
    """Plain greedy decoding of `count` tokens, with the states on the way."""
    found, cache, seen = Path(of, prompt, list(prompt)), DynamicCache(config=of.config), []
    mixer = of.model.hyper_connection_mixer
    hook = mixer.register_forward_pre_hook(lambda _m, given: seen.append(given[0][0]))
    for n in range(1, len(prompt) + count):
        token = torch.tensor([[found.tokens[n - 1]]])
        found.logits[n] = of(token, cache=cache, use_cache=True).logits[0, -1]
        found.states[n] = _states(of, cache, n)
        if n >= len(prompt):
            found.tokens.append(int(found.logits[n].argmax()))
    hook.remove()
    found.hidden = torch.cat(seen)
    return found


def _states(of: Qwen4ExpForCausalLM, cache: DynamicCache, n: int) -> dict[str, Tensor]:
    """Copies, by the names and in the layouts of `held`."""
    told: dict[str, Tensor] = {}
    recurrent, sparse = 0, 0
    for number, layer in enumerate(cache.layers):
        if hasattr(layer, "recurrent_states"):
            told[f"S {recurrent}"] = layer.recurrent_states[0][0].clone()
            told[f"conv {recurrent}"] = layer.conv_states[0][0, :, -3:].T.clone()
            recurrent += 1
            if of.model.layers[number].ple is not None:
                told["ngram columns"] = layer.conv_states[1][0].T.clone()
                told["ngram ids"] = layer.conv_states[2][0].clone()
            continue
        at = torch.arange(n).view(1, 1, -1).expand(3, 1, -1)
        angles, raw = of.model.rotary_emb(layer.keys, at), layer.indexer_keys[0]
        told[f"keys {sparse}"] = layer.keys[0].clone()
        told[f"values {sparse}"] = layer.values[0].clone()
        told[f"blocks {sparse}"] = block_keys(
            of.model.layers[number].self_attn.indexer, raw, angles
        )
        told[f"open {sparse}"] = raw[n - n % RATIO :].clone()
        sparse += 1
    return told


def held(target: Model, slot: int, rows: int) -> dict[str, Tensor]:
    """Every tensor the engine's target keeps of a slot after `rows` tokens."""
    caches = target.caches
    told = {"ngram ids": caches.ngram.ids.rows[slot, 0, :, 0],
            "ngram columns": caches.ngram.columns.rows[slot, 0]}  # fmt: skip
    for layer in range(caches.recurrent.state.shape[1]):
        told[f"S {layer}"] = caches.recurrent.state[slot, layer]
        told[f"conv {layer}"] = caches.recurrent.conv.rows[slot, layer]
    return told | _sparse(caches.sparse.kv, caches.sparse.indexer, slot, rows)


def _sparse(kv: KVState, indexer: IndexerState, slot: int, rows: int) -> dict[str, Tensor]:
    told: dict[str, Tensor] = {}
    for layer in range(len(kv.keys)):
        told[f"keys {layer}"] = kv.keys[layer][slot, :, :rows]
        told[f"values {layer}"] = kv.values[layer][slot, :, :rows]
        told[f"blocks {layer}"] = indexer.blocks[slot, layer, : rows // RATIO]
        at = torch.arange(rows - rows % RATIO, rows) % RING
        told[f"open {layer}"] = indexer.ring[slot, layer, at]
    return told


def assert_target(target: Model, slot: int, along: Path, rows: int) -> None:
    """The slot's state is that of `rows` tokens of the path."""
    assert_equal(held(target, slot, rows), along.states[rows])


def _head_rows(head: ReferenceHead, along: Path) -> dict[str, Tensor]:
    """The rows of the one head of the path's model, made once for all paths of this text."""
    if not along.head_rows:
        along.head_rows.append(head(along.hidden, along.tokens[1:])[1])
    return along.head_rows[0]


def assert_head(
    drafter: MtpDrafter, slot: int, head: ReferenceHead, along: Path, rows: int
) -> None:
    """The head's state is that of teacher forcing over `rows` consumed tokens of the path."""
    cache, last = drafter.cache, rows - 1
    assert isinstance(cache, HeadRows)
    truth = _head_rows(head, along)
    expected = {
        "tail": along.hidden[rows - 1],
        "keys 0": truth["keys"][:, :last],
        "values 0": truth["values"][:, :last],
        "blocks 0": truth["blocks"][: last // RATIO],
        "open 0": truth["raw"][last - last % RATIO : last],
    }
    own = _sparse(cache.layers.kv, cache.layers.indexer, slot, last)
    assert_equal({"tail": drafter.hidden.rows[slot], **own}, expected)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """The same tensors, equal to 5e-5 of the largest value of each."""
    assert set(expected) == set(found)
    for name, value in expected.items():
        scale = max(1.0, float(value.abs().max())) if value.numel() else 1.0
        torch.testing.assert_close(
            found[name], value, atol=5e-5 * scale, rtol=0, msg=lambda m, n=name: f"{n}: {m}"
        )


def wrong(token: int) -> int:
    """Another token."""
    return (token + 1) % VOCABULARY
