"""Counter-based randomness: every draw is a pure function of what it is for.

A draw depends on (seed, domain, position, index) and on nothing else: no generator is kept, so
replays, lanes and widths cannot disturb each other. Two rounds of a 32-bit integer hash (the
"lowbias32" constants of C. Wellons' hash prospector) mix each counter; int64 tensors hold them.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Domains keep the draws of one position apart. SAMPLE is shared by the target and its drafters in
# `match`: the same noise on both sides is what makes their draws agree.
SAMPLE, ACCEPT, RESIDUAL, DRAFT = 1, 2, 3, 4

_MASK = 0xFFFFFFFF


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


def uniform(seed: Tensor, domain: int, position: Tensor, index: Tensor) -> Tensor:
    """float32 in [2^-25, 1 - 2^-24]: never 0, never 1."""
    drawn = (bits(seed, domain, position, index) >> 8).float()
    return (drawn + 0.5).mul(2.0**-24).clamp_max(1 - 2.0**-24)


def gumbel(seed: Tensor, domain: int, position: Tensor, index: Tensor) -> Tensor:
    """Standard Gumbel noise, float32. Large values come from small uniforms, where float32 is
    finest, so the race among tens of thousands of tokens has no coarse steps at its head."""
    low = bits(seed, domain, position, index).float().add(0.5).mul(2.0**-32)
    return -torch.log(-torch.log1p(-low.clamp_max(1 - 2.0**-24)))
