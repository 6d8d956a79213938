"""Prices against memory: what fits starts, what does not is refused with what would fit."""

from __future__ import annotations

import pytest

from flarechat.engine.memory import admit, host_available
from flarechat.errors import ModelError

MIB = 2**20


def refusal(weights: int, per_token: int, available: int, context: int = 8192) -> ModelError:
    prices = {"weights": weights, "caches": per_token * context}
    with pytest.raises(ModelError) as caught:
        admit(prices, available, context=context, lanes=4, per_token=per_token)
    return caught.value


def test_what_fits_with_a_reserve_is_admitted() -> None:
    prices = {"weights": 50 * MIB, "caches": 40 * MIB}

    admit(prices, 100 * MIB, context=1024, lanes=1, per_token=40 * 1024)


def test_what_would_use_the_reserve_is_refused() -> None:
    told = refusal(51 * MIB, 40 * MIB // 8192, 100 * MIB)

    assert 3 == told.exit_code
    assert "--ctx 8192 needs 91 MiB (weights 51 MiB, caches 40 MiB); 90 MiB" in told.message


def test_a_context_that_would_fit_is_offered_and_fits() -> None:
    told = refusal(50 * MIB, 20_000, 100 * MIB)
    context = int(told.hint.split()[1])

    assert f"--ctx {context} would fit with 4 lane(s)." == told.hint
    assert 2048 == context
    prices = {"weights": 50 * MIB, "caches": 20_000 * context}
    admit(prices, 100 * MIB, context=context, lanes=4, per_token=20_000)


def test_weights_alone_that_do_not_fit_ask_for_another_model() -> None:
    told = refusal(200 * MIB, 20_000, 100 * MIB)

    assert "Close other programs or choose a smaller model with --model." == told.hint


def test_this_machine_has_memory_to_give() -> None:
    assert host_available() > 16 * MIB
