"""Draws of one candidate by numbered randomness, in Triton: `rng` and the two laws of drawing.

Owns the kernels' own form of `rng`, equal to it to the bit (the Gumbel noise to rounding), and how
a token is drawn from the candidates of one row. Domains and strides are those of `rng`, which
stands above the kernels; a test holds the two together.
"""

from __future__ import annotations

import triton
import triton.language as tl

SAMPLE, ACCEPT, DRAFT = 1, 2, 4
ACCEPT_STRIDE, DRAFT_STRIDE = 16, 4
# Who decides: every lane by ratio, every lane by match, or each as its slot says.
MODES = {"ratio": 0, "match": 1, "mixed": 2}

_SAMPLE: tl.constexpr = tl.constexpr(SAMPLE)
_GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B9)
_NO_TOKEN: tl.constexpr = tl.constexpr(2**63 - 1)


@triton.jit
def _mix(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit  # type: ignore[untyped-decorator]
def _bits(seed, DOMAIN: tl.constexpr, position, index):  # type: ignore[no-untyped-def]
    """uint32, as `rng.bits`; seed and position int64, index any integers."""
    SALT: tl.constexpr = (DOMAIN * _GOLDEN) & 0xFFFFFFFF
    key = _mix((seed & 0xFFFFFFFF).to(tl.uint32) ^ SALT)
    key = _mix(key ^ ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32))
    key = _mix(key + (position & 0xFFFFFFFF).to(tl.uint32) * 0x85EBCA6B)
    return _mix(_mix(key ^ ((index & 0xFFFFFFFF).to(tl.uint32) * 0x27D4EB2F)) ^ key)


@triton.jit  # type: ignore[untyped-decorator]
def _gumbel(seed, DOMAIN: tl.constexpr, position, index):  # type: ignore[no-untyped-def]
    """float32, as `rng.gumbel`; log1p by way of a log that is exact near one."""
    low = (_bits(seed, DOMAIN, position, index).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    low = tl.minimum(low, 0.999999940395355)
    near = 1.0 - low
    off = near - 1.0
    scaled = tl.log(near) * (-low / tl.where(off == 0.0, 1.0, off))
    return -tl.log(-tl.where(off == 0.0, -low, scaled))


@triton.jit  # type: ignore[untyped-decorator]
def key_of(seed, DOMAIN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both uint32 words, as `rng.keys`."""
    nothing = seed & 0
    return _bits(seed, DOMAIN, nothing, nothing), _bits(seed, DOMAIN, nothing, nothing + 1)


@triton.jit  # type: ignore[untyped-decorator]
def uniform(seed, DOMAIN: tl.constexpr, number):  # type: ignore[no-untyped-def]
    """float32 of the shape of `number` int64: those draws of a stream, as `rng.uniforms`."""
    nothing = (number & 0).to(tl.uint32)
    low, high = key_of(seed, DOMAIN)
    block = number >> 2
    first, second = (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32)
    a, b, c, d = tl.random.philox_impl(
        first, second, nothing, nothing, nothing + low, nothing + high
    )
    place = number & 3
    word = tl.where(place < 2, tl.where(place == 0, a, b), tl.where(place == 2, c, d))
    return word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def token_at_mass(ids, probs, mass):  # type: ignore[no-untyped-def]
    """As `TargetLaw.token_at_mass` of one row: ids int64 [C] and probs [C] in any order."""
    below = ids[None, :] <= ids[:, None]
    through = tl.sum(tl.where(below, probs[None, :], 0.0), 1)
    held = probs > 0
    first = tl.min(tl.where(held & (through > mass), ids, _NO_TOKEN), 0)
    return tl.where(first < _NO_TOKEN, first, tl.max(tl.where(held, ids, 0), 0))


@triton.jit
def races(ids, probs, seed, position):  # type: ignore[no-untyped-def]
    """The race that `match` lets the candidates run, of any shape that all broadcast to."""
    held = probs > 0
    race = tl.log(tl.where(held, probs, 1.0)) + _gumbel(seed, _SAMPLE, position, ids)
    return tl.where(held, race, float("-inf"))


@triton.jit
def winner(ids, race):  # type: ignore[no-untyped-def]
    """The id [R] of the candidate that leads in each row of ids and race [R, C]."""
    best = tl.argmax(race, 1)
    column = tl.arange(0, ids.shape[1])[None, :]
    return tl.sum(tl.where(column == best[:, None], ids, 0), 1)
