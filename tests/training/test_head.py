"""The training target against transformers, and the unrolled chains against a loop of one chain."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from training import dry
from training.head import DraftHead, HeadShape, start_from
from training.target import DecodeCache, Target, norm, rotary, rotate

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _pair() -> tuple[LlamaForCausalLM, Target]:
    torch.manual_seed(3)
    theirs = LlamaForCausalLM(
        LlamaConfig(**dry.CONFIG, initializer_range=0.3, attn_implementation="eager")
    ).eval()
    tensors = dict(theirs.state_dict())
    ours = Target(dry.CONFIG, tensors, rows=64, dtype=torch.float32, device=torch.device("cpu"))
    return theirs, ours


def test_hidden_rows_and_logits_are_those_of_transformers():
    theirs, ours = _pair()
    ids = torch.randint(0, 96, (2, 19), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = theirs(ids, output_hidden_states=True)
    hidden = ours.hidden(ids, (1, 2, 3))
    torch.testing.assert_close(hidden[..., :32], out.hidden_states[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(hidden[..., 32:64], out.hidden_states[2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.logits(hidden[..., 64:]), out.logits, atol=1e-4, rtol=1e-4)


def test_the_decode_cache_says_what_a_whole_pass_says():
    _, ours = _pair()
    ids = torch.randint(0, 96, (3, 21), generator=torch.Generator().manual_seed(2))
    cache = DecodeCache(ours, 3, 21)
    steps = [cache.extend(ids[:, :6]), *(cache.extend(ids[:, t : t + 1]) for t in range(6, 21))]
    whole = ours.logits(ours.hidden(ids, (3,)))
    torch.testing.assert_close(torch.stack(steps, 1), whole[:, 5:], atol=1e-4, rtol=1e-4)


def _head(target: Target, shape: HeadShape) -> DraftHead:
    head = start_from(target, shape, torch.Generator().manual_seed(5))
    with torch.no_grad():
        for place, p in enumerate(head.parameters()):
            g = torch.Generator().manual_seed(100 + place)
            p += 0.2 * torch.randn(p.shape, generator=g)
    return head.requires_grad_(False)


def _one_chain(head: DraftHead, hidden: Tensor, embedded: Tensor, at: int, steps: int) -> Tensor:
    """Outputs [steps, D] of the chain begun at row `at`, row after row with a growing cache."""
    target, eps = head.target, head.target.rms_norm_eps
    cos, sin = rotary(target, 64, hidden.device)
    caches: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in head.layers]

    def feed(g: Tensor, e: Tensor, position: int) -> Tensor:
        x = head.fc @ torch.cat([norm(g, head.norm_hidden, eps), norm(e, head.norm_embedding, eps)])
        for layer, (keys, values) in zip(head.layers, caches, strict=True):
            qkv = layer.qkv @ norm(x, layer.input_norm, eps)
            q, k, v = (t.view(1, -1, 1, target.head_dim) for t in qkv.split(target.split))
            turn = cos[position : position + 1], sin[position : position + 1]
            q, k = rotate(q, *turn)[0, :, 0], rotate(k, *turn)[0, :, 0]
            keys.append(k)
            values.append(v[0, :, 0])
            group = len(q) // len(k)
            mixed = []
            for h in range(len(q)):
                scores = torch.stack([q[h] @ key[h // group] for key in keys])
                weights = torch.softmax(scores / math.sqrt(target.head_dim), 0)
                mixed.append(
                    sum(w * val[h // group] for w, val in zip(weights, values, strict=True))
                )
            x = x + layer.out @ torch.cat(mixed)
            inner = layer.gate_up @ norm(x, layer.mlp_norm, eps)
            gate, up = inner.chunk(2)
            x = x + layer.down @ (F.silu(gate) * up)
        return x

    g = head.features(hidden[None])[0]
    for row in range(at):
        feed(g[row], embedded[row + 1], row)
    outputs, state = [], g[at]
    for depth in range(steps):
        state = feed(state, embedded[at + 1 + depth], at + depth)
        outputs.append(state)
    return torch.stack(outputs)


@pytest.mark.parametrize("shape", [HeadShape(1, 48, (3,)), HeadShape(2, 40, (1, 2, 3))])
def test_all_chains_at_once_are_the_chains_one_by_one(shape: HeadShape):
    target = dry.tiny_target(torch.float64)
    head = _head(target, shape).double()
    ids = torch.randint(0, 96, (1, 14), generator=torch.Generator().manual_seed(4))
    hidden, embedded = target.hidden(ids, shape.taps), F.embedding(ids, target.embedding)
    every = torch.stack([y[0] for y in head.chain(hidden, embedded, 4)], dim=1)
    for at in (0, 1, 5, 9):
        alone = _one_chain(head, hidden[0], embedded[0], at, 4)
        torch.testing.assert_close(every[at], alone, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("inner", [32, 48, 64])
def test_a_head_starts_as_the_last_layer_whatever_its_mlp(inner: int):
    target = dry.tiny_target()
    head = start_from(target, HeadShape(1, inner, (3,)), torch.Generator().manual_seed(1))
    x = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(2))
    zero = torch.zeros(1, 4, 5, 8)
    ours = head.layers[0].finish(x, zero)
    w = target.blocks[-1]
    gate, up = F.linear(norm(x, w.mlp_norm, 1e-5), w.gate_up).chunk(2, -1)
    theirs = x + F.linear(F.silu(gate) * up, w.down)
    error = (ours - theirs).norm() / (theirs - x).norm()
    assert error < 1e-5 if inner >= 48 else 0 < error < 0.8
