"""Chi-square for tests of distributions; fixed seeds make its verdicts repeatable."""

from __future__ import annotations

import torch
from torch import Tensor


def chi_square_p(counts: Tensor, expected: Tensor) -> float:
    """P(a statistic at least this large | the expected law); cells below 5 are pooled."""
    counts, expected = counts.double(), expected.double()
    impossible = expected <= 0
    if bool((counts[impossible] > 0).any()):
        return 0.0
    order = expected.argsort(descending=True)
    counts, expected = counts[order], expected[order]
    large = expected >= 5
    pooled = torch.stack([counts[~large].sum(), expected[~large].sum()])
    c = torch.cat([counts[large], pooled[:1]]) if pooled[1] >= 5 else counts[large]
    e = torch.cat([expected[large], pooled[1:]]) if pooled[1] >= 5 else expected[large]
    statistic = ((c - e) ** 2 / e).sum()
    freedom = torch.tensor((len(c) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))
