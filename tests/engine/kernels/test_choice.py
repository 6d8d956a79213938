"""Which work goes to kernels, and what the kernels' words share with the engine's."""

from __future__ import annotations

import pytest
import torch

from flarechat.engine import kernels
from flarechat.engine.accept import RUNNING
from flarechat.engine.kernels import launch
from flarechat.engine.layers.linear import DenseLinear, PackedHalfLinear, PendingLinear, dense
from tests.engine.kernels.slots import window_on


def test_the_cpu_uses_kernels_only_where_it_is_asked_to() -> None:
    x = torch.zeros(2, 3)

    assert not kernels.fused(x)
    with kernels.interpreted():
        assert kernels.fused(x)
        with kernels.interpreted():
            pass
        assert kernels.fused(x)
    assert not kernels.fused(x)


def test_without_triton_nothing_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "available", lambda: False)
    with kernels.interpreted():
        assert not kernels.fused(torch.zeros(1))


def test_few_rows_are_at_most_those_of_the_widest_rounds() -> None:
    with kernels.interpreted():
        assert kernels.few(torch.zeros(16, 8, 5))
        assert not kernels.few(torch.zeros(1, 129, 5))
    assert not kernels.few(torch.zeros(1, 1, 5))


def test_kernels_know_running_lanes_by_the_engines_number() -> None:
    assert launch._RUNNING.value == RUNNING


def test_launches_on_the_cpu_do_not_overlap() -> None:
    with launch.overlapping(launch.AHEAD):
        assert {"PDL": launch.ALONE} == launch.options(torch.zeros(1))
    assert launch.overlap == launch.BEHIND


def test_places_are_those_of_the_window() -> None:
    window = window_on((3, 4), 2, context=9, shift=-1, prefilling=True)
    told = launch.places(window)

    assert (2, -1, 17, True) == tuple(told[n] for n in ("width", "shift", "spare", "PREFILLING"))
    assert told["consumed"].data_ptr() == window.lanes.pool.consumed.data_ptr()


def test_a_products_weight_is_found_wherever_torch_holds_it() -> None:
    from concurrent.futures import Future

    making: Future[DenseLinear] = Future()
    own = DenseLinear(torch.ones(2, 3))
    making.set_result(own)

    assert own.weight is dense(own) is dense(PendingLinear(making))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="such weights are for the CPU"):
        dense(PackedHalfLinear.__new__(PackedHalfLinear))
