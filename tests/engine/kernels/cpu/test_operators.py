"""The operators that recipes call: what they compute, write, keep and refuse."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from flarechat.engine.kernels.cpu import operators
from flarechat.engine.kernels.cpu.operators import AttentionBlock, MlpBlock, Product, Table
from flarechat.errors import EngineError
from tests.engine.kernels.cpu import blocks
from tests.engine.kernels.cpu.blocks import EPS, AttentionCase, MlpCase
from tests.engine.kernels.slots import drawn, require_near, window_on
from tests.engine.test_round import NoHostSync

pytestmark = pytest.mark.usefixtures("kernels")
WRITTEN = {
    "attention_block": ["keys", "values"],
    "attention_write": ["keys", "values"],
    "mlp_block": ["x"],
    "linear": [],
    "lookup": [],
}


def attention(case: AttentionCase) -> AttentionBlock:
    return AttentionBlock(
        case.norm, EPS, *case.weights, cos=case.rope.cos, sin=case.rope.sin, heads=case.heads,
        kv_heads=case.kv_heads, head_dim=case.head_dim,
    )  # fmt: skip


def mlp(case: MlpCase) -> MlpBlock:
    return MlpBlock(case.norm, EPS, *case.weights)


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0", "bf16"])
@pytest.mark.parametrize("normed", [False, True])
def test_a_product_is_that_of_the_decoded_weight(kind: str, normed: bool) -> None:
    weight, x = blocks.weight(33, 64, kind, seed=1), drawn(2, 3, 64, seed=2)
    norm = 1 + drawn(64, seed=3) / 4
    made = Product(weight, norm, EPS) if normed else Product(weight)
    read = torch.nn.functional.rms_norm(x, (64,), norm, EPS) if normed else x

    got = made(x)

    # A code may fall to its neighbour where the norm rounds to the other side.
    require_near(got, blocks.product(read, weight), most=3e-3 if normed else 2e-6)
    assert torch.equal(got, made(x.transpose(0, 1).contiguous().transpose(0, 1)))


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0", "bf16"])
def test_a_table_gives_the_decoded_rows(kind: str) -> None:
    weight = blocks.weight(33, 64, kind, seed=1)
    ids = torch.tensor([[0, 32, 5], [31, 16, 15]])

    assert torch.equal(weight.decode()[ids], Table(weight)(ids))


@pytest.mark.parametrize("kind", ["q4_1", "bf16"])
def test_an_mlp_block_adds_to_its_rows_in_place(kind: str) -> None:
    case, x = MlpCase(kind=kind), drawn(2, 3, 64, seed=4)
    before = x.clone()

    got = mlp(case)(x)

    assert got is x
    require_near(x, case.reference(before), most=3e-3)


@pytest.mark.parametrize("kind", ["q4_1", "bf16"])
def test_an_attention_block_leaves_its_rows_and_writes_those_of_the_cache(kind: str) -> None:
    case = AttentionCase(kind=kind)
    window = window_on([40, 7], 3, context=blocks.CONTEXT, slots=2)
    x = drawn(2, 3, case.hidden, seed=4)
    before, keys, values = x.clone(), case.keys.clone(), case.values.clone()

    got = attention(case)(x, window, case.keys, case.values)

    require_near(got, case.reference(window, before), most=3e-3)
    assert torch.equal(before, x)
    written = torch.zeros(case.keys.shape[:3], dtype=torch.bool)
    for slot, at in zip(window.lanes.slots, (40, 7), strict=True):
        written[slot, :, at : at + 3] = True
    for cache, old in ((case.keys, keys), (case.values, values)):
        assert torch.equal(written, (cache.view(torch.int16) != old.view(torch.int16)).any(-1))


def test_a_write_puts_the_same_keys_and_values() -> None:
    whole = AttentionCase(kind="q4_1")
    only = whole.copy()
    window = window_on([40, 7], 3, context=blocks.CONTEXT, slots=2, shift=-1)
    x = drawn(2, 3, whole.hidden, seed=4)
    attention(whole)(x, window, whole.keys, whole.values)
    attention(only).write(x, window, only.keys, only.values)

    assert torch.equal(whole.keys, only.keys) and torch.equal(whole.values, only.values)


def test_each_window_and_each_cache_is_its_own() -> None:
    case = AttentionCase(kind="q4_1")
    other = case.copy()
    other.keys[:, :, :30] = 1
    block, x = attention(case), drawn(1, 2, case.hidden, seed=4)
    # Windows that died leave their places in memory to later ones.
    for at, idle in ((20, []), (3, []), (20, [0]), (9, [])):
        for cache in (case, other):
            window = window_on([at], 2, context=blocks.CONTEXT, slots=2, idle=idle)
            fresh = cache.copy()
            expected = attention(fresh)(x, window, fresh.keys, fresh.values)
            got = block(x, window, cache.keys, cache.values)

            assert torch.equal(expected, got)
            assert torch.equal(fresh.keys, cache.keys)
            del window


def test_what_an_operator_points_into_lives_as_long_as_it() -> None:
    def made() -> list[Callable[[], Tensor]]:
        case, feed = AttentionCase(kind="q4_1"), MlpCase(kind="q4_1")
        window, norm = window_on([3], 1, context=blocks.CONTEXT, slots=2), 1 + drawn(64, seed=8) / 4
        x, caches = drawn(1, 1, 64, seed=4), (case.keys, case.values)
        block, inner = attention(case), mlp(feed)
        head = Product(blocks.weight(33, 64, "q8_0", seed=1), norm, EPS)
        table = Table(blocks.weight(33, 64, "q8_0", seed=1))
        return [
            lambda: block(x, window, *caches), lambda: inner(x.clone()), lambda: head(x),
            lambda: table(torch.tensor([5])),
        ]  # fmt: skip

    calls = made()
    before = [call() for call in calls]
    gc.collect()
    rubbish = [torch.full((size,), 0xAB, dtype=torch.uint8) for size in range(64, 1 << 14, 64)]

    assert len(rubbish)
    assert all(torch.equal(*pair) for pair in zip(before, [c() for c in calls], strict=True))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, NoHostSync])
def test_they_work_in_every_mode_of_torch(mode: Callable[[], torch.no_grad]) -> None:
    case, window = AttentionCase(), window_on([3], 1, context=blocks.CONTEXT, slots=2)
    weight, x = blocks.weight(33, 64, "q8_0", seed=1), drawn(1, 1, 64, seed=4)

    def results() -> list[Tensor]:
        y = attention(case)(x, window, case.keys, case.values)
        return [y, mlp(MlpCase())(y.clone()), Product(weight)(y), Table(weight)(torch.tensor([3]))]

    expected = results()
    with mode():
        got = results()
    assert all(torch.equal(*pair) for pair in zip(expected, got, strict=True))


def test_no_rows_are_no_work() -> None:
    weight = blocks.weight(33, 64, "q4_1", seed=1)

    assert (0, 3, 33) == Product(weight)(torch.empty(0, 3, 64)).shape
    assert (0, 64) == Table(weight)(torch.empty(0, dtype=torch.int64)).shape
    assert (0, 64) == mlp(MlpCase(kind="q4_1"))(torch.empty(0, 64)).shape


@pytest.mark.parametrize(("name", "written"), WRITTEN.items())
def test_the_schema_names_what_is_written(name: str, written: list[str]) -> None:
    schema = getattr(torch.ops.flarechat, name).default._schema
    marked = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]

    assert written == marked


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.ones(1, 64, dtype=torch.float64), "not torch.float64 on cpu"),
        (torch.ones(1, 64, device="meta"), "not torch.float32 on meta"),
        (torch.ones(64, 2).T, r"not torch.float32 on cpu with strides \(1, 2\)"),
    ],
)
def test_rows_that_c_would_misread_are_refused(x: Tensor, said: str) -> None:
    block = mlp(MlpCase())

    with pytest.raises(EngineError, match=f"take contiguous torch.float32 on the CPU, {said}"):
        block(x)


def test_sizes_that_do_not_fit_are_refused() -> None:
    weight, case = blocks.weight(33, 64, "q4_1", seed=1), AttentionCase()
    window = window_on([3], 2, context=blocks.CONTEXT, slots=2)
    block, feed = attention(case), MlpCase()
    gate, up, down = feed.weights
    turned = case.values.transpose(2, 3).contiguous().transpose(2, 3)
    shorter = SimpleNamespace(kind="q4_1", rows=49, columns=64, data=weight.data)
    shifted = torch.empty(weight.data.numel() + 8, dtype=torch.uint8)[8:]
    unaligned = SimpleNamespace(kind="q4_1", rows=33, columns=64, data=shifted)
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("rows of 32, not 64", lambda: Product(weight)(torch.ones(1, 32))),
        ("norm of", lambda: Product(weight, torch.ones(32))),
        ("bytes of a weight, not", lambda: Product(shorter)),
        ("does not begin at 32 bytes", lambda: Product(unaligned)),
        ("norm of", lambda: MlpBlock(torch.ones(32), EPS, gate, up, down)),
        ("gate, up", lambda: MlpBlock(feed.norm, EPS, gate, down, up)),
        ("rows of 32", lambda: mlp(feed)(torch.ones(1, 32))),
        ("rows", lambda: block(torch.ones(1, 3, 64), window, case.keys, case.values)),
        ("a cache of", lambda: block(torch.ones(1, 2, 64), window, case.keys.float(), case.values)),
        ("laid out", lambda: block(torch.ones(1, 2, 64), window, case.keys, case.values[:, :2])),
        ("laid out", lambda: block(torch.ones(1, 2, 64), window, case.keys, turned)),
    ]
    for said, call in wrong:
        with pytest.raises(AssertionError, match=said):
            call()


def test_without_the_library_an_operator_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "library", lambda: None)
    monkeypatch.setattr(operators, "reason", lambda: "switched off by its owner")

    with pytest.raises(EngineError, match="The CPU kernels are switched off by its owner"):
        Product(blocks.weight(33, 64, "q4_1", seed=1))
