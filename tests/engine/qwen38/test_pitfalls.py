"""Mistakes that others made with this family, each planted to see that the comparison with
transformers, or the loader, finds it. Without a plant the comparison holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.layers import gated_delta, sparse_attention
from flarechat.engine.layers.hyper import GatedResidual
from flarechat.engine.recipes.qwen38 import Model, config, load
from flarechat.engine.state import indexer, recurrent
from flarechat.engine.state.indexer import IndexerState
from flarechat.engine.state.passes import Pass
from flarechat.engine.state.recent import RecentRows
from flarechat.engine.state.recurrent import RecurrentState
from flarechat.engine.weights.qwen38 import Qwen38Tensors
from flarechat.errors import ModelError
from tests.engine.qwen38 import tiny
from tests.engine.qwen38.runner import ROUNDING, TEXT, Runner, judged, passes, text

Patch = pytest.MonkeyPatch
SEEN = 1e-3
NORMS = ("hc_norm", "q_norm", "k_norm", "layernorm", "norm_key", "norm_query", "norm_conv")


def difference(changed: Callable[[Model], None] | None = None, **config: Any) -> float:
    """The largest difference of logits from transformers' over a text in pieces."""
    of, bench = tiny.reference(), tiny.bench(tiny.reference())
    bench.target = fresh(**config)
    if changed:
        changed(bench.target)
    return float((tiny.logits_of(of, text()) - passes(bench, 0, text(), (17,), 3)).abs().max())


def fresh(tensors: dict[str, Tensor] | None = None, **changes: Any) -> Model:
    stored = tensors or tiny.checkpoint(tiny.reference())
    return load(
        tiny.config(**changes), stored, slots=4, context=tiny.CONTEXT, dtype="float32",
        device=tiny.CPU,
    )  # fmt: skip


def drift(start: int = 21, kept: int = 2, width: int = 8) -> float:
    """The largest difference of logits from transformers' after rejected rows."""
    runner = Runner()
    runner.model = fresh()
    runner.prefill(start)
    runner.step(judged(start, width, kept), kept)
    end = start + kept + 8
    logits = runner.step(TEXT[start + kept : end], 8)
    return float((tiny.logits_of(tiny.reference(), TEXT[:end])[-8:] - logits).abs().max())


def test_without_a_plant_nothing_differs() -> None:
    assert difference() < 2e-5
    assert all(drift(start, kept) < ROUNDING for start in range(20, 24) for kept in range(1, 9))


# 1. The one that norms are offsets from.


def folded() -> dict[str, Tensor]:
    """A checkpoint whose writer has added the one."""
    stored = tiny.checkpoint(tiny.reference())
    for name, tensor in stored.items():
        if name.removesuffix(".weight").endswith(NORMS):
            stored[name] = tensor + 1
    return stored


@pytest.mark.parametrize("added", [False, True])
def test_the_one_is_added_once_whoever_wrote_the_file(added: bool, monkeypatch: Patch) -> None:
    stored = folded() if added else tiny.checkpoint(tiny.reference())
    bench = tiny.bench(tiny.reference())
    wanted = tiny.logits_of(tiny.reference(), text())
    bench.target = fresh(stored)
    assert (wanted - passes(bench, 0, text(), (45,), 1)).abs().max() < 2e-5

    monkeypatch.setattr(Qwen38Tensors, "_are_folded", lambda *_: not added)
    bench.target = fresh(stored)
    assert (wanted - passes(bench, 0, text(), (45,), 1)).abs().max() > SEEN


# 2. The recurrence's output gate.


def test_the_output_gate_is_the_configured_one() -> None:
    assert difference(output_gate_type="silu") > SEEN
    with pytest.raises(ModelError, match="output_gate_type = None"):
        fresh(output_gate_type=None)


# 6. What n-grams look back on, after a rejection.


@pytest.mark.parametrize("part", ["ids", "columns"])
def test_n_gram_contexts_forget_rejected_rows(part: str, monkeypatch: Patch) -> None:
    keep = RecentRows.keep

    def all_of_them(self: RecentRows, lanes: Any, emitted: Tensor) -> None:
        is_ids = self.rows.dtype == torch.int64
        wrong = is_ids if part == "ids" else self.length == 9
        keep(self, lanes, torch.full_like(emitted, 8) if wrong else emitted)

    monkeypatch.setattr(RecentRows, "keep", all_of_them)

    assert drift() > SEEN
    assert drift(kept=8) < ROUNDING


# 8. Layers of n-gram features count from one.


def test_the_n_gram_layer_counts_from_one(monkeypatch: Patch) -> None:
    assert 1 == fresh().args.ple_layer
    counted = config._ple_layer
    monkeypatch.setattr(config, "_ple_layer", lambda *given: counted(*given) + 1)

    with pytest.raises(ModelError, match=r"lacks the tensor layers\.2\.ple"):
        fresh()


# 10. Open blocks.


def require_drift() -> None:
    """Somewhere among the places in a block and numbers kept there is a difference."""
    assert max(drift(start, kept) for start in range(20, 24) for kept in (1, 2, 5)) > SEEN


def test_an_open_block_needs_its_raw_keys(monkeypatch: Patch) -> None:
    recent = IndexerState.recent
    monkeypatch.setattr(IndexerState, "recent", lambda *given: 0 * recent(*given))

    require_drift()


def test_a_ring_must_hold_an_open_block_beside_a_round(monkeypatch: Patch) -> None:
    monkeypatch.setattr(indexer, "RING", 8)
    with pytest.raises(AssertionError):
        fresh()
    monkeypatch.setattr(indexer, "SCRATCH_ROWS", 4)
    monkeypatch.setattr(
        IndexerState, "write_raw", lambda self, layer, slots, at, live, keys: [
            self.ring[slot, layer].index_copy_(0, at[lane] % 8, keys[lane])
            for lane, slot in enumerate(slots)
        ],
    )  # fmt: skip

    require_drift()


def test_a_block_folded_from_rejected_rows_is_folded_again(monkeypatch: Patch) -> None:
    write = IndexerState.write_blocks

    def once(self: IndexerState, layer: int, slots: Any, numbers: Tensor, whole: Tensor,
             keys: Tensor) -> None:  # fmt: skip
        known = self.blocks[slots[0], layer].index_select(0, numbers[0].clamp_min(0)).any(-1)
        write(self, layer, slots, numbers, whole & ~known, keys)

    monkeypatch.setattr(IndexerState, "write_blocks", once)

    require_drift()


# 11. Equal scores.


def test_of_equal_blocks_the_lower_counts(monkeypatch: Patch) -> None:
    lower = sparse_attention.choose

    def higher(scores: Tensor, seen: Tensor, most: int) -> Tensor:
        return lower(scores.flip(-1), seen.flip(-1), most).flip(-1)

    monkeypatch.setattr(sparse_attention, "choose", higher)

    assert difference() > SEEN


# 12. A recurrence moved on before the count is known.


def test_a_recurrence_waits_for_the_count(monkeypatch: Patch) -> None:
    of_round = Pass.of_round
    at_once = classmethod(lambda cls, lanes, width: Pass.of_kept(
        lanes, width, of_round(lanes, width).count))  # fmt: skip
    monkeypatch.setattr(Pass, "of_round", at_once)
    monkeypatch.setattr(RecurrentState, "keep", lambda *_: None)
    monkeypatch.setattr(RecentRows, "keep", lambda *_: None)

    assert drift() > SEEN
    assert drift(kept=8) < ROUNDING


# 14. Precision of the recurrence, and how far its convolution looks back.


def test_the_recurrent_state_is_not_rounded(monkeypatch: Patch) -> None:
    put = recurrent.put

    def rounded(stored: Tensor, lanes: Any, values: Tensor, live: Tensor) -> None:
        put(stored, lanes, values.bfloat16().float() if values.dim() == 4 else values, live)

    monkeypatch.setattr(recurrent, "put", rounded)

    assert difference() > 2e-4


def betas(seen: list[Tensor]) -> Callable[..., Any]:
    rule = gated_delta.recurrent

    def noting(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> Any:
        seen.append(beta)
        return rule(q, k, v, decay, beta, state)

    return noting


def test_beta_is_rounded_as_the_reference_rounds_it(monkeypatch: Patch) -> None:
    seen: list[Tensor] = []
    monkeypatch.setattr(gated_delta, "recurrent", betas(seen))
    bench = tiny.bench(tiny.reference())
    bench.target = tiny.target(tiny.reference(), dtype="bfloat16")
    passes(bench, 0, text(), (), 5)
    assert seen
    assert all(torch.equal(beta, beta.bfloat16().float()) for beta in seen)

    def unrounded(x: Tensor) -> Tensor:
        return x.float().sigmoid() if x.shape[-1] == 6 else x.sigmoid()

    seen.clear()
    monkeypatch.setattr(gated_delta.torch, "sigmoid", unrounded)
    passes(bench, 0, text(), (), 5)
    assert not all(torch.equal(beta, beta.bfloat16().float()) for beta in seen)


def test_the_convolution_looks_back_three_columns(monkeypatch: Patch) -> None:
    before = RecentRows.before

    def shorter(self: RecentRows, lanes: Any, layer: int) -> Tensor:
        rows = before(self, lanes, layer)
        return torch.cat([0 * rows[:, :1], rows[:, 1:]], 1) if self.length == 3 else rows

    monkeypatch.setattr(RecentRows, "before", shorter)

    assert difference() > SEEN


# 15. Queries and gates lie side by side in each head.


def test_gates_lie_beside_their_own_head_s_query() -> None:
    def halves(model: Model) -> None:
        attention = model.layers[3].attention
        q = attention.q
        attention.q = lambda x: torch.unflatten(q(x), -1, (2, 4, 32)).transpose(-3, -2).flatten(-3)

    assert difference(halves) > SEEN


# 16. How streams are mixed and gated.


def summed(self: GatedResidual, normed: Tensor) -> Tensor:
    weights = torch.sigmoid(self.up(F.silu(self.down(normed) / self.streams)))
    return torch.unflatten(weights * normed, -1, (self.streams, -1)).sum(-2)


def undivided(self: GatedResidual, normed: Tensor) -> Tensor:
    weights = torch.sigmoid(self.up(F.silu(self.down(normed))))
    return torch.unflatten(weights * normed, -1, (self.streams, -1)).mean(-2)


@pytest.mark.parametrize("wrong", [summed, undivided])
def test_streams_are_averaged_and_their_sum_divided(wrong: Any, monkeypatch: Patch) -> None:
    monkeypatch.setattr(GatedResidual, "_mixed", wrong)

    assert difference() > SEEN


@pytest.mark.parametrize("wrong", ["half", "undivided"])
def test_gates_are_twice_a_sigmoid_of_a_quarter(wrong: str, monkeypatch: Patch) -> None:
    def read(self: GatedResidual, h: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.norm(h)
        assert self.inject
        raw = self.inject(normed)
        gates = 2 * torch.sigmoid(raw) if wrong == "undivided" else torch.sigmoid(raw / 4)
        return self._mixed(normed), gates

    monkeypatch.setattr(GatedResidual, "read", read)

    assert difference() > SEEN
