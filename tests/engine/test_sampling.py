"""The target law against transformers' processors and a plain loop."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from flarechat.engine.plan import LawShape
from flarechat.engine.sampling import target_law
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.protocol import Sampling

V = 24
CPU = torch.device("cpu")


def lanes_for(*samplings: Sampling, prompt: list[int], generated: list[int]) -> Lanes:
    pool = SlotPool(len(samplings), 64, V, CPU)
    for slot, sampling in enumerate(samplings):
        pool.open(
            slot, prompt, generated, sampling=sampling, seed=slot, match=False, budget=32, eos=()
        )
    return Lanes(pool, range(len(samplings)))


def expected_law(
    logits: Tensor, sampling: Sampling, prompt: list[int], said: list[int], vocabulary: int = V
) -> Tensor:
    """One row's law by transformers' processors; presence and frequency by a plain loop."""
    ids = torch.tensor([prompt + said])
    scores = logits[None].clone()
    if sampling.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(ids, scores)
    for token in set(said):
        scores[0, token] -= sampling.presence_penalty
        scores[0, token] -= sampling.frequency_penalty * said.count(token)
    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(scores[0].argmax(), vocabulary).float()
    scores = TemperatureLogitsWarper(sampling.temperature)(ids, scores)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(ids, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(ids, scores)
    if sampling.min_p:
        scores = MinPLogitsWarper(sampling.min_p)(ids, scores)
    return scores[0].softmax(-1)


def dense(law, lane: int, row: int) -> Tensor:  # type: ignore[no-untyped-def]
    out = torch.zeros(V)
    ids = law.candidates().expand(law.probs.shape)
    return out.scatter_(0, ids[lane, row], law.probs[lane, row])


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 5, 20, 100]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.1, 1.5, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.4, -0.4]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.3]),
)
tokens = st.lists(st.integers(0, V - 1), min_size=1, max_size=6)


@settings(deadline=None, max_examples=80)
@given(
    samplings=st.lists(samplings, min_size=1, max_size=2),
    prompt=tokens,
    generated=st.lists(st.integers(0, V - 1), max_size=5),
    drafts=st.lists(st.integers(0, V - 1), max_size=3),
    seed=st.integers(0, 999),
)
def test_each_row_has_the_law_of_its_own_prefix(
    samplings: list[Sampling],
    prompt: list[int],
    generated: list[int],
    drafts: list[int],
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lanes = lanes_for(*samplings, prompt=prompt, generated=generated)
    width = len(drafts) + 1
    logits = 3 * torch.randn(len(samplings), width, V, generator=generator)
    drafted = torch.tensor([drafts] * len(samplings), dtype=torch.int64).reshape(
        len(samplings), width - 1
    )
    law = target_law(logits, lanes, drafted, LawShape.of(samplings, V))

    for lane, sampling in enumerate(samplings):
        for row in range(width):
            expected = expected_law(logits[lane, row], sampling, prompt, generated + drafts[:row])
            actual = dense(law, lane, row)
            torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-4)


def test_the_shape_is_the_smallest_that_is_exact() -> None:
    greedy, top_k = Sampling(temperature=0), Sampling(top_k=20, top_p=0.9)

    assert LawShape(1) == LawShape.of([greedy], V)
    assert LawShape(20) == LawShape.of([greedy, top_k], V)
    assert LawShape(0, ordered=False) == LawShape.of([Sampling(min_p=0.1)], V)
    assert LawShape(0, ordered=True) == LawShape.of([Sampling(top_p=0.9)], V)
    assert LawShape(0, ordered=True) == LawShape.of([Sampling(), top_k], V)
    assert LawShape(0, ordered=True) == LawShape.of([Sampling(), Sampling(top_k=1)], V)
    assert LawShape.of([Sampling(presence_penalty=0.1)], V).penalties


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-38, 1e-44])
def test_a_tiny_temperature_is_argmax_and_not_nothing(temperature: float) -> None:
    lanes = lanes_for(Sampling(temperature=temperature), prompt=[1], generated=[])
    logits = torch.randn(1, 1, V, generator=torch.Generator().manual_seed(5))
    law = target_law(logits, lanes, torch.zeros(1, 0, dtype=torch.int64), LawShape())

    assert 1.0 == float(law.prob_of(logits.argmax(-1)))


def test_probabilities_of_tokens_outside_the_candidates_are_zero() -> None:
    lanes = lanes_for(Sampling(top_k=3), prompt=[1], generated=[])
    logits = torch.arange(V).float().expand(1, 1, V)
    law = target_law(logits, lanes, torch.zeros(1, 0, dtype=torch.int64), LawShape(3))
    probs = [float(law.prob_of(torch.tensor([[token]]))) for token in range(V)]

    assert [0.0] * (V - 3) == probs[: V - 3]
    assert math.isclose(1.0, sum(probs), rel_tol=1e-5)


@settings(deadline=None, max_examples=80)
@given(
    samplings=st.lists(samplings, min_size=1, max_size=2),
    prompt=tokens,
    generated=st.lists(st.integers(0, V - 1), max_size=5),
    drafts=st.lists(st.integers(0, V - 1), max_size=4),
    width=st.integers(1, 3),
    ids=st.sets(st.integers(0, V - 1), min_size=1).map(sorted),
    seed=st.integers(0, 999),
)
def test_a_drafters_few_tokens_have_the_law_of_a_vocabulary_without_the_others(
    samplings: list[Sampling],
    prompt: list[int],
    generated: list[int],
    drafts: list[int],
    width: int,
    ids: list[int],
    seed: int,
) -> None:
    lanes = lanes_for(*samplings, prompt=prompt, generated=generated)
    count, first = len(samplings), max(len(drafts) - width + 1, 0)
    few = 3 * torch.randn(count, width, len(ids), generator=torch.Generator().manual_seed(seed))
    drafted = torch.tensor([drafts] * count, dtype=torch.int64).reshape(count, len(drafts))
    shape = LawShape.of(samplings, V)
    law = target_law(few, lanes, drafted, shape, first=first, vocabulary=torch.tensor(ids))
    logits = torch.full((count, width, V), float("-inf"))
    logits[..., ids] = few

    for lane, sampling in enumerate(samplings):
        for row in range(width):
            said = generated + drafts[: first + row]
            expected = expected_law(logits[lane, row], sampling, prompt, said)
            torch.testing.assert_close(dense(law, lane, row), expected, atol=2e-6, rtol=1e-4)
