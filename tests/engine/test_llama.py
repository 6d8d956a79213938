"""The llama recipe against transformers' llama: same weights, same logits."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from flarechat.engine.layers.linear import (
    DenseLinear,
    Linear,
    PackedHalfLinear,
    PendingLinear,
    packed_half_available,
)
from flarechat.engine.plan import LawShape, Plan
from flarechat.engine.recipes import SUPPORTED
from flarechat.engine.recipes.llama import Model, load
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.engine.weights import load_checkpoint
from flarechat.errors import ModelError
from flarechat.protocol import Sampling
from tests.engine.tiny import CPU, reference

CONTEXT = 96


def logits_of(model: Model, tokens: list[int], *, splits: int = 1) -> torch.Tensor:
    """Logits of every position, in `splits` passes."""
    pool = SlotPool(1, CONTEXT, model.vocabulary, CPU)
    pool.open(0, tokens, sampling=Sampling(), seed=0, match=True, budget=1, eos=())
    pool.start(0)
    rows = []
    with torch.no_grad():
        for piece in torch.tensor(tokens).chunk(splits):
            plan = Plan(len(piece) - 1, CONTEXT, LawShape(1))
            rows.append(model.verify(Lanes(pool, (0,)), piece[None], plan)[1][0])
            pool.consumed += len(piece)
    return torch.cat(rows)


SCALINGS: list[dict[str, Any]] = [
    {},
    {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 10000.0,
        }
    },
    {"tie_word_embeddings": False},
    {"head_dim": 16},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": 1},
]


@pytest.mark.parametrize("overrides", SCALINGS, ids=lambda o: ",".join(o) or "plain")
@pytest.mark.parametrize("splits", [1, 3, 60])
def test_logits_equal_transformers_to_1e_5(overrides: dict[str, Any], splits: int) -> None:
    torch.manual_seed(1)
    config = LlamaConfig(
        **{
            "vocab_size": 48, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
            "max_position_embeddings": CONTEXT, "initializer_range": 0.2, **overrides,
        }
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).eval().requires_grad_(False)
    ours = load(
        config.to_dict(), theirs.state_dict(), slots=1, context=CONTEXT, dtype="float32", device=CPU
    )
    tokens = torch.randint(0, 48, (60,)).tolist()

    expected = theirs(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(
        logits_of(ours, tokens, splits=splits), expected, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("taps", [(2,), (1,), (1, 2), (2, 1, 2)])
def test_the_hidden_states_are_the_raw_outputs_of_the_tapped_layers(taps: tuple[int, ...]) -> None:
    theirs = reference()
    seen = {}
    for number, layer in enumerate(theirs.model.layers, 1):
        layer.register_forward_hook(lambda _m, _i, out, n=number: seen.update({n: out}))
    ours = load(
        theirs.config.to_dict(), theirs.state_dict(), slots=1, context=CONTEXT, dtype="float32",
        device=CPU,
    )  # fmt: skip
    ours.taps = taps
    tokens = [3, 1, 4, 1, 5, 9]
    theirs(torch.tensor([tokens]), use_cache=False)
    pool = SlotPool(1, CONTEXT, ours.vocabulary, CPU)
    pool.open(0, tokens, sampling=Sampling(), seed=0, match=True, budget=1, eos=())
    lanes, plan = Lanes(pool, (0,)), Plan(len(tokens) - 1, CONTEXT, LawShape(1))
    expected = torch.cat([seen[tap] for tap in taps], dim=-1)

    for rows in (
        ours.prefill(lanes.for_prefill(), torch.tensor([tokens]), plan),
        ours.verify(lanes.for_prefill(), torch.tensor([tokens]), plan)[0],
    ):
        torch.testing.assert_close(rows, expected, atol=1e-3, rtol=1e-5)


@pytest.mark.skipif(not packed_half_available(), reason="this torch has no packed fp16 kernel")
def test_packed_weights_round_like_fp16_and_rows_do_not_depend_on_their_company() -> None:
    torch.manual_seed(2)
    weight, x = torch.randn(40, 24), torch.randn(8, 24)
    packed = PackedHalfLinear(weight)

    torch.testing.assert_close(packed(x), x @ weight.half().float().T, atol=1e-4, rtol=1e-4)
    for rows in range(1, 9):
        for start in range(9 - rows):
            assert torch.equal(packed(x)[start : start + rows], packed(x[start : start + rows]))
    many = torch.randn(258, 24)
    whole = packed(many)
    for rows in range(1, 258):
        assert torch.equal(whole[:rows], packed(many[:rows])), rows


def test_a_pending_product_waits_for_its_weight_and_tells_why_it_has_none() -> None:
    making: Future[Linear] = Future()
    pending, x = PendingLinear(making), torch.ones(2, 3)
    threading.Timer(0.05, making.set_result, [DenseLinear(torch.eye(3))]).start()
    failed: Future[Linear] = Future()
    failed.set_exception(RuntimeError("no memory"))

    assert torch.equal(x, pending(x))
    with pytest.raises(RuntimeError, match="no memory"):
        PendingLinear(failed)(x)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.pop("model.norm.weight"), "lacks the tensor model.norm.weight"),
        (lambda t: t.update(extra=torch.zeros(2)), "has the unexpected tensor extra"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(3)}),
            r"model.norm.weight has shape \(3,\), not \(32,\)",
        ),
    ],
)
def test_missing_surplus_and_misshaped_tensors_are_named(change: Any, complaint: str) -> None:
    of = reference()
    tensors = dict(of.state_dict())
    change(tensors)
    with pytest.raises(ModelError, match=complaint):
        load(of.config.to_dict(), tensors, slots=1, context=8, dtype="float32", device=CPU)


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_real_models_logits_equal_transformers_on_the_same_gguf(
    smollm2: Path, tmp_path: Path
) -> None:
    checkpoint = load_checkpoint(smollm2, tmp_path, lambda *_: None, supported=SUPPORTED)
    ours = load(
        checkpoint.config, checkpoint.tensors, slots=1, context=CONTEXT, dtype="float32", device=CPU
    )
    text = "The capital of France is Paris, and the capital of Italy is Rome. In 1861, " * 3
    from flarechat.engine.text.tokenizer import Tokenizer

    tokens = Tokenizer(checkpoint.tokenizer_json).encode(text)[:64]
    mine = logits_of(ours, tokens)
    theirs = AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    ).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]

    assert 64 == len(tokens)
    assert float((mine - expected).abs().max()) < 1e-3
    assert torch.equal(expected.argmax(-1), mine.argmax(-1))
