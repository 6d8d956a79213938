"""The kernels of laws and drafts against the torch laws, candidates and all."""

from __future__ import annotations

import pytest
import torch

from flarechat.engine import kernels
from flarechat.engine.kernels import filter as filters
from flarechat.engine.plan import LawShape
from flarechat.engine.sampling import target_law
from tests.engine.kernels.slots import poison as poison
from tests.engine.kernels.slots import references as references
from tests.engine.requests import generator, lanes_of, require_law, stable_law
from tests.engine.steps import (
    require_drawn_as_the_torch_chain_draws,
)
from tests.engine.test_round import NoHostSync

COUNT = filters.CANDIDATES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("columns", "penalties"), [(7, True), (64, True), (65, False), (700, True)]
)
def test_each_row_has_the_law_of_the_torch_code(
    columns: int, penalties: bool, dtype: torch.dtype, poison: None
) -> None:
    """In bfloat16 many logits are equal."""
    lanes = lanes_of(3, columns, seed=columns)
    draw = generator(columns)
    logits = (3 * torch.randn(3, 3, columns, generator=draw)).to(dtype)
    drafts = torch.randint(0, columns, (3, 2), generator=draw)
    own = filters.law(logits, lanes, drafts, penalties)

    require_law(own, *stable_law(logits, lanes, drafts, penalties))
    torch.testing.assert_close(own[0].sum(-1), torch.ones(3, 3))


def test_a_drafters_columns_are_mapped_to_their_tokens(poison: None) -> None:
    lanes = lanes_of(3, 400, seed=5)
    vocabulary = torch.arange(1, 400, 3)
    logits = 2 * torch.randn(3, 1, len(vocabulary), generator=generator(6))
    drafts = vocabulary[torch.randint(0, len(vocabulary), (3, 4), generator=generator(7))]
    for first in (0, 2, 4):
        own = filters.law(logits, lanes, drafts, True, first, vocabulary)
        require_law(own, *stable_law(logits, lanes, drafts[:, :first], True, first, vocabulary))


def test_masked_tokens_are_never_candidates_with_mass() -> None:
    lanes = lanes_of(4, 100, seed=3)
    logits = torch.randn(4, 1, 100, generator=generator(4))
    logits[..., 5:] = float("-inf")
    probs, ids = filters.law(logits, lanes, torch.zeros(4, 0, dtype=torch.int64), False)

    assert probs.isfinite().all()
    assert not probs[ids >= 5].any()


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_of_equal_logits_the_lower_id_comes_first(zero: float) -> None:
    lanes = lanes_of(1, 300, seed=3)
    lanes.pool.filters["temperature"].fill_(1)
    lanes.pool.filters["top_k"].fill_(50)
    logits = torch.zeros(1, 1, 300)
    logits[..., ::2] = zero
    _, ids = filters.law(logits, lanes, torch.zeros(1, 0, dtype=torch.int64), False)

    assert list(range(COUNT)) == ids[0, 0].tolist()


def test_the_dispatch_takes_laws_of_few_candidates_only() -> None:
    lanes = lanes_of(2, 100, seed=8)
    logits = torch.randn(2, 2, 100, generator=generator(9))
    drafts = torch.zeros(2, 1, dtype=torch.int64)
    with kernels.interpreted():
        few = target_law(logits, lanes, drafts, LawShape(20))
        many = target_law(logits, lanes, drafts, LawShape(90))
        whole = target_law(logits, lanes, drafts, LawShape(0, ordered=True))

    assert (COUNT, 90, 100) == tuple(law.probs.shape[-1] for law in (few, many, whole))
    assert whole.ids is None


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("acceptance", ["ratio", "match", "mixed"])
def test_drafts_are_drawn_as_the_torch_chain_draws_them(
    acceptance: str, staged: bool, poison: None
) -> None:
    require_drawn_as_the_torch_chain_draws(
        lambda lanes, depth, staged, steps: filters.Chain(lanes, depth, staged, steps, acceptance),
        acceptance, staged,
    )  # fmt: skip


def test_nothing_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import GridExecutor

    lanes = lanes_of(2, 100, seed=8)
    depth, logits = torch.ones(lanes.pool.slots).long(), torch.randn(2, 1, 100)
    monkeypatch.setattr(GridExecutor, "__call__", lambda self, *args, **kwargs: None)
    with NoHostSync():
        filters.law(logits, lanes, torch.zeros(2, 1).long(), True)
        filters.Chain(lanes, depth, None, 2, "mixed").draw(1, logits, True, None)
