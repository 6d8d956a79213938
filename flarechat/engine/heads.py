"""From the draft heads found for a model to one that is loaded, or a sentence about each that is
not. Owns their price beside the model's: a head that does not fit is left out, not the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flarechat.engine.memory import admit
from flarechat.engine.weights.checkpoint import Checkpoint, SafetensorsFiles
from flarechat.errors import ModelError
from flarechat.models.sidecars import Sidecar, candidates, refusal, refusal_for
from flarechat.protocol import Boot, MtpInfo

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the model is run, and the bytes that were free before it was loaded."""

    device: torch.device
    dtype: str
    lanes: int
    context: int
    available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedHead:
    """A head ready to draft, as its recipe made it, what is told of it and its price."""

    head: Any
    info: MtpInfo
    priced: Mapping[str, int]


def admit_setup(prices: Mapping[str, int], setup: Setup) -> None:
    """Refuse prices that do not fit; "caches" are those of all lanes over the whole context."""
    per_token = prices["caches"] // setup.context
    context, lanes = setup.context, setup.lanes
    admit(prices, setup.available, context=context, lanes=lanes, per_token=per_token)


def load_head(
    boot: Boot, recipe: Any, target: Any, checkpoint: Checkpoint, prices: Mapping[str, int],
    setup: Setup, tell: Tell,
) -> LoadedHead | None:  # fmt: skip
    """The head to draft with for `target`, or None; `tell` hears of those that are left out.

    `prices` are the model's own. A recipe whose heads may lie in the checkpoint finds them itself.
    """
    if not boot.mtp:
        return None
    asked = Path(boot.mtp_file) if boot.mtp_file else None
    if not hasattr(recipe, "load_head"):
        if asked:
            tell(refusal(asked, "models of this family take no head").message)
        return None
    model, fingerprint = Path(boot.model), checkpoint.fingerprint
    if hasattr(recipe, "find_heads"):
        own = checkpoint.config, checkpoint.tensors
        found = recipe.find_heads(*own, model, asked, fingerprint, tell)
    else:
        found = (
            (sidecar, SafetensorsFiles(dict.fromkeys(sidecar.tensors, sidecar.path)))
            for sidecar in candidates(model, fingerprint, explicit=asked, refused=tell)
        )
    return _first_that_loads(recipe, target, found, prices, setup, tell)


def _first_that_loads(
    recipe: Any, target: Any, found: Iterable[tuple[Sidecar, Any]], prices: Mapping[str, int],
    setup: Setup, tell: Tell,
) -> LoadedHead | None:  # fmt: skip
    for sidecar, tensors in found:
        try:
            own = _price(recipe, target.args, sidecar.record, tensors, setup)
            _admit_beside(prices, own, setup)
            head = recipe.load_head(
                target, sidecar.record, tensors, dtype=setup.dtype, device=setup.device
            )
        except ModelError as error:
            tell(refusal_for(sidecar.path, error).message)
            continue
        info = _describe(sidecar, target.args.vocab_size)
        return LoadedHead(head=head, info=info, priced=own)
    return None


def _price(
    recipe: Any, args: Any, record: Mapping[str, Any], tensors: Any, setup: Setup
) -> Mapping[str, int]:
    """A head's bytes, by the file where its recipe keeps weights as they are stored."""
    lanes, context, dtype = setup.lanes, setup.context, setup.dtype
    if hasattr(recipe, "price_stored_head"):
        found: Mapping[str, int] = recipe.price_stored_head(
            args, record, tensors, slots=lanes, context=context, dtype=dtype
        )
        return found
    return recipe.price_head(args, record, lanes, context, dtype)  # type: ignore[no-any-return]


def _admit_beside(prices: Mapping[str, int], own: Mapping[str, int], setup: Setup) -> None:
    """Refuse a head whose weights and caches do not fit beside the model's."""
    caches = prices["caches"] + own["mtp caches"]
    both = {**prices, "mtp weights": own["mtp weights"], "caches": caches}
    try:
        admit_setup(both, setup)
    except ModelError as error:
        raise ModelError(f"With it t{error.message[1:]} {error.hint}") from None


def _describe(sidecar: Sidecar, vocabulary: int) -> MtpInfo:
    return MtpInfo(
        file=sidecar.path.name,
        draft_vocabulary=sidecar.draft_vocabulary or vocabulary,
        layers=sidecar.record["layers"],
        parameters=sidecar.parameters,
    )
