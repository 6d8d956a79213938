"""Draws of the kernels against `rng`, to the bit, and the network against a sort."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from flarechat.engine import accept, rng
from flarechat.engine.kernels import commit, draws
from flarechat.engine.kernels.largest import largest, largest_of_runs
from tests.engine.requests import generator

MANY = 1024


@triton.jit
def _probe(seeds, positions, numbers, bits, uniforms, noise, DOMAIN: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    seed, position = tl.load(seeds + at), tl.load(positions + at)
    number = tl.load(numbers + at)
    drawn = draws._bits(seed, DOMAIN, position, number)
    tl.store(bits + at, drawn.to(tl.int64))
    tl.store(uniforms + at, draws.uniform(seed, DOMAIN, number))
    tl.store(noise + at, draws._gumbel(seed, DOMAIN, position, number))


@pytest.mark.parametrize("domain", [rng.SAMPLE, rng.ACCEPT, rng.DRAFT])
def test_kernels_draw_what_rng_draws(domain: int) -> None:
    draw = generator(domain)
    seed = torch.randint(-(2**63), 2**63 - 1, (MANY,), generator=draw)
    position = torch.randint(0, 2**20, (MANY,), generator=draw)
    number = torch.randint(0, 2**36, (MANY,), generator=draw)
    bits, uniform, noise = torch.empty_like(seed), torch.empty(MANY), torch.empty(MANY)
    _probe[(1,)](seed, position, number, bits, uniform, noise, DOMAIN=domain, N=MANY)
    four = rng.uniforms(seed, domain, number // 4 * 4, 4)

    assert torch.equal(rng.bits(seed, domain, position, number), bits)
    assert torch.equal(four.gather(1, (number % 4)[:, None])[:, 0], uniform)
    expected = rng.gumbel(seed, domain, position, number)
    torch.testing.assert_close(noise, expected, atol=2e-6, rtol=2e-6)


def test_noise_is_exact_where_it_is_largest_and_smallest() -> None:
    """The bits of an index are a bijection of it, so the extremes can be searched for."""
    seed, position = torch.tensor(3), torch.tensor(7)
    index = torch.arange(4_000_000)
    drawn = rng.bits(seed, rng.SAMPLE, position, index)
    far = torch.cat([drawn.argsort()[: MANY // 2], drawn.argsort()[-MANY // 2 :]])
    noise, unused = torch.empty(MANY), torch.empty(MANY)
    _probe[(1,)](
        seed.expand(MANY).contiguous(), position.expand(MANY).contiguous(), far,
        torch.empty_like(far), unused, noise, DOMAIN=rng.SAMPLE, N=MANY,
    )  # fmt: skip

    expected = rng.gumbel(seed, rng.SAMPLE, position, far)
    torch.testing.assert_close(noise, expected, atol=1e-6, rtol=1e-6)


def test_constants_that_stand_twice_agree() -> None:
    for name in ("SAMPLE", "ACCEPT", "DRAFT", "ACCEPT_STRIDE", "DRAFT_STRIDE"):
        assert getattr(rng, name) == getattr(draws, name)
    for name in ("RUNNING", "STOPPED", "EXHAUSTED"):
        assert getattr(accept, name) == getattr(commit, name)


@triton.jit
def _largest(x, out, BITS: tl.constexpr, TURNS: tl.constexpr, RUNS: tl.constexpr):
    values = tl.load(x + tl.arange(0, 2 ** (BITS + TURNS)))
    found = largest_of_runs(values, BITS, TURNS) if RUNS else largest(values, BITS, TURNS)
    tl.store(out + tl.arange(0, 2**BITS), found)


def numbers(count: int, kind: str) -> Tensor:
    draw = generator(count)
    if kind == "few values":
        return torch.randint(-2, 3, (count,), generator=draw)
    wide = torch.randint(-(2**63), 2**63 - 1, (count,), generator=draw)
    wide[:3] = torch.tensor([-(2**63), 2**63 - 1, -(2**63)])
    return wide if kind == "any values" else wide.sort(descending=kind == "falling").values


@pytest.mark.parametrize("kind", ["any values", "few values", "rising", "falling"])
@pytest.mark.parametrize("turns", [0, 1, 3])
def test_the_network_finds_the_largest(turns: int, kind: str) -> None:
    x, out = numbers(8 << turns, kind), torch.empty(8, dtype=torch.int64)
    runs = x.reshape(-1, 8).sort(-1).values
    runs[1::2] = runs[1::2].flip(-1)
    expected = x.sort(descending=True).values[:8]
    _largest[(1,)](x, out, BITS=3, TURNS=turns, RUNS=False)
    assert torch.equal(expected, out)
    if turns:
        _largest[(1,)](runs.reshape(-1), out, BITS=3, TURNS=turns, RUNS=True)
        assert torch.equal(expected, out)
