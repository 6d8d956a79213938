"""What a slot is told when it is opened, column by column, and what that leaves alone."""

from __future__ import annotations

import pytest

from flarechat.engine.accept import IDLE
from flarechat.engine.slot import MAX_EOS, SlotPool
from flarechat.protocol import Sampling
from tests.engine.tiny import CPU

LAW = Sampling(
    temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.2, presence_penalty=0.3,
    frequency_penalty=-0.4,
)  # fmt: skip


@pytest.mark.parametrize("generated", [(), (6, 2, 6)])
def test_an_opened_slot_has_what_it_was_told_and_the_others_have_what_they_had(
    generated: tuple[int, ...],
) -> None:
    pool = SlotPool(3, 64, 9, CPU)
    for tensor in pool.tensors().values():
        tensor.fill_(1)
    pool.open(
        1, (4, 8, 4), generated, restored=2, sampling=LAW, seed=(1 << 63) - 1, match=False,
        budget=7, eos=range(3, 6),
    )  # fmt: skip
    told = {name: tensor[1].tolist() for name, tensor in pool.tensors().items()}
    filters = {name: told.pop(name) for name in pool.filters}

    assert {
        "pending": 6 if generated else 4, "consumed": 2, "generated": len(generated), "budget": 7,
        "finish": IDLE, "seed": (1 << 63) - 1, "match": False,
        "eos": [3, 4, 5, *[-1] * (MAX_EOS - 3)],
        "counts": [0, 0, 1, 0, 0, 0, 2, 0, 0] if generated else [0] * 9,
        "prompt_seen": [token in (4, 8) for token in range(9)],
    } == told  # fmt: skip
    assert {name: pytest.approx(getattr(LAW, name)) for name in pool.filters} == filters
    assert all(bool((tensor[::2] == 1).all()) for tensor in pool.tensors().values())


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_every_column_begins_where_a_tensor_of_its_own_would(slots: int) -> None:
    pool = SlotPool(slots, 64, 32, CPU)

    for name, tensor in pool.tensors().items():
        assert tensor.is_contiguous() and tensor.data_ptr() % 16 == 0, name
        assert tensor.shape[0] == slots, name
