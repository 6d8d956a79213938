"""The n-gram table: its rows, whatever they are stored as, and what stays on the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from flarechat.engine.layers import ngram_table
from flarechat.engine.layers.ngram_table import NgramTable, pins
from flarechat.engine.weights.formats import Packed, encode_fp8, encode_nvfp4
from tests.engine.test_round import NoHostSync

CPU = torch.device("cpu")
SIZES = (5, 12, 1, 30)
WIDTH, HEADS = 32, 4
FORMATS = ("bf16", "fp8", "nvfp4")


def parts(form: str) -> list[Tensor | Packed]:
    """Parts of unequal sizes, each with a scale of its own."""
    generator = torch.Generator().manual_seed(5)
    drawn = [
        torch.randn(size, WIDTH, generator=generator) * (n + 1) for n, size in enumerate(SIZES)
    ]
    if form == "bf16":
        return [part.bfloat16() for part in drawn]
    return [encode_fp8(part) if form == "fp8" else encode_nvfp4(part) for part in drawn]


def table(form: str, cached_rows: int | None = None) -> NgramTable:
    return NgramTable(parts(form), dtype=torch.float32, device=CPU, cached_rows=cached_rows)


def whole(form: str) -> Tensor:
    """All rows as one tensor."""
    return torch.cat(
        [part.decode() if isinstance(part, Packed) else part.float() for part in parts(form)]
    )


def wanted(seed: int, *shape: int) -> Tensor:
    return torch.randint(sum(SIZES), (*shape, HEADS), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("cached_rows", [None, 3, 20, 100])
def test_rows_are_those_of_the_whole_table_side_by_side(form: str, cached_rows: int | None) -> None:
    held, rows = table(form, cached_rows), whole(form)

    assert (sum(SIZES), WIDTH) == (held.rows, held.width)
    for seed in range(25):
        ids = wanted(seed, 2, 3)
        assert torch.equal(rows[ids].flatten(-2), held.gather(ids))
    ends = torch.tensor([[0, 4, 5, 16], [17, 18, 47, 0]])
    assert torch.equal(rows[ends].flatten(-2), held.gather(ends))


@pytest.mark.parametrize("form", FORMATS)
def test_values_come_in_the_dtype_that_is_computed_with(form: str) -> None:
    held = NgramTable(parts(form), dtype=torch.bfloat16, device=CPU)
    ids = wanted(1, 2, 3)

    assert torch.equal(whole(form)[ids].flatten(-2).bfloat16(), held.gather(ids))


@pytest.mark.parametrize("form", FORMATS)
def test_rows_fetched_ahead_outlive_those_fetched_after(form: str) -> None:
    held, rows = table(form, cached_rows=24), whole(form)
    first, second = wanted(1, 1, 4), wanted(2, 1, 4)
    early, late = held.ahead(first), held.ahead(second)

    assert torch.equal(rows[second].flatten(-2), late.wait())
    assert torch.equal(rows[first].flatten(-2), early.wait())


def test_rows_in_the_cache_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    held, read = table("fp8", cached_rows=12), []
    fetch = held.host.read

    def watched(rows: np.ndarray) -> Tensor:
        read.append(rows.tolist())
        return fetch(rows)

    monkeypatch.setattr(held.host, "read", watched)
    for ids in ([1, 2, 3, 3], [2, 1, 40, 3], [7, 8, 9, 10], [11, 12, 13, 14], [1, 40, 20, 7]):
        held.gather(torch.tensor([ids]))
    assert [[1, 2, 3], [40], [7, 8, 9, 10], [11, 12, 13, 14], [20]] == [r for r in read if r]

    read.clear()
    held.gather(torch.tensor([[3, 3, 1, 40]]))
    held.gather(torch.tensor([[2, 3, 1, 40]]))  # which made room for row 20
    assert [[2]] == [r for r in read if r]


@pytest.mark.parametrize("broken", ["read", "filled"])
@pytest.mark.parametrize("waited", [True, False])
def test_a_look_up_that_fails_spoils_none_after_it(
    waited: bool, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, rows, ids = table("fp8", cached_rows=12), whole("fp8"), torch.tensor([[1, 2, 3, 40]])

    def fail(*_: object) -> Tensor:
        raise OSError("no more room")

    monkeypatch.setattr(held.host if broken == "read" else held.cache, broken, fail)
    begun = held.ahead(ids)
    with pytest.raises(OSError, match="no more room"):
        begun.wait() if waited else held.ahead(ids)
    monkeypatch.undo()

    for again in (ids, ids + 1, ids):
        assert torch.equal(rows[again].flatten(-2), held.gather(again))


def test_a_table_in_files_stays_in_them(tmp_path: Path) -> None:
    rows, width = 60_000, 320
    save_file({"part": torch.ones(rows, width, dtype=torch.uint8)}, tmp_path / "table")
    with safe_open(tmp_path / "table", framework="pt") as file:
        part = file.get_tensor("part").view(torch.bfloat16)
        before = resident()
        held = NgramTable([part], dtype=torch.float32, device=CPU)
        held.gather(torch.tensor([[0, 59_999]]))

        assert resident() - before < rows * width / 4
        assert 0 == held.nbytes


def resident() -> int:
    """Bytes of memory this process has in use, those of mapped files among them."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_the_cache_takes_its_rows_as_stored() -> None:
    assert [10 * 64, 10 * 32, 10 * 18] == [table(form, 10).nbytes for form in FORMATS]


@pytest.mark.parametrize(("free", "pinned"), [(199, False), (200, True)])
def test_a_gpus_table_is_pinned_where_the_host_has_twice_the_room(
    free: int, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngram_table, "host_available", lambda: free)

    assert pinned is pins(100, torch.device("cuda")) and not pins(100, CPU)
    monkeypatch.setattr(ngram_table.kernels, "available", lambda: False)
    assert not pins(100, torch.device("cuda"))


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_on_the_page_waits_for_a_value(form: str) -> None:
    held = table(form)
    with NoHostSync():
        held.gather(wanted(1, 2, 3))
