"""A round's small steps in Triton, under the names that `cpu.rounds` has for them in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flarechat.engine.kernels import filter as filters
from flarechat.engine.kernels import sampler
from flarechat.engine.kernels.chain import fits
from flarechat.engine.kernels.commit import advance, clip, inputs, pack
from flarechat.engine.kernels.lookups import last, store
from flarechat.engine.kernels.sampler import accept

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.plan import LawShape, Plan
    from flarechat.engine.proposal import Proposal
    from flarechat.engine.slot import Lanes

__all__ = [
    "accept", "advance", "clip", "drafts", "fits", "inputs", "last", "law", "pack", "store",
    "takes",
]  # fmt: skip


def takes(shape: LawShape) -> bool:
    """Whether `law` makes laws of this shape: of few candidates."""
    return shape.few


def law(
    logits: Tensor, lanes: Lanes, drafts: Tensor, shape: LawShape, first: int = 0,
    vocabulary: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """probs float32 and ids int64 [B, W, 64]; arguments as of `sampling.target_law`."""
    return filters.law(logits, lanes, drafts, shape.penalties, first, vocabulary)


def drafts(lanes: Lanes, depth: Tensor, staged: Proposal | None, plan: Plan) -> filters.Chain:
    """The drafts of a round, none drawn yet; arguments as of `Chain`."""
    return sampler.drafts(lanes, depth, staged, plan.draft_tokens, plan.acceptance)
