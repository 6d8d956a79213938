"""Counter-based draws: pure, in range, and as random as the tests can tell."""

from __future__ import annotations

import torch

from flarechat.engine import rng
from tests.engine.statistics import chi_square_p


def column(values: range) -> torch.Tensor:
    return torch.tensor(list(values))


def test_a_draw_depends_only_on_what_it_is_for() -> None:
    seeds, positions, index = (
        column(range(50))[:, None, None],
        column(range(30))[:, None],
        column(range(20)),
    )
    together = rng.uniform(seeds, rng.ACCEPT, positions, index)
    alone = rng.uniform(torch.tensor(41), rng.ACCEPT, torch.tensor(17), torch.tensor(3))

    assert float(together[41, 17, 3]) == float(alone)


def test_uniforms_never_reach_zero_or_one() -> None:
    u = rng.uniform(torch.tensor(9), rng.ACCEPT, torch.tensor(0), column(range(2_000_000)))
    noise = rng.gumbel(torch.tensor(9), rng.SAMPLE, torch.tensor(0), column(range(2_000_000)))

    assert 0 < float(u.min()) and float(u.max()) < 1
    assert bool(torch.isfinite(noise).all())


def test_uniforms_are_even_along_every_counter() -> None:
    n, bins = 200_000, 64
    counters = {
        "index": (torch.tensor(5), torch.tensor(7), column(range(n))),
        "position": (torch.tensor(5), column(range(n)), torch.tensor(7)),
        "seed": (column(range(n)), torch.tensor(5), torch.tensor(7)),
        "high seed": (column(range(n)) << 32, torch.tensor(5), torch.tensor(7)),
    }
    for name, (seed, position, index) in counters.items():
        for domain in (rng.SAMPLE, rng.ACCEPT, rng.RESIDUAL, rng.DRAFT):
            u = rng.uniform(seed, domain, position, index)
            counts = torch.histc(u, bins, 0, 1)
            assert chi_square_p(counts, torch.full((bins,), n / bins)) > 1e-4, (name, domain)


def test_neighbouring_counters_and_domains_are_uncorrelated() -> None:
    n = 100_000
    grid = rng.uniform(
        column(range(4))[:, None, None], rng.ACCEPT, column(range(5))[:, None], column(range(n))
    )
    other = rng.uniform(torch.tensor(0), rng.RESIDUAL, torch.tensor(0), column(range(n)))
    rows = torch.cat([grid.reshape(-1, n), other[None], grid[0, 0].roll(1)[None]])
    off_diagonal = torch.corrcoef(rows) - torch.eye(len(rows))

    assert float(off_diagonal.abs().max()) < 5 / n**0.5


def test_gumbel_noise_has_the_gumbel_law() -> None:
    n, bins = 400_000, 50
    noise = rng.gumbel(torch.tensor(3), rng.SAMPLE, torch.tensor(1), column(range(n)))
    evened = torch.exp(-torch.exp(-noise.double()))

    assert chi_square_p(torch.histc(evened, bins, 0, 1), torch.full((bins,), n / bins)) > 1e-4
