"""Which dtype a model is run in: the one asked for, or the best there is for its device, its family
and what its file holds. A dtype that cannot be had is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from flarechat.engine.kernels import cpu
from flarechat.engine.layers.linear import packed_half_available
from flarechat.errors import SettingsError
from flarechat.protocol import DTYPES, PACKED, STORED


def require(asked: str, device: torch.device) -> None:
    """Refuse a dtype that no model can be run in here."""
    if asked not in DTYPES:
        raise SettingsError(f"--dtype {asked} is unknown.", f"Use one of {', '.join(DTYPES)}.")
    if device.type == "cpu":
        cpu.library()  # A variable of its own that cannot be is refused now, not within an answer.
    if asked == PACKED and not _packs(device):
        raise _refusal(asked, "here", "It needs the CPU and a build of torch with fbgemm")
    if asked == STORED and device.type != "cpu":
        raise _refusal(asked, f"on {device.type}", "It needs the CPU")
    if asked == STORED and cpu.library() is None:
        raise _refusal(asked, "here", f"Its kernels are {cpu.reason()}")


def choose(
    asked: str, device: torch.device, recipe: Any, args: Any, tensors: Mapping[str, Tensor],
    tell: Callable[[str], None],
) -> str:  # fmt: skip
    """The dtype for a model of `recipe` with these tensors; `tell` hears what could be faster."""
    if asked == STORED:
        _require_stored(recipe, args, tensors)
    if asked == PACKED and not _takes_packed(recipe):
        raise SettingsError(
            f"--dtype {PACKED} is not available for this family.",
            "Use --dtype auto, float32 or bfloat16; its experts stay as their file packs them.",
        )
    if asked != "auto":
        return asked
    if device.type != "cpu":
        return "bfloat16"
    if hasattr(recipe, "unstorable") and recipe.unstorable(args, tensors) is None:
        if not (why := cpu.hindrance()):
            return STORED
        tell(f"Answers are slower than they could be: the CPU kernels are {why}.")
    return PACKED if _packs(device) and _takes_packed(recipe) else "float32"


def _require_stored(recipe: Any, args: Any, tensors: Mapping[str, Tensor]) -> None:
    if not hasattr(recipe, "unstorable"):
        raise _refusal(STORED, "for this family", "The CPU's kernels are for llamas")
    why = recipe.unstorable(args, tensors)
    if why is not None:
        raise _refusal(STORED, "for this model", why)


def _refusal(asked: str, where: str, why: str) -> SettingsError:
    return SettingsError(f"--dtype {asked} is not available {where}.", f"{why}; use --dtype auto.")


def _packs(device: torch.device) -> bool:
    return device.type == "cpu" and packed_half_available()


def _takes_packed(recipe: Any) -> bool:
    """Whether a family packs no weights itself."""
    return getattr(recipe, "PACKS_HALF", True)
