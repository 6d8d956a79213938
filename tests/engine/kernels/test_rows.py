"""The kernel that fetches table rows by address, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flarechat.engine.kernels.rows import Addresses, gather_rows
from flarechat.engine.layers import ngram_table
from flarechat.engine.layers.ngram_table import NgramTable
from tests.engine.qwen38.test_ngram_table import CPU, FORMATS, SIZES, parts, wanted, whole
from tests.engine.test_round import NoHostSync


def drawn(width: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(width)
    return [
        torch.randint(256, (size, width), dtype=torch.uint8, generator=generator) for size in SIZES
    ]


@pytest.mark.parametrize(("width", "beside"), [(64, 0), (80, 10), (5, 7)])
def test_rows_of_all_parts_come_with_what_lies_beside(width: int, beside: int) -> None:
    codes, scales = drawn(width), drawn(beside) if beside else []
    table = Addresses.of(codes, scales, CPU)
    asked = torch.tensor([0, 4, 5, 16, 17, 18, 47, 0, 30])
    found, part = gather_rows(table, asked)
    rows = torch.cat(codes) if not beside else torch.cat([torch.cat(codes), torch.cat(scales)], 1)

    assert torch.equal(rows[asked], found)
    assert [0, 0, 1, 1, 2, 3, 3, 0, 3] == part.tolist()


@pytest.mark.parametrize("form", FORMATS)
def test_a_pinned_table_gives_the_rows_of_a_mapped_one(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self.clone())
    held = NgramTable(parts(form), dtype=torch.float32, device=CPU, pinned=True)
    ids = wanted(3, 2, 5)

    assert torch.equal(whole(form)[ids].flatten(-2), held.gather(ids))


def test_a_pinned_table_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self.clone())
    held = NgramTable(parts("nvfp4"), dtype=torch.float32, device=CPU, pinned=True)
    monkeypatch.setattr(held.host, "read", lambda rows: pytest.fail("the host looked rows up"))
    with NoHostSync():
        held.gather(wanted(3, 2, 5))
    assert ngram_table.CACHED_ROWS > 0 == held.nbytes
