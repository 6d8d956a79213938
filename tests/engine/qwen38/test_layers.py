"""Every layer of the Qwen4 family against transformers' own module, on what really reaches it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen4_exp import modeling_qwen4_exp as hf

from flarechat.engine.layers.conv import depthwise
from flarechat.engine.layers.experts import DenseExperts
from flarechat.engine.layers.gated_delta import chunked, recurrent, unit
from flarechat.engine.layers.offset_norm import GatedNorm, OffsetRMSNorm
from flarechat.engine.state.recurrent import Records, replay
from tests.engine.qwen38 import tiny

TOKENS = [*tiny.PROMPT, 1, 17, 90, 1, 1, 44, 23, 9, 101, 55, *range(30, 60)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def traced(path: str) -> tuple[tuple[Any, ...], Any]:
    """What one module of the reference was given, and returned, over TOKENS."""
    of, seen = tiny.reference(), list[tuple[Any, ...]]()

    def note(_: Any, given: Any, out: Any) -> None:
        seen.append((given, out))

    handle = of.model.get_submodule(path).register_forward_hook(note)
    try:
        tiny.logits_of(of, TOKENS)
    finally:
        handle.remove()
    return seen[0]


@pytest.mark.parametrize("group", [None, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offset_norms_are_transformers_to_the_bit(group: int | None, dtype: torch.dtype) -> None:
    theirs = hf.Qwen4ExpTextRMSNorm(64, group_size=group)
    theirs.weight.data = drawn(64)
    x = 3 * drawn(2, 5, 64, seed=1).to(dtype)
    ours = OffsetRMSNorm(1 + theirs.weight.data, 1e-6, groups=64 // group if group else 1)

    assert torch.equal(theirs(x), ours(x))


@pytest.mark.parametrize("activation", ["sigmoid", "silu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gated_norm_is_transformers_to_the_bit(activation: str, dtype: torch.dtype) -> None:
    theirs = hf.Qwen4ExpTextRMSNormGated(16, activation=activation)
    theirs.weight.data = drawn(16).to(dtype)
    x, gate = drawn(7, 16, seed=1).to(dtype), 2 * drawn(7, 16, seed=2).to(dtype)

    assert torch.equal(theirs(x, gate), GatedNorm(theirs.weight.data, 1e-6, activation)(x, gate))


@pytest.mark.parametrize("place", ["layers.1.attn", "layers.3.mlp"])
def test_a_gated_residual_mixes_and_gates_as_transformers(place: str) -> None:
    (h,), (mixed, _, gates) = traced(f"{place}_hyper_connection")
    layer = tiny.target(tiny.reference()).layers[int(place[7])]
    ours = layer.attention_residual if place.endswith("attn") else layer.experts_residual
    x, own_gates = ours.read(h)

    torch.testing.assert_close(mixed, x, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(gates, own_gates, atol=1e-6, rtol=1e-6)
    out = drawn(*x.shape)
    injected = h + (out.unsqueeze(-2) * gates.unsqueeze(-1)).flatten(-2)
    torch.testing.assert_close(injected, ours.combine(h, own_gates, out), atol=1e-6, rtol=1e-6)


def test_the_last_mixer_only_mixes() -> None:
    (h,), mixed = traced("hyper_connection_mixer")
    mixer = tiny.target(tiny.reference()).mixer

    torch.testing.assert_close(mixed, mixer.mix(h), atol=1e-6, rtol=1e-6)


def test_a_mixture_of_experts_is_transformers() -> None:
    (x,), out = traced("layers.2.mlp")

    torch.testing.assert_close(
        out, tiny.target(tiny.reference()).layers[2].experts(x), atol=2e-6, rtol=1e-5
    )


@pytest.mark.parametrize("rows", [3, 40, 60])
def test_experts_give_many_rows_what_they_give_each_alone(rows: int) -> None:
    experts = DenseExperts(drawn(8, 24, 16), drawn(8, 16, 12, seed=1))
    x, weights = drawn(rows, 16, seed=2), drawn(rows, 2, seed=3)
    ids = torch.randint(8, (rows, 2), generator=torch.Generator().manual_seed(4))

    alone = torch.cat([experts(x[[i]], ids[[i]], weights[[i]]) for i in range(rows)])
    torch.testing.assert_close(alone, experts(x, ids, weights), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dilation", [1, 3])
def test_a_causal_convolution_looks_back_on_what_came_before(dilation: int) -> None:
    weight, rows = drawn(6, 4), drawn(2, 11, 6, seed=1)
    length = 3 * dilation
    padded = torch.nn.functional.pad(rows.mT, (length, 0))
    theirs = torch.nn.functional.conv1d(padded, weight[:, None], groups=6, dilation=dilation).mT
    before = torch.zeros(2, length, 6)
    whole = depthwise(before, rows, weight, dilation)
    split = depthwise(
        torch.cat([before, rows[:, :5]], 1)[:, -length:], rows[:, 5:], weight, dilation
    )

    torch.testing.assert_close(theirs, whole, atol=1e-5, rtol=1e-5)
    assert torch.equal(whole[:, 5:], split)


def delta_inputs(length: int, batch: int = 2) -> tuple[Tensor, ...]:
    """Raw queries, keys, values, decays and betas of 2 key heads and 6 value heads."""
    q, k = drawn(batch, length, 2, 16), drawn(batch, length, 2, 16, seed=1)
    v = drawn(batch, length, 6, 8, seed=2)
    decay = -drawn(batch, length, 6, seed=3).abs()
    return q, k, v, decay, drawn(batch, length, 6, seed=4).sigmoid()


@pytest.mark.parametrize("length", [1, 3, 64, 65, 150])
def test_the_delta_rule_agrees_by_rows_by_chunks_and_with_transformers(length: int) -> None:
    q, k, v, decay, beta = delta_inputs(length)
    state = drawn(2, 6, 16, 8, seed=5)
    theirs, last = hf.torch_recurrent_gated_delta_rule(
        q, k, v, decay, beta, initial_state=state, output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    q, k = unit(q) * 16**-0.5, unit(k)
    by_rows, records = recurrent(q, k, v, decay, beta, state)
    by_chunks, after = chunked(q, k, v, decay, beta, state)

    for out, end in ((by_rows, records.states[-1]), (by_chunks, after)):
        torch.testing.assert_close(theirs, out, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(last, end, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 3, 8, 64, 65])
def test_records_replay_to_the_states_that_the_rows_made_bit_for_bit(length: int) -> None:
    q, k, v, decay, beta = delta_inputs(length)
    state = drawn(2, 6, 16, 8, seed=5)
    _, records = recurrent(unit(q), unit(k), v, decay, beta, state)
    states = [state, *records.states]
    for count in {0, 1, length // 2, length}:
        both = torch.tensor([count, length - count])
        replayed = replay(state, records, both)
        assert torch.equal(states[count][0], replayed[0])
        assert torch.equal(states[length - count][1], replayed[1])


def test_a_replay_reads_nothing_of_rows_that_do_not_count() -> None:
    q, k, v, decay, beta = delta_inputs(4)
    state = drawn(2, 6, 16, 8, seed=5)
    _, records = recurrent(unit(q), unit(k), v, decay, beta, state)
    poisoned = [t.clone() for t in (records.key, records.correction, records.decay)]
    for tensor in poisoned:
        tensor[:, 2:] = float("nan")

    assert torch.equal(records.states[1], replay(state, Records(*poisoned), torch.tensor([2, 2])))


def test_rows_without_decay_and_beta_leave_the_state_to_the_bit() -> None:
    q, k, v, decay, beta = delta_inputs(3)
    state = drawn(2, 6, 16, 8, seed=5)
    _, records = recurrent(q, unit(k), v, 0 * decay, 0 * beta, state)

    assert torch.equal(state, records.states[-1])
