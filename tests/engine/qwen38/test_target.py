"""The whole target against transformers: any pieces, any lanes, and what a draft head is given."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from flarechat.engine.accept import RUNNING
from flarechat.engine.plan import Plan
from flarechat.engine.recipes.qwen38 import ModelArgs, price
from flarechat.engine.slot import SCRATCH_ROWS, Lanes
from flarechat.engine.state.recurrent import COMMITS
from flarechat.protocol import Sampling
from tests.engine.qwen38 import tiny
from tests.engine.qwen38.runner import passes, text
from tests.engine.test_round import NoHostSync
from tests.engine.tiny import ScriptedDrafter


@pytest.mark.parametrize("width", [1, 2, 5, 8])
@pytest.mark.parametrize("chunks", [(), (1,), (3,), (17,), (40,), (17, 20), (1, 2, 16), (45,)])
def test_logits_are_transformers_however_the_text_is_cut(
    chunks: tuple[int, ...], width: int
) -> None:
    of = tiny.reference()
    out = passes(tiny.bench(of), 2, text(), chunks, width)

    assert (tiny.logits_of(of, text()) - out).abs().max() < 2e-5


def in_pieces(of: Qwen4ExpForCausalLM, tokens: Sequence[int], first: int) -> Tensor:
    """Transformers' logits [N, V] with its cache: `first` tokens, then one by one."""
    out = of(torch.tensor([tokens[:first]]), use_cache=True)
    logits = [out.logits[0]]
    for token in tokens[first:]:
        out = of(torch.tensor([[token]]), cache=out.cache, use_cache=True)
        logits.append(out.logits[0])
    return torch.cat(logits)


@pytest.mark.parametrize("seed", range(8))
def test_pieces_round_no_more_than_transformers_own(seed: int) -> None:
    """In some texts a recurrence gives next to nothing, and the norm behind it magnifies rounding;
    in one piece all are near, in pieces as near as transformers is to itself."""
    of, tokens = tiny.reference(), text(45, seed)
    whole, bench = tiny.logits_of(of, tokens), tiny.bench(tiny.reference())
    theirs = max(float((in_pieces(of, tokens, n) - whole).abs().max()) for n in (1, 17))

    assert (whole - passes(bench, 1, tokens, (45,), 1)).abs().max() < 2e-5
    for width in (1, 8):
        ours = (whole - passes(bench, 1, tokens, (17,), width)).abs().max()
        assert ours < max(2e-5, 3 * theirs)


@pytest.mark.parametrize("rows", [2, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_a_window_after_any_prompt_is_transformers(seed: int, rows: int) -> None:
    of, tokens = tiny.reference(), text(60, seed, eos=(seed * 7, 30 + seed, 31))
    out = passes(tiny.bench(of), 0, tokens, (60 - rows,), rows)

    assert (tiny.logits_of(of, tokens) - out).abs().max() < 2e-5


def test_wide_rows_are_narrow_ones_but_for_rounding_of_products() -> None:
    of = tiny.reference()
    wide, narrow = (passes(tiny.bench(of), 0, text(), (17,), width) for width in (8, 1))

    assert (wide - narrow).abs().max() < 1e-5
    assert torch.equal(wide.argmax(-1), narrow.argmax(-1))


@torch.inference_mode()
def test_lanes_of_different_lengths_do_not_touch_one_another() -> None:
    of, bench = tiny.reference(), tiny.bench(tiny.reference())
    texts = {3: text(45, 1), 0: text(30, 2, eos=(4,)), 2: text(9, 3, eos=())}
    for slot, tokens in texts.items():
        passes(bench, slot, tokens[:-8], (len(tokens) - 8,), 1)
        bench.pool.finish[slot] = RUNNING
    lanes = Lanes(bench.pool, tuple(texts))
    inputs = torch.tensor([tokens[-8:] for tokens in texts.values()])
    _, logits = bench.target.verify(lanes, inputs, Plan(7, tiny.CONTEXT + SCRATCH_ROWS))

    for lane, tokens in enumerate(texts.values()):
        assert (tiny.logits_of(of, tokens)[-8:] - logits[lane]).abs().max() < 2e-5


def test_transformers_left_padding_is_our_lanes() -> None:
    of, bench = tiny.reference(), tiny.bench(tiny.reference())
    short, long = text(28, 4, eos=(7,)), text(45, 5)
    padded = torch.tensor([[0] * 17 + short, long])
    mask = (torch.arange(45) >= torch.tensor([[17], [0]])).long()
    positions = (torch.cumsum(mask, 1) - 1).clamp_min(0)
    theirs = of(padded, attention_mask=mask, position_ids=positions, use_cache=False).logits

    assert (theirs[0, 17:] - passes(bench, 1, short, (28,), 1)).abs().max() < 2e-5
    assert (theirs[1] - passes(bench, 3, long, (45,), 1)).abs().max() < 2e-5


def test_what_a_draft_head_is_given_is_the_residual_before_the_mixer() -> None:
    of, seen = tiny.reference(), list[Tensor]()

    def note(_: Any, given: tuple[Tensor, ...]) -> None:
        seen.append(given[0])

    handle = of.model.hyper_connection_mixer.register_forward_pre_hook(note)
    tiny.logits_of(of, text())
    handle.remove()
    bench = tiny.bench(of)
    bench.pool.open(
        0, text(), sampling=Sampling(temperature=0), seed=0, match=True, budget=9, eos=()
    )
    lanes = Lanes(bench.pool, (0,)).for_prefill()
    hidden = bench.target.prefill(lanes, torch.tensor([text()]), Plan(44, tiny.CONTEXT))

    torch.testing.assert_close(seen[0], hidden, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("draft_tokens", [0, 3, 7])
@pytest.mark.parametrize("good", range(4))
def test_greedy_rounds_say_what_transformers_says(draft_tokens: int, good: int) -> None:
    of, bench = tiny.reference(), tiny.bench(tiny.reference())
    truth = tiny.greedy(of, tiny.PROMPT, 30)
    bench.executor.drafter = ScriptedDrafter(bench.pool, {1: truth}, lambda *_: good)
    bench.open(1, tiny.PROMPT, budget=30)
    said: list[int] = []
    while len(said) < 30:
        said += bench.play((1,), draft_tokens)[0].tokens

    assert truth == said


def test_a_slot_used_before_is_as_a_new_one() -> None:
    of, bench = tiny.reference(), tiny.bench(tiny.reference())
    for state in bench.target.states():
        for tensor in state.tensors().values():
            tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
    for tensors in (bench.target.caches.sparse.kv.keys, bench.target.caches.sparse.kv.values):
        for tensor in tensors:
            tensor.zero_()
    out = [passes(bench, 1, text(), chunks, 4) for chunks in ((), (5,))]

    for logits in out:
        assert (tiny.logits_of(of, text()) - logits).abs().max() < 2e-5


@pytest.mark.parametrize("commit", COMMITS)
@torch.inference_mode()
def test_no_operation_of_a_pass_or_its_commit_waits_for_a_value(commit: str) -> None:
    bench = tiny.bench(tiny.reference(), commit=commit)
    for slot in range(4):
        passes(bench, slot, text(20 + slot, slot, eos=()), (9,), 4)
    lanes = Lanes(bench.pool, (2, 0, 3, 1))
    emitted = torch.tensor([1, 0, 1, 1])
    with NoHostSync():
        for width in (1, 2, 8):
            inputs = torch.zeros(4, width, dtype=torch.int64)
            bench.target.verify(lanes, inputs, Plan(width - 1, tiny.CONTEXT))
            bench.target.keep(lanes, emitted)


def test_in_bfloat16_the_recurrence_stays_float32() -> None:
    of = tiny.reference()
    model = tiny.target(of, dtype="bfloat16")
    dtypes = {name: t.dtype for s in model.states() for name, t in s.tensors().items()}
    assert torch.float32 == dtypes["state"] == dtypes["key"] == dtypes["correction"]
    assert torch.bfloat16 == dtypes["conv"] == dtypes["columns"] == dtypes["ring"]
    bench = tiny.bench(of)
    bench.target = model
    out = passes(bench, 0, text(), (17,), 3).float()

    assert (tiny.logits_of(of, text()) - out).norm() / out.norm() < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_bfloat16_rounds_where_transformers_rounds(seed: int) -> None:
    """Against transformers in bfloat16, which is far from both in float32."""
    half, tokens = copy.deepcopy(tiny.reference()).bfloat16(), text(45, seed)
    theirs, exact = tiny.logits_of(half, tokens).float(), tiny.logits_of(tiny.reference(), tokens)
    bench = tiny.bench(tiny.reference())
    bench.target = tiny.target(half, dtype="bfloat16")
    out = passes(bench, 0, tokens, (17,), 3).float()

    assert (out - theirs).norm() < 0.01 * theirs.norm()
    assert (theirs - exact).norm() > 0.03 * theirs.norm()
    assert torch.equal(theirs.argmax(-1), out.argmax(-1))


def test_the_price_is_what_is_allocated() -> None:
    args = ModelArgs.from_config(tiny.config())
    model = tiny.target(tiny.reference(), slots=3, context=70)
    prices = price(args, 3, 70, "float32")

    caches = model.caches
    assert prices["states"] == caches.recurrent.nbytes + caches.ngram.nbytes
    assert prices["caches"] == caches.sparse.kv.nbytes + caches.sparse.indexer.nbytes
    weights = sum(t.numel() for t in tiny.reference().state_dict().values())
    assert prices["weights"] == 4 * weights
