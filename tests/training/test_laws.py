"""Acceptance shares by exact arithmetic, and what the losses are least at."""

from __future__ import annotations

import pytest
import torch

from training.losses import Law, accepted_share, overlap, soft


def _filtered(logits: list[float], law: Law) -> dict[int, float]:
    """The law in plain Python."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])[: law.top_k]
    top = max(logits)
    mass = {i: 2.718281828459045 ** ((logits[i] - top) / law.temperature) for i in order}
    total = sum(mass.values())
    kept, before = {}, 0.0
    for i in order:
        if before < law.top_p:
            kept[i] = mass[i] / total
        before += mass[i] / total
    scale = sum(kept.values())
    return {i: value / scale for i, value in kept.items()}


@pytest.mark.parametrize("law", [Law(0.7, 5, 0.9), Law(1.0, 20, 0.95), Law(0.3, 3, 1.0)])
def test_the_share_is_the_overlap_of_the_two_filtered_laws(law: Law):
    g = torch.Generator().manual_seed(0)
    ids = torch.tensor([0, 2, 3, 7, 9, 11])
    target, draft = torch.randn(40, 12, generator=g), torch.randn(40, 6, generator=g)
    found = accepted_share(draft, target, ids, law)
    for row in range(40):
        p = _filtered(target[row].tolist(), law)
        q = {int(ids[i]): x for i, x in _filtered(draft[row].tolist(), law).items()}
        assert found[row].item() == pytest.approx(
            sum(min(p[i], q.get(i, 0.0)) for i in p), abs=1e-5
        )


def test_at_temperature_zero_the_share_is_agreement():
    target = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    draft = torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    found = accepted_share(draft, target, torch.tensor([0, 1]), Law(0, 1, 1.0))
    assert found.tolist() == [1.0, 0.0]


def test_losses_are_least_where_the_laws_agree():
    g = torch.Generator().manual_seed(0)
    target = torch.randn(8, 12, generator=g)
    other = target + torch.randn(8, 12, generator=g)
    assert soft(target, target) < soft(other, target)
    assert overlap(target, target, 0.7).item() == pytest.approx(0, abs=1e-6)
    assert overlap(other, target, 0.7) > 0.1
