"""Drafters: what proposes. A table with lazy imports; one file each, all verbs answered."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from flarechat.engine.contracts import Drafter
    from flarechat.engine.drafters.blended import LearnedDrafter
    from flarechat.engine.staging import Staging

DRAFTERS = {
    "none": ("flarechat.engine.drafters.none", "NoDrafter"),
    "copies": ("flarechat.engine.drafters.copies", "CopyDrafter"),
}


def make_drafter(
    name: str, slots: int, device: torch.device, staging: Staging | None = None
) -> Drafter:
    """The drafter called `name` for S slots. What it stages goes to `staging`, or on the CPU to
    a block of its own."""
    module, cls = DRAFTERS[name]
    drafter: Drafter = getattr(import_module(module), cls)(slots, device, staging=staging)
    return drafter


def blend(copies: Drafter, learned: LearnedDrafter) -> Drafter:
    """A drafter that offers copies, the chain of `learned`, or copies that the chain continues."""
    from flarechat.engine.drafters.blended import BlendedDrafter

    return BlendedDrafter(copies, learned)
