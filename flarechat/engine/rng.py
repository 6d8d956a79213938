"""Counter-based randomness: every draw is a pure function of what it is for.

No generator is kept, so replays, lanes and widths cannot disturb each other. Two families, both
in integers that int64 tensors hold:

`match` hashes (seed, domain, position, index), two rounds of a 32-bit hash each (the "lowbias32"
constants of C. Wellons' hash prospector), into one Gumbel noise for each token.
`ratio` numbers the draws of a stream. Philox4x32-10 (Salmon et al. 2011) under the key of a seed
and a domain makes them, as cuRAND does, so that samplers built on cuRAND draw the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Domains keep the draws of one position apart. SAMPLE is shared by the target and its drafters in
# `match`: the same noise on both sides is what makes their draws agree.
SAMPLE, ACCEPT, DRAFT, REDRAW = 1, 2, 4, 8

# Draws that these streams set aside for each position of the text. A round has those of the place
# that it begins at: at most 7 tests, one draw that may be skipped, one token.
ACCEPT_STRIDE, DRAFT_STRIDE, REDRAW_STRIDE = 16, 4, 4

_MASK = 0xFFFFFFFF
_ROUNDS = 10
_A, _B, _WEYL_A, _WEYL_B = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


def _mix(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def bits(seed: Tensor, domain: int, position: Tensor, index: Tensor) -> Tensor:
    """32 random bits as int64, of the broadcast shape of `seed`, `position` and `index`."""
    key = _mix((seed & _MASK) ^ (domain * 0x9E3779B9 & _MASK))
    key = _mix(key ^ ((seed >> 32) & _MASK))
    key = _mix((key + position * 0x85EBCA6B) & _MASK)
    return _mix(_mix((key ^ (index * 0x27D4EB2F)) & _MASK) ^ key)


def gumbel(seed: Tensor, domain: int, position: Tensor, index: Tensor) -> Tensor:
    """Standard Gumbel noise, float32. Large values come from small uniforms, where float32 is
    finest, so the race among tens of thousands of tokens has no coarse steps at its head."""
    low = bits(seed, domain, position, index).float().add(0.5).mul(2.0**-32)
    return -torch.log(-torch.log1p(-low.clamp_max(1 - 2.0**-24)))


def keys(seed: Tensor, domain: int) -> Tensor:
    """The low and the high word of the Philox key of seeds [...]: int64 [2, ...]."""
    half = torch.arange(2, device=seed.device).view(2, *(1,) * seed.ndim)
    return bits(seed, domain, torch.zeros_like(half), half)


def uniforms(seed: Tensor, domain: int, first: Tensor, count: int) -> Tensor:
    """Draws first … first + count - 1 of a stream, for seeds and `first` int64 of shapes that
    broadcast to [...], first a multiple of 4: float32 [..., count] in (0, 1], to the bit what
    `curand_uniform` gives."""
    seed, first = torch.broadcast_tensors(seed, first)  # type: ignore[no-untyped-call]
    block = (first >> 2)[..., None]
    if count > 4:
        block = block + torch.arange(-(-count // 4), device=seed.device)
    words = _philox(keys(seed, domain)[..., None], block)
    return words.flatten(-2)[..., :count].float().mul_(2.0**-32).add_(2.0**-33)


def _philox(keys: Tensor, block: Tensor) -> Tensor:
    """The four words of each block, keys [2, ...] and block [...]: int64 [..., 4].

    The state is held in halves: words 0 and 2 in one tensor and 3 and 1 in another, in the other
    order after every second round. Overflow of the products is meant; the masks keep what is right.
    """
    low_first = torch.arange(2, device=block.device).view(2, *(1,) * block.ndim)
    high_first = 1 - low_first
    multipliers = tuple(at * (_B - _A) + _A for at in (low_first, high_first))
    steps = torch.arange(_ROUNDS, device=block.device).view(-1, 1, *(1,) * block.ndim)
    own = (keys + steps * (low_first * (_WEYL_B - _WEYL_A) + _WEYL_A)) & _MASK
    by_turn = (own.flip(1).unbind(0), own.unbind(0))
    nothing = torch.zeros_like(block)
    even, odd = torch.stack([block & _MASK, nothing]), torch.stack([nothing, block >> 32])
    for turn in range(_ROUNDS):
        product = even * multipliers[turn % 2]
        high = (product >> 32).bitwise_and_(_MASK)
        even = high.bitwise_xor_(odd).bitwise_xor_(by_turn[turn % 2][turn])
        odd = product.bitwise_and_(_MASK).flip(0)
    return torch.stack([even[0], odd[1], even[1], odd[0]], dim=-1)
