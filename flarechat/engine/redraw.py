"""Draws a token anew from a row's law as a mask of legal tokens leaves it.

A round is drawn from the law as it is. Where a token x was illegal, another is drawn from what is
left of the law, so that x has p(x) + p(illegal) p(x) / p(legal) = p(x) / p(legal) in all: the
masked law. By `match` the draw is by the very noise of its place in the text, so that it is the
masked law's own whatever was drawn before; by `ratio` it has a domain of numbers to itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from flarechat.engine import rng
from flarechat.engine.sampling import TargetLaw, penalised, target_law
from flarechat.errors import ConstraintError

if TYPE_CHECKING:
    from flarechat.engine.plan import LawShape
    from flarechat.engine.slot import Lanes


# Legal tokens are few where there are so many times as many columns.
_FEW = 4


def mask_of(legal: bytes, vocabulary: int) -> np.ndarray:
    """bool [V] of bits: token i is bit i % 8 of byte i // 8. ConstraintError if none is set."""
    bits = np.unpackbits(np.frombuffer(legal, np.uint8), count=vocabulary, bitorder="little")
    if not bits.any():
        raise ConstraintError(
            "The constraint leaves no token that could come next.", "Give another constraint."
        )
    return bits.view(np.bool_)


def redrawn(
    logits: Tensor, lanes: Lanes, before: Tensor, shape: LawShape, legal: np.ndarray
) -> int:
    """A token for one lane's row, logits [1, 1, V], that follows the round's tokens `before` it,
    int64 [1, n]; the lane stands as before the round. Only tokens `legal`, bool [V], are drawn."""
    if np.count_nonzero(legal) == 1:
        return int(legal.argmax())
    law = _possible(masked_law(logits, lanes, before, shape, legal))
    if law.certain:
        return int(law.only())
    position, seed = lanes.positions(1, before.shape[1] + 1), lanes.seed()[:, None]
    if bool(lanes.match()[0]):
        noise = rng.gumbel(seed[..., None], rng.SAMPLE, position[..., None], law.candidates())
        return int(law.draw(noise))
    u = rng.uniforms(seed, rng.REDRAW, rng.REDRAW_STRIDE * position, 1)[..., 0]
    return int(law.token_at_mass(u * law.probs.sum(-1)))


def _possible(law: TargetLaw) -> TargetLaw:
    """A law of one row without the candidates that have no probability, as noise is not cheap."""
    held = law.probs[0, 0] > 0
    ids = law.candidates().expand(law.probs.shape)
    return TargetLaw(law.probs[..., held], ids[..., held], law.rising or law.ids is None)


def masked_law(
    logits: Tensor, lanes: Lanes, before: Tensor, shape: LawShape, legal: np.ndarray
) -> TargetLaw:
    """The law over legal tokens alone, arguments as of `redrawn`. Where filters leave none of them,
    that of penalties and temperature; at temperature 0 the likeliest of them."""
    first = before.shape[1]
    law = target_law(logits, lanes, before, shape, first=first)
    mask = torch.from_numpy(legal).to(logits.device)
    probs = torch.where(mask if law.ids is None else mask[law.ids], law.probs, 0.0)
    total = probs.sum(-1, keepdim=True)
    if bool(total > 0):
        return TargetLaw(probs / total, law.ids, law.rising)
    # By numpy: torch would look for them in threads, which may be kept waiting.
    only = torch.from_numpy(legal.nonzero()[0]).to(logits.device)
    # Few are taken from the row first; picking most of what penalties read takes longer than it.
    columns = only if _FEW * len(only) < len(legal) else None
    logits = (logits if columns is None else logits[..., columns]).float()
    if shape.penalties:
        logits = penalised(logits, lanes, before, first, columns)
    ids, logits = only[None, None], logits if columns is not None else logits[..., only]
    heat = lanes.sampling().temperature[:, None, None]
    if not bool(heat > 0):
        best = ids[..., logits.argmax(-1)[0]]
        return TargetLaw(torch.ones_like(best, dtype=torch.float32), best)
    differences = logits - logits.amax(-1, keepdim=True)
    return TargetLaw(torch.softmax(differences / heat, dim=-1), ids, rising=True)
