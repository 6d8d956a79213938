"""Counter-based draws: pure, in range, and as random as the tests can tell."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.engine import rng
from tests.engine.statistics import chi_square_p


def column(values: range) -> torch.Tensor:
    return torch.tensor(list(values))


def number(seed: int, domain: int) -> int:
    low, high = rng.keys(torch.tensor(seed), domain).tolist()
    return int(low | high << 32)


def philox(key: int, block: int) -> list[int]:
    """Philox4x32-10 in plain integers, as the paper's figure 3 has it."""
    word, mask = [block & 0xFFFFFFFF, block >> 32, 0, 0], 0xFFFFFFFF
    low, high = key & mask, key >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * word[0], 0xCD9E8D57 * word[2]
        word = [(b >> 32) ^ word[1] ^ low, b & mask, (a >> 32) ^ word[3] ^ high, a & mask]
        low, high = (low + 0x9E3779B9) & mask, (high + 0xBB67AE85) & mask
    return word


def test_philox_gives_the_published_words() -> None:
    """The known answers of the authors' own tests, with and without a key."""
    nothing = torch.zeros(2, 1, dtype=torch.int64)

    assert [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8] == philox(0, 0)
    assert [philox(0, 0)] == rng._philox(nothing, nothing[0]).tolist()


@settings(deadline=None, max_examples=60)
@given(
    seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
    first=st.integers(0, 2**38).map(lambda n: 4 * n),
    count=st.integers(1, 11),
)
def test_uniforms_are_curands_to_the_bit(seeds: list[int], first: int, count: int) -> None:
    stream = torch.tensor(seeds), rng.ACCEPT, torch.full((len(seeds),), first)
    drawn = rng.uniforms(*stream, count)
    unit = np.float32(2**-32)

    for lane, seed in enumerate(seeds):
        key = number(seed, rng.ACCEPT)
        words = [philox(key, at // 4)[at % 4] for at in range(first, first + count)]
        expected = [float(np.float32(word) * unit + unit / 2) for word in words]
        assert expected == drawn[lane].tolist()


def test_a_draw_depends_only_on_what_it_is_for() -> None:
    seeds, positions = column(range(50))[:, None], 16 * column(range(30))
    together = rng.uniforms(seeds, rng.ACCEPT, positions, 9)
    alone = rng.uniforms(torch.tensor(41), rng.ACCEPT, torch.tensor(16 * 17), 4)
    noise = rng.gumbel(seeds[..., None], rng.SAMPLE, positions[:, None], column(range(20)))
    own = rng.gumbel(torch.tensor(41), rng.SAMPLE, positions[17], torch.tensor(3))

    assert float(together[41, 17, 3]) == float(alone[3])
    assert float(noise[41, 17, 3]) == float(own)


def test_domains_and_seeds_have_keys_of_their_own() -> None:
    keys = {number(s, domain) for s in range(200) for domain in (rng.ACCEPT, rng.DRAFT)}

    assert 400 == len(keys)


def test_noise_is_finite_and_uniforms_are_never_zero() -> None:
    u = rng.uniforms(torch.tensor(9), rng.ACCEPT, torch.tensor(0), 2_000_000)
    noise = rng.gumbel(torch.tensor(9), rng.SAMPLE, torch.tensor(0), column(range(2_000_000)))

    assert 0 < float(u.min()) and float(u.max()) <= 1
    assert bool(torch.isfinite(noise).all())


def test_uniforms_are_even_along_every_counter() -> None:
    n, bins = 200_000, 64
    one = torch.tensor(5)
    for domain in (rng.ACCEPT, rng.DRAFT):
        streams = {
            "draw": rng.uniforms(one, domain, 28 * one, n),
            "position": rng.uniforms(one, domain, 16 * column(range(n)), 1),
            "seed": rng.uniforms(column(range(n)), domain, 28 * one, 1),
            "high seed": rng.uniforms(column(range(n)) << 32, domain, 28 * one, 1),
        }
        for name, u in streams.items():
            counts = torch.histc(u, bins, 0, 1)
            assert chi_square_p(counts, torch.full((bins,), n / bins)) > 1e-4, (name, domain)


def test_noise_is_even_along_every_counter() -> None:
    n, bins = 200_000, 64
    counters = {
        "index": (torch.tensor(5), torch.tensor(7), column(range(n))),
        "position": (torch.tensor(5), column(range(n)), torch.tensor(7)),
        "seed": (column(range(n)), torch.tensor(5), torch.tensor(7)),
        "high seed": (column(range(n)) << 32, torch.tensor(5), torch.tensor(7)),
    }
    for name, (seed, position, index) in counters.items():
        u = rng.bits(seed, rng.SAMPLE, position, index).float() / 2**32
        counts = torch.histc(u, bins, 0, 1)
        assert chi_square_p(counts, torch.full((bins,), n / bins)) > 1e-4, name


def test_neighbouring_counters_and_domains_are_uncorrelated() -> None:
    n = 100_000
    grid = rng.uniforms(column(range(4))[:, None], rng.ACCEPT, (1 << 20) * column(range(5)), n)
    other = rng.uniforms(torch.tensor(0), rng.DRAFT, torch.tensor(0), n)
    rows = torch.cat([grid.reshape(-1, n), other[None], grid[0, 0].roll(1)[None]])
    off_diagonal = torch.corrcoef(rows) - torch.eye(len(rows))

    assert float(off_diagonal.abs().max()) < 5 / n**0.5


def test_gumbel_noise_has_the_gumbel_law() -> None:
    n, bins = 400_000, 50
    noise = rng.gumbel(torch.tensor(3), rng.SAMPLE, torch.tensor(1), column(range(n)))
    evened = torch.exp(-torch.exp(-noise.double()))

    assert chi_square_p(torch.histc(evened, bins, 0, 1), torch.full((bins,), n / bins)) > 1e-4
