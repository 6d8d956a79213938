"""Sparse attention: which blocks a token sees, against transformers' own and by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from flarechat.engine.layers.sparse_attention import Rows, SparseCache, choose
from flarechat.engine.recipes.qwen38.weights import rope, sparse_cache
from flarechat.engine.state.indexer import RING
from tests.engine.qwen38 import tiny

LENGTH = 45
BUDGET, RATIO = tiny.CONFIG["indexer_budget"], tiny.CONFIG["indexer_compress_ratio"]
EXTENT = tiny.CONTEXT


def inputs(seed: int = 0) -> Tensor:
    return torch.randn(1, LENGTH, 64, generator=torch.Generator().manual_seed(seed))


def theirs(x: Tensor) -> Tensor:
    """Transformers' attention over the whole of x [1, N, D]."""
    of, length = tiny.reference(), x.shape[1]
    positions = torch.arange(length)[None]
    angles = of.model.rotary_emb(x, positions[None].expand(3, -1, -1))
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    return of.model.layers[3].self_attn(x, angles, mask)[0]


class Attended:
    """The engine's attention over slot 1 of two, in pieces."""

    def __init__(self) -> None:
        model = tiny.target(tiny.reference(), slots=2)
        self.attention, args = model.layers[3].attention, model.args
        self.cache: SparseCache = sparse_cache(args, 1, 2, tiny.CONTEXT, torch.float32, tiny.CPU)
        self.rope = rope(args, tiny.CONTEXT, tiny.CPU)

    def __call__(self, x: Tensor, start: int) -> Tensor:
        positions = torch.arange(start, start + x.shape[1])[None]
        at = Rows((1,), positions, positions, EXTENT, self.rope)
        return self.attention(x, self.cache, 0, at)

    def pieces(self, x: Tensor, cuts: Sequence[int]) -> Tensor:
        at, out = 0, []
        for cut in cuts:
            out.append(self(x[:, at : at + cut], at))
            at += cut
        return torch.cat(out, 1)


@pytest.mark.parametrize(
    "cuts", [(45,), (1,) * 45, (17, 28), (3, 5, 1, 8, 8, 8, 8, 4), (2, 43), (19, 1, 1, 1, 1, 22)]
)
def test_attention_is_transformers_in_any_pieces(cuts: tuple[int, ...]) -> None:
    x = inputs()

    torch.testing.assert_close(theirs(x), Attended().pieces(x, cuts), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("seen", [*range(1, 10), *range(BUDGET + 2, BUDGET + 10)])
def test_each_number_of_visible_tokens_sees_what_transformers_sees(seen: int) -> None:
    x = inputs(seed=seen)[:, :seen]
    attended = Attended()
    before = attended(x[:, :-1], 0) if seen > 1 else x[:, :0]
    both = torch.cat([before, attended(x[:, -1:], seen - 1)], dim=1)

    torch.testing.assert_close(theirs(x), both, atol=2e-6, rtol=1e-5)


def test_more_than_the_budget_is_not_all_seen() -> None:
    x, edited = inputs(), inputs()
    out = theirs(x)
    changed = []
    for block in range(8):
        edited = x.clone()
        edited[:, 4 * block : 4 * block + 4] += 1
        changed.append(not torch.equal(out[:, -1], theirs(edited)[:, -1]))

    assert not all(changed)


def by_hand(scores: Sequence[float], most: int, whole: int) -> list[int]:
    ranked = sorted(range(whole), key=lambda block: (-scores[block], block))
    return sorted(ranked[:most])


@pytest.mark.parametrize("whole", range(8))
@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_the_lower_of_equal_blocks_is_chosen(whole: int, most: int) -> None:
    for scores in ([0.0] * 7, [1, 0, 2, 0, 2, 0, 2], [0, 0, 3, 3, 1, 1, 1], [5, 4, 3, 2, 1, 0, 0]):
        values = torch.tensor([scores], dtype=torch.float32)
        seen = torch.arange(7)[None] < whole
        chosen = choose(values, seen, most)[0].nonzero().flatten().tolist()
        assert by_hand(scores, most, min(whole, 7)) == chosen


def test_scores_of_blocks_that_are_not_whole_do_not_count() -> None:
    scores = torch.tensor([[1.0, 2.0, float("nan"), float("inf")]])
    chosen = choose(scores, torch.tensor([[True, True, False, False]]), 1)

    assert [[False, True, False, False]] == chosen.tolist()


@pytest.mark.parametrize("kept", range(9))
@pytest.mark.parametrize("start", [20, 21, 22, 23])
def test_rejected_tokens_leave_nothing_behind(start: int, kept: int) -> None:
    """Eight rows, of which `kept` stay, then the true ones: outputs and keys as without them."""
    x, other = inputs(), inputs(seed=1)
    plain, speculated = Attended(), Attended()
    wanted = plain.pieces(x, (start, *[1] * (LENGTH - start)))
    speculated(x[:, :start], 0)
    wrong = torch.cat([x[:, start : start + kept], other[:, kept:8]], dim=1)
    speculated(wrong, start)
    at = start + kept
    rest = [speculated(x[:, p : p + 1], p) for p in range(at, LENGTH)]

    torch.testing.assert_close(wanted[:, at:], torch.cat(rest, 1), atol=2e-6, rtol=1e-5)
    blocks = LENGTH // RATIO
    for ours, theirs_ in zip(
        (speculated.cache.indexer.blocks[1, 0, :blocks], speculated.cache.indexer.ring[1, 0]),
        (plain.cache.indexer.blocks[1, 0, :blocks], plain.cache.indexer.ring[1, 0]),
        strict=True,
    ):
        torch.testing.assert_close(theirs_[:RING], ours[:RING], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rows", range(1, 30))
def test_block_keys_come_back_from_a_snapshot_in_another_slot(rows: int) -> None:
    x = inputs()
    first, second = Attended(), Attended()
    wanted = first.pieces(x, (rows, LENGTH - rows))
    second(x[:, :rows], 0)
    saved = second.cache.indexer.snapshot(1, rows)
    kv = second.cache.kv.snapshot(1, rows)
    fresh = Attended()
    fresh.cache.indexer.restore(1, rows, saved)
    fresh.cache.kv.restore(1, rows, kv)

    assert torch.equal(wanted[:, rows:], fresh(x[:, rows:], rows))


def test_a_row_before_the_first_makes_no_block() -> None:
    """A draft head's first row stands before the sequence: its successors' blocks are as without
    it, and only scratch is written for it."""
    x = inputs()
    plain, shifted = Attended(), Attended()
    wanted = plain(x[:, :9], 0)
    with_extra = torch.cat([inputs(seed=3)[:, :1], x[:, :9]], dim=1)
    positions = torch.tensor([[0, *range(9)]])
    rows = torch.tensor([[tiny.CONTEXT + 8, *range(9)]])
    at = Rows((1,), rows, positions, EXTENT, shifted.rope)
    out = shifted.attention(with_extra, shifted.cache, 0, at)

    assert torch.equal(wanted, out[:, 1:])
    assert torch.equal(plain.cache.indexer.blocks[1, 0, :2], shifted.cache.indexer.blocks[1, 0, :2])
    assert torch.equal(plain.cache.indexer.ring[1, 0, :9], shifted.cache.indexer.ring[1, 0, :9])


def test_lanes_that_are_not_live_write_scratch_only() -> None:
    attended = Attended()
    attended(inputs()[:, :22], 0)
    indexer = attended.cache.indexer
    blocks, ring = indexer.blocks.clone(), indexer.ring.clone()
    positions = torch.arange(22, 30)[None]
    rows = tiny.CONTEXT + 8 + torch.arange(8)[None]
    at = Rows((1,), rows, positions, EXTENT, attended.rope)
    attended.attention(inputs(seed=4)[:, :8], attended.cache, 0, at)

    assert torch.equal(blocks[:, :, : indexer.scratch], indexer.blocks[:, :, : indexer.scratch])
    assert torch.equal(ring[:, :, :RING], indexer.ring[:, :, :RING])
