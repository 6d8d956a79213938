"""Who keeps drafts and draws tokens on a GPU: our own kernels, or FlashInfer's.

Owns the choice, FLARECHAT_SAMPLER: `own`, the default, which needs no compiler and one launch;
`flashinfer`; or `auto`, FlashInfer if it works here. Both decide alike, draw for draw.
"""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from flarechat.engine.kernels import chain
from flarechat.engine.kernels.filter import Chain
from flarechat.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.proposal import Proposal
    from flarechat.engine.sampling import TargetLaw
    from flarechat.engine.slot import Lanes

VARIABLE = "FLARECHAT_SAMPLER"
CHOICES = ("own", "flashinfer", "auto")


@functools.cache
def by_flashinfer(device: torch.device) -> bool:
    """Whether FlashInfer samples on this device; asked once, before anything is captured."""
    wanted = os.environ.get(VARIABLE) or "own"
    if wanted not in CHOICES:
        raise SettingsError(
            f"{VARIABLE} is {wanted!r}, not one of {', '.join(CHOICES)}.", f"Unset {VARIABLE}."
        )
    if wanted == "own":
        return False
    there = find_spec("flashinfer") is not None
    if there:
        from flarechat.engine.kernels import flashinfer_chain

        there = flashinfer_chain.works(device)
    if not there and wanted == "flashinfer":
        raise SettingsError(
            f"{VARIABLE} asks for FlashInfer, which does not work here.",
            f"Install flashinfer-python and a CUDA compiler, or unset {VARIABLE}.",
        )
    return there


def accept(
    law: TargetLaw, proposal: Proposal, lanes: Lanes, acceptance: str
) -> tuple[Tensor, Tensor]:
    """tokens int64 [B, W] and accepted int64 [B], as `accept.accept`, where the laws fit."""
    if by_flashinfer(law.probs.device):
        from flarechat.engine.kernels import flashinfer_chain

        return flashinfer_chain.accept(law, proposal, lanes, acceptance)
    return chain.accept(law, proposal, lanes, acceptance)


def drafts(
    lanes: Lanes, depth: Tensor, staged: Proposal | None, draft_tokens: int, acceptance: str
) -> Chain:
    """The drafts of a round, none drawn yet; arguments as of `Chain`."""
    if by_flashinfer(lanes.index.device):
        from flarechat.engine.kernels.flashinfer_chain import FlashInferChain

        return FlashInferChain(lanes, depth, staged, draft_tokens, acceptance)
    return Chain(lanes, depth, staged, draft_tokens, acceptance)
