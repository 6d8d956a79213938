"""The kernel of packed experts against plain torch, in Triton's interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.kernels import experts as kernels
from flarechat.engine.kernels.experts import BLOCK, group, packed_experts
from flarechat.engine.weights.formats import Packed, encode_fp8_blocks, encode_nvfp4
from tests.engine.test_round import NoHostSync

Encode = Callable[[Tensor], Packed]
ENCODERS: list[Encode] = [encode_nvfp4, encode_fp8_blocks]
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 3e-2}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def packed(encode: Encode, experts: int, inner: int, wide: int) -> tuple[Packed, Packed]:
    """Every matrix has its own size, so that scales of another one are seen."""
    sizes = torch.arange(1, 1 + 3 * experts).reshape(experts, 3) / experts
    gate_up = drawn(experts, 2, inner, wide, seed=1) * sizes[:, :2, None, None] / wide**0.5
    return encode(gate_up), encode(drawn(experts, wide, inner, seed=2) * sizes[:, 2:, None])


def routed(rows: int, experts: int, chosen: int, wide: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, their experts and shares; the first and the last expert get none."""
    order = torch.rand(rows, experts - 2, generator=torch.Generator().manual_seed(rows)).argsort(1)
    return drawn(rows, wide, seed=rows), 1 + order[:, :chosen], drawn(rows, chosen, seed=3).abs()


def reference(x: Tensor, ids: Tensor, share: Tensor, gate_up: Packed, down: Packed) -> Tensor:
    """Plain float64, every pair's product with its expert's values; inputs keep their rounding."""
    wide, narrow = gate_up.decode().double()[ids], down.decode().double()[ids]
    gate, up = torch.einsum("nkhid,nd->hnki", wide, x.double())
    inside = (F.silu(gate) * up).to(x.dtype).double()
    out = torch.einsum("nkdi,nki->nkd", narrow, inside) * share.double()[..., None]
    return out.sum(1)


def require_near(theirs: Tensor, own: Tensor) -> None:
    most = TOLERANCE[own.dtype] * float(theirs.abs().max())
    torch.testing.assert_close(theirs.double(), own.double(), atol=most, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize(
    ("rows", "inner", "wide"),
    [(1, 32, 64), (3, 48, 80), (5, 144, 160), (16, 64, 128), (17, 32, 64), (64, 80, 48)],
)
def test_the_kernel_multiplies_as_the_values_do(
    encode: Encode, dtype: torch.dtype, rows: int, inner: int, wide: int
) -> None:
    held, (x, ids, share) = packed(encode, 7, inner, wide), routed(rows, 7, 3, wide)
    x, share = x.to(dtype), share.to(dtype)
    own = packed_experts(x, ids, share, *held)
    theirs = reference(x, ids, share, *held)

    assert (dtype, theirs.shape) == (own.dtype, own.shape)
    require_near(theirs, own)


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize("rows", [2, 33])
def test_all_rows_may_take_one_expert(encode: Encode, rows: int) -> None:
    held, (x, ids, share) = packed(encode, 5, 32, 64), routed(rows, 5, 1, 64)
    ids = torch.full_like(ids, 4)

    require_near(reference(x, ids, share, *held), packed_experts(x, ids, share, *held))


@pytest.mark.parametrize("encode", ENCODERS)
def test_a_row_may_travel_with_any_others(encode: Encode) -> None:
    """To rounding: the interpreter's own products sum in an order that depends on a row's place."""
    held, (x, ids, share) = packed(encode, 6, 32, 64), routed(40, 6, 2, 64)
    whole = packed_experts(x, ids, share, *held)

    for first, last in ((0, 1), (3, 8), (20, 40)):
        part = slice(first, last)
        require_near(whole[part], packed_experts(x[part], ids[part], share[part], *held))


@pytest.mark.parametrize("encode", ENCODERS)
def test_nothing_is_read_back(encode: Encode, monkeypatch: pytest.MonkeyPatch) -> None:
    held, routing = packed(encode, 6, 32, 64), routed(8, 6, 2, 64)

    class Silent:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *args, **kwargs: None

    for name in ("_gate_up", "_down"):
        monkeypatch.setattr(kernels, name, Silent())
    with NoHostSync():
        packed_experts(*routing, *held)


@pytest.mark.parametrize("pairs", [1, 2, 15, 16, 17, 64, 640])
@pytest.mark.parametrize("experts", [1, 3, 512])
def test_every_pair_is_in_one_block_of_its_expert(pairs: int, experts: int) -> None:
    ids = torch.randint(experts, (pairs,), generator=torch.Generator().manual_seed(pairs))
    order, block_expert, first, rows = group(ids, experts)
    seen = []
    for expert, start, count in zip(block_expert.tolist(), first.tolist(), rows.tolist(),
                                    strict=True):  # fmt: skip
        if expert < experts:
            own = order[start : start + count]
            assert 0 < count <= BLOCK
            assert (expert == ids[own]).all()
            seen += own.tolist()

    assert list(range(pairs)) == sorted(seen)


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu_too() -> None:
    """At the real model's sizes; no GPU is needed for that."""
    script = __file__.replace("test_experts.py", "compile_all.py")
    done = subprocess.run(
        [sys.executable, script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
    assert 2 * 2 + 1 == len(done.stdout.splitlines())
