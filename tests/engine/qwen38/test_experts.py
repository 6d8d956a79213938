"""Packed experts in plain torch: their product, however many rows there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.engine.layers import experts as module
from flarechat.engine.layers.experts import (
    DenseExperts,
    Fp8Experts,
    Nvfp4Experts,
    PackedExperts,
    hold_experts,
)
from flarechat.engine.weights.formats import Packed, encode_fp8_blocks, encode_nvfp4
from flarechat.protocol import MAX_DRAFT_TOKENS, MAX_LANES
from tests.engine.test_round import NoHostSync

EXPERTS, CHOSEN = 6, 2
FORMATS = [(encode_nvfp4, Nvfp4Experts), (encode_fp8_blocks, Fp8Experts)]
Encode = Callable[[Tensor], Packed]


def packed(encode: Encode, inner: int = 48, wide: int = 64) -> tuple[Packed, Packed]:
    generator = torch.Generator().manual_seed(inner + wide)
    gate_up = torch.randn(EXPERTS, 2, inner, wide, generator=generator) / wide**0.5
    down = torch.randn(EXPERTS, wide, inner, generator=generator) / inner**0.5
    return encode(gate_up), encode(down)


def routed(rows: int, wide: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, their experts (the last expert has none) and shares."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, wide, generator=generator)
    order = torch.rand(rows, EXPERTS - 1, generator=generator).argsort(1)
    return x, order[:, :CHOSEN], torch.rand(rows, CHOSEN, generator=generator)


def one_by_one(gate_up: Packed, down: Packed, x: Tensor, ids: Tensor, share: Tensor) -> Tensor:
    """The definition, a row and an expert at a time."""
    wide, narrow = gate_up.decode(), down.decode()
    out = torch.zeros_like(x)
    for row in range(len(x)):
        for place, expert in enumerate(ids[row].tolist()):
            gate, up = wide[expert] @ x[row]
            out[row] += share[row, place] * (narrow[expert] @ (F.silu(gate) * up))
    return out


@pytest.mark.parametrize(("encode", "kind"), FORMATS)
@pytest.mark.parametrize("rows", [1, 2, 7, 32, 33, 64])
def test_packed_experts_multiply_as_their_values_do(
    encode: Encode, kind: type[PackedExperts], rows: int
) -> None:
    gate_up, down = packed(encode)
    routing = routed(rows)
    own = kind(gate_up, down)(*routing)

    torch.testing.assert_close(one_by_one(gate_up, down, *routing), own, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("encode", "kind"), FORMATS)
@pytest.mark.parametrize("rows", [3, 60])
def test_they_compute_in_the_type_of_their_input(
    encode: Encode, kind: type[PackedExperts], rows: int
) -> None:
    gate_up, down = packed(encode)
    x, ids, share = routed(rows)
    dense = DenseExperts(gate_up.decode().bfloat16().flatten(1, 2), down.decode().bfloat16())

    own = kind(gate_up, down)(x.bfloat16(), ids, share.bfloat16())
    assert torch.bfloat16 == own.dtype
    assert torch.equal(dense(x.bfloat16(), ids, share.bfloat16()), own)


def test_few_experts_are_decoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    held, routing = Nvfp4Experts(*packed(encode_nvfp4)), routed(20)
    whole, seen = held(*routing), []
    decoded = PackedExperts._decoded

    def watched(self: PackedExperts, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        seen.append(ids.numel())
        return decoded(self, ids, dtype)

    monkeypatch.setattr(PackedExperts, "_decoded", watched)
    monkeypatch.setattr(module, "_GATHERED_BYTES", 7 * 4 * 3 * 48 * 64)

    torch.testing.assert_close(whole, Nvfp4Experts(held.gate_up, held.down)(*routing))
    assert [3 * CHOSEN] * 6 + [2 * CHOSEN] == seen


@pytest.mark.parametrize("encode", [encode_nvfp4, encode_fp8_blocks, None])
def test_nothing_is_read_back_for_the_rows_of_the_widest_round(encode: Encode | None) -> None:
    packs: Encode = encode or encode_nvfp4
    gate_up, down = packed(packs)
    held = hold_experts(gate_up, down)
    if encode is None:
        held = hold_experts(gate_up.decode().flatten(1, 2), down.decode())
    x = routed(MAX_LANES * (MAX_DRAFT_TOKENS + 1))[0]
    ids = torch.randint(EXPERTS, (len(x), 10), generator=torch.Generator().manual_seed(1))
    share = torch.rand(len(x), 10, generator=torch.Generator().manual_seed(2))
    with NoHostSync():
        own = held(x, ids, share)
    torch.testing.assert_close(one_by_one(gate_up, down, x, ids, share), own, atol=1e-5, rtol=1e-5)


def test_a_format_goes_with_its_class() -> None:
    fp8, nvfp4 = packed(encode_fp8_blocks), packed(encode_nvfp4)

    assert (Fp8Experts, Nvfp4Experts) == (type(hold_experts(*fp8)), type(hold_experts(*nvfp4)))
    with pytest.raises(ValueError, match="cannot hold nvfp4"):
        Fp8Experts(*nvfp4)
    with pytest.raises(ValueError, match="cannot hold fp8_blocks"):
        hold_experts(nvfp4[0], fp8[1])
