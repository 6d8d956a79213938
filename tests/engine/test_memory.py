"""Prices against memory: what fits starts, what does not is refused with what would fit."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from flarechat.engine.allocated import storage
from flarechat.engine.drafters.copies import CopyDrafter
from flarechat.engine.executors.catalogue import WHOLE, Captured, Catalogue
from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.executors.scratch import CAPTURE, SLACK, Sizes, alive_at_most, scratch
from flarechat.engine.kernels import in_torch
from flarechat.engine.memory import HEADROOM, Terms, admit, host_available
from flarechat.engine.plan import Plan
from flarechat.engine.round import play_round
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.engine.staging import Staging
from flarechat.engine.state.hidden import HiddenState
from flarechat.engine.state.kv import KVState
from flarechat.errors import ModelError
from flarechat.protocol import Ready, Sampling
from tests.engine import tiny
from tests.engine.conftest import Desk
from tests.engine.learned import write_head

MIB = 2**20
ASKED = Terms(capacity=128, mtp=True, context=8192, lanes=4)


def quote(weights: int = 50 * MIB, per_token: int = 1000, round_row: int = 0, head: int = 0):  # type: ignore[no-untyped-def]
    """Prices that grow with every term."""

    def prices(terms: Terms) -> dict[str, int]:
        made = {"weights": weights, "caches": per_token * terms.context * terms.lanes}
        made |= {"rounds": round_row * terms.capacity} if round_row else {}
        return made | ({"mtp weights": head} if head and terms.mtp else {})

    return prices


def refusal(prices: Callable[[Terms], dict[str, int]], free: int, asked: Terms) -> ModelError:
    """What is said where `free` bytes may be taken."""
    with pytest.raises(ModelError) as caught:
        admit(prices, asked, int(free / HEADROOM) + 2)
    return caught.value


def test_what_fits_with_a_reserve_is_admitted() -> None:
    admit(quote(50 * MIB, 40 * MIB // (8192 * 4)), ASKED, 100 * MIB)


def test_what_would_use_the_reserve_is_refused() -> None:
    told = refusal(quote(51 * MIB, 40 * MIB // (8192 * 4)), 90 * MIB, ASKED)

    assert 3 == told.exit_code
    assert "--ctx 8192 needs 91 MiB (weights 51 MiB, caches 40 MiB); 90 MiB" in told.message


# Each needs 20 MiB of rounds, 30 of a head and 8 KiB a token of four lanes: 50 + 20 + 30 + 64.
FULL = quote(50 * MIB, 2048, 20 * MIB // 128, 30 * MIB)


@pytest.mark.parametrize(
    ("free", "hint"),
    [
        (155, "--speculative-token-capacity 64 would fit with 4 lane(s)."),
        (146, "--speculative-token-capacity 8 would fit with 4 lane(s)."),
        (140, "--no-mtp would fit with 4 lane(s)."),
        (130, "--ctx 3840 would fit with 4 lane(s)."),
        (103, "--ctx 256 would fit with 4 lane(s)."),
        (101, "--speculative-token-capacity 4 --no-mtp --ctx 6400 would fit with 4 lane(s)."),
        (51.5, "--speculative-token-capacity 2 --no-mtp --ctx 256 --concurrency 2 would fit."),
        (50.8, "--speculative-token-capacity 1 --no-mtp --ctx 256 --concurrency 1 would fit."),
        (50.2, "Close other programs or choose a smaller model with --model."),
    ],
)
def test_what_would_fit_is_told_in_the_order_of_what_it_costs(free: float, hint: str) -> None:
    assert hint == refusal(FULL, int(free * MIB), ASKED).hint


def test_what_is_told_to_fit_fits_and_a_step_more_does_not() -> None:
    prices, free = quote(50 * MIB, 500), 60 * MIB
    told = refusal(prices, free, ASKED)
    context = int(told.hint.split()[1])

    assert f"--ctx {context} would fit with 4 lane(s)." == told.hint
    assert 5120 == context
    admit(prices, replace(ASKED, context=context), int(free / HEADROOM) + 2)
    with pytest.raises(ModelError):
        admit(prices, replace(ASKED, context=context + 256), int(free / HEADROOM) + 2)


def test_fewer_lanes_are_told_where_the_context_is_short_already() -> None:
    asked = replace(ASKED, context=256, mtp=False, capacity=4)
    told = refusal(quote(50 * MIB, 16 * 1024), 60 * MIB, asked)

    assert "--concurrency 2 would fit." == told.hint


def test_slots_and_staging_have_the_price_that_they_take() -> None:
    for slots, vocabulary in ((1, 300), (4, 1000)):
        pool = SlotPool(slots, 64, vocabulary, torch.device("cpu"))
        assert pool.nbytes == SlotPool.price(slots, vocabulary)
        staging = Staging(slots, torch.device("cpu"))
        assert staging._block.device.nbytes == Staging.price(slots)


@pytest.mark.parametrize("dtype", ["float32", tiny.STORED_TILES])
@pytest.mark.parametrize(("lanes", "mtp"), [(1, True), (4, True), (2, False)])
def test_all_that_is_held_was_priced_to_the_byte(
    tiny_gguf: Path, tmp_path: Path, lanes: int, mtp: bool, dtype: str
) -> None:
    head = write_head(tmp_path, tiny_gguf, tmp_path)
    made = Desk(
        tiny_gguf, tmp_path, dtype=dtype, lanes=lanes, mtp=mtp, mtp_file=str(head), context=96
    )
    made.ask("hello", max_tokens=2)  # by then all weights are there
    ready = next(e for e in made.events if isinstance(e, Ready))
    engine = made.engine
    executor = engine.executor
    assert isinstance(executor, EagerExecutor) and ready.model.memory is not None
    learned = getattr(engine.drafter, "learned", None)
    head_parts = (learned.head, learned.states()) if learned else ()
    parts = (executor.target, head_parts, engine.pool, executor.staging)
    engine.pool._indexes.clear()

    assert mtp == (learned is not None)
    assert sum(ready.model.memory.priced.values()) == storage(parts, set())


def catalogue(slots: int = 1, capacity: int = 128, *, learned: bool = True) -> Catalogue:
    return Catalogue(
        slots=slots, capacity=capacity, context=8192, extent=8208, learned=learned
    )  # fmt: skip


SIZES = Sizes(
    vocabulary=49152, hidden=576, inner=1536, heads=9, kv_heads=3, head_dim=64, itemsize=2,
    taps=8, drafts=49152,
)  # fmt: skip


def test_captured_rounds_are_bounded_by_the_widest_of_them() -> None:
    one = scratch(catalogue(), SIZES)
    law = 8 * 49152 * (64 + 2) + 49152 * (64 + 7 * 24)
    features = 8 * 2 * (22 * 576 + 4 * 1536 + 3 * 15 * 64)
    partial = 4 * 3 * 1 * 128 * 128 * 66

    assert 78 == len(catalogue().all())
    assert law + features + partial + 78 * CAPTURE + SLACK == one
    assert one < scratch(catalogue(2), SIZES) < scratch(catalogue(4), SIZES)
    assert scratch(catalogue(4, 4), SIZES) < scratch(catalogue(4, 8), SIZES)
    assert scratch(catalogue(learned=False), SIZES) < one


@pytest.mark.parametrize(("learned", "kv_heads"), [(False, 8), (True, 8), (True, 1)])
def test_a_slot_on_its_way_to_another_is_within_the_bound(learned: bool, kv_heads: int) -> None:
    context = 1 << 17
    long = Catalogue(slots=2, capacity=2, context=context, extent=context + 8, learned=learned)
    sizes = replace(
        SIZES, kv_heads=kv_heads, head_dim=128, hidden=1024, drafts=1024 if learned else 0
    )
    one = KVState(1, 1, 24, kv_heads, 128, torch.bfloat16, tiny.CPU)
    tail = HiddenState(1, 24, 1024, torch.bfloat16, tiny.CPU)
    most = max(t.nbytes for t in (*one.tensors().values(), tail.rows if learned else one.keys[0]))
    passing = most * (context + 16) // (24 + 16)

    assert passing + len(long.all()) * CAPTURE + SLACK <= scratch(long, sizes)
    assert scratch(replace(long, slots=1), sizes) < passing


class Alive(TorchDispatchMode):
    """Counts the bytes of tensors that were made under it and live, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tensors_of((args, kwargs))}
        for tensor in tensors_of(out):
            storage_ = tensor.untyped_storage()
            key = storage_._cdata
            if key not in given and key not in self.sizes:
                self.sizes[key] = storage_.nbytes()
                self.now += storage_.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage_, self.gone, key)
        return out

    def gone(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


def tensors_of(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("drafting", ["none", "copies"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_a_round_takes_no_more_than_its_bound_and_a_wide_one_a_fair_part(
    lanes: int, drafting: str
) -> None:
    vocabulary = 4096
    made = tiny.bench(tiny.reference(vocabulary=vocabulary))
    for slot in range(lanes):
        made.open(slot, sampling=Sampling(top_p=0.9), match=slot % 2 == 0)
    depth = 0 if drafting == "none" else 7
    plan = Plan(depth, tiny.CONTEXT + 8, WHOLE, "mixed", 0, drafting, False)
    drafter = CopyDrafter(4, tiny.CPU) if depth else made.executor.drafter
    # The bound is of rounds in torch; those of the C kernels take less.
    with torch.inference_mode(), in_torch(), Alive() as alive:
        play_round(made.target, drafter, Lanes(made.pool, range(lanes)), plan)
    sizes = Sizes(
        vocabulary=vocabulary, hidden=32, inner=48, heads=4, kv_heads=2, head_dim=8, itemsize=4
    )
    bound = alive_at_most(Captured(lanes, plan), sizes)

    assert alive.most <= bound
    assert not depth or bound / 4 < alive.most


def test_this_machine_has_memory_to_give() -> None:
    assert host_available() > 16 * MIB
