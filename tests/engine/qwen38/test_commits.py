"""After a pass of several rows, of which some stay: all states as if the others had never been.

Three ways of committing agree with one another to the bit, and with stepping row by row but for the
rounding of wide products. Everything is compared tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from flarechat.engine.accept import RUNNING, STOPPED
from flarechat.engine.plan import LawShape, Plan
from flarechat.engine.slot import SCRATCH_ROWS, Lanes
from flarechat.engine.state.indexer import RING
from flarechat.engine.state.recurrent import COMMITS
from tests.engine.qwen38 import tiny
from tests.engine.qwen38.runner import EXTENT, ROUNDING, TEXT, WRONG, Runner, judged, model
from tests.engine.tiny import ScriptedDrafter


def require_close(wanted: Mapping[str, Tensor], got: Mapping[str, Tensor]) -> None:
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            tensor, got[name], atol=ROUNDING, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def require_equal(wanted: Mapping[str, Tensor], got: Mapping[str, Tensor]) -> None:
    for name, tensor in wanted.items():
        assert torch.equal(tensor, got[name]), name


@pytest.mark.parametrize("width", [2, 5, 8])
@pytest.mark.parametrize("start", [0, 1, 2, 20, 21, 22, 23])
def test_every_number_of_kept_rows_leaves_the_state_of_those_rows(start: int, width: int) -> None:
    for kept in range(1, width + 1):
        plain = Runner("stepped").prefill(start)
        plain.one_by_one(start, start + kept)
        wanted, following = plain.states(), TEXT[start + kept : start + kept + width]
        logits = plain.step(following, width)
        made: list[dict[str, Tensor]] = []
        for commit in COMMITS:
            own = Runner(commit).prefill(start)
            own.step(judged(start, width, kept), kept)
            made.append(own.states())
            require_close(wanted, made[-1])
            assert (logits - own.step(following, width)).abs().max() < ROUNDING
        require_equal(made[0], made[1])
        require_equal(made[0], made[2])


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("narrow", range(1, 8))
def test_eight_kept_and_then_fewer_rows(commit: str, narrow: int) -> None:
    plain = Runner("stepped").prefill(17)
    plain.one_by_one(17, 17 + 8 + narrow + 1)
    own = Runner(commit).prefill(17)
    own.step(TEXT[17:25], 8)
    own.step(judged(25, narrow, narrow), narrow)
    own.step(judged(25 + narrow, 2, 1), 1)

    require_close(plain.states(), own.states())


@pytest.mark.parametrize("commit", COMMITS)
def test_any_schedule_of_widths_and_kept_rows(commit: str) -> None:
    own, plain, at = Runner(commit).prefill(3), Runner("stepped").prefill(3), 3
    for width, kept in ((8, 1), (1, 1), (5, 5), (8, 8), (1, 1), (2, 1), (7, 3), (3, 2), (8, 4)):
        logits = own.step(judged(at, width, kept), kept)
        for row in range(kept):
            assert (plain.step([TEXT[at + row]], 1)[0] - logits[row]).abs().max() < ROUNDING
        at += kept
        require_close(plain.states(), own.states())


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("width", [1, 2, 8])
@torch.inference_mode()
def test_lanes_that_keep_nothing_are_untouched_to_the_bit(commit: str, width: int) -> None:
    """A finished and an idle lane beside a running one, whatever their slots hold."""
    own = Runner(commit, slot=2).prefill(21)
    for slot in (0, 1):
        other = Runner(commit, slot=slot).prefill(10 + slot)
        own.pool.consumed[slot] = other.pool.consumed[slot]
    own.open(0, consumed=10)
    own.pool.finish[0] = STOPPED
    before = {n: t[:2].clone() for s in own.model.states() for n, t in s.tensors().items()}
    lanes = Lanes(own.pool, (1, 2, 0))
    rows = judged(21, width, width)
    own.model.verify(lanes, torch.tensor([rows] * 3), Plan(width - 1, EXTENT))
    own.model.keep(lanes, torch.tensor([0, min(2, width), 0]))

    caches = own.model.caches
    after = {n: t[:2] for s in own.model.states() for n, t in s.tensors().items()}
    scratch, indexer = tiny.CONTEXT + SCRATCH_ROWS, caches.sparse.indexer
    for name, tensor in before.items():
        ends = {"ring": RING, "blocks": indexer.scratch}
        end = scratch if name.startswith(("keys", "values")) else ends.get(name)
        cut = (slice(None), slice(None), slice(end))
        assert torch.equal(tensor[cut], after[name][cut]), name


@pytest.mark.parametrize("commit", COMMITS)
@torch.inference_mode()
def test_lanes_keep_each_their_own_number_of_rows(commit: str) -> None:
    own, starts, kept = Runner(commit), {0: 8, 2: 19, 1: 30}, {0: 3, 2: 8, 1: 1}
    for slot, start in starts.items():
        own.slot = slot
        own.prefill(start)
    lanes = Lanes(own.pool, tuple(starts))
    rows = [judged(start, 8, kept[slot]) for slot, start in starts.items()]
    own.model.verify(lanes, torch.tensor(rows), Plan(7, EXTENT))
    own.model.keep(lanes, torch.tensor(list(kept.values())))
    own.pool.consumed.index_add_(0, lanes.index, torch.tensor(list(kept.values())))

    for slot, start in starts.items():
        own.slot = slot
        found = own.states()
        plain = Runner("stepped", slot).prefill(start)
        plain.one_by_one(start, start + kept[slot])
        require_close(plain.states(), found)


def test_more_rows_than_are_held_are_run_again_and_counted() -> None:
    own, plain = Runner("stepped").prefill(20), Runner("columns").prefill(20)
    own.model.repairs, own.model.repair_ms = 0, 0.0
    own.step(judged(20, 12, 9), 9)
    plain.one_by_one(20, 29)

    require_close(plain.states(), own.states())
    assert 1 == own.model.repairs
    assert own.model.repair_ms > 0
    own.step(judged(29, 8, 3), 3)
    assert 1 == own.model.repairs


def test_running_again_is_counted_round_by_round() -> None:
    own = Runner("reforward").prefill(20)
    before = own.model.repairs
    own.step([TEXT[20]], 1)
    own.step(judged(21, 4, 2), 2)

    assert before + 1 == own.model.repairs


@pytest.mark.parametrize("commit", COMMITS)
def test_a_round_tells_the_time_of_running_again(commit: str) -> None:
    bench = tiny.bench(tiny.reference(), commit=commit)
    bench.executor.drafter = ScriptedDrafter(bench.pool, {}, lambda *_: 0)
    bench.open(0, tiny.PROMPT)
    frames = [
        bench.executor.play(Lanes(bench.pool, (0,)), Plan(drafts, EXTENT, LawShape(1), "match"))
        for drafts in (0, 3, 0)
    ]

    assert [0, commit == "reforward", 0] == [frame.repair_ms > 0 for frame in frames]


@pytest.mark.parametrize("rows", [1, 2, 3, 9, 20, 21, 22, 23, 30])
@pytest.mark.parametrize("commit", COMMITS)
def test_a_snapshot_restored_into_another_slot_goes_on_to_the_bit(commit: str, rows: int) -> None:
    own = Runner(commit).prefill(rows)
    saved = [state.snapshot(1, rows) for state in own.model.states()]
    wanted = own.step(TEXT[rows : rows + 8], 5)
    after = own.states()
    Runner(commit, slot=0).prefill(13).step(WRONG[:8], 8)
    for state, copies in zip(own.model.states(), saved, strict=True):
        state.restore(0, rows, copies)
    other = Runner(commit, slot=0)
    other.open(0, consumed=rows)

    assert torch.equal(wanted, other.step(TEXT[rows : rows + 8], 5))
    require_equal(after, other.states())


def test_a_snapshot_is_a_copy_of_its_own() -> None:
    own = Runner().prefill(22)
    saved = [state.snapshot(1, 22) for state in own.model.states()]
    copies = [{name: tensor.clone() for name, tensor in each.items()} for each in saved]
    own.step(judged(22, 8, 8), 8)
    own.step(judged(30, 8, 8), 8)

    for kept, now in zip(copies, saved, strict=True):
        require_equal(kept, now)


def test_only_all_of_a_recurrence_can_be_kept_of_what_is_held() -> None:
    recurrent, ngram, kv, indexer = model("records").states()

    assert [(22, 0)] * 2 == [(s.reusable(22, 22), s.reusable(22, 21)) for s in (recurrent, ngram)]
    assert (22, 21) == (kv.reusable(22, 22), kv.reusable(22, 21))
    assert [22, 20, 20, 16] == [indexer.reusable(22, rows) for rows in (22, 21, 20, 19)]


def test_tensors_stay_where_they_are() -> None:
    own = Runner().prefill(5)
    places = [t.data_ptr() for s in own.model.states() for t in s.tensors().values()]
    own.step(judged(5, 8, 3), 3)
    own.step([TEXT[8]], 1)

    assert places == [t.data_ptr() for s in own.model.states() for t in s.tensors().values()]
    assert int(own.pool.finish[1]) == RUNNING
