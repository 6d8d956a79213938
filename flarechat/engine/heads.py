"""From the draft heads found for a model to one that is loaded, or a sentence about each that is
not. Owns their price beside the model's: a head that does not fit is left out, not the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flarechat.engine.memory import Quote, Terms, admit
from flarechat.engine.weights.checkpoint import Checkpoint, SafetensorsFiles
from flarechat.errors import ModelError
from flarechat.models.sidecars import Sidecar, candidates, refusal, refusal_for
from flarechat.protocol import SPECULATIVE_TOKENS, Boot, MtpInfo

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the model is run, and the bytes that were free before it was loaded. `capacity` is the
    most tokens that a round verifies."""

    device: torch.device
    dtype: str
    lanes: int
    context: int
    available: int
    capacity: int = SPECULATIVE_TOKENS

    def terms(self, *, mtp: bool = False) -> Terms:
        """What its bytes depend on."""
        return Terms(capacity=self.capacity, mtp=mtp, context=self.context, lanes=self.lanes)

    def under(self, terms: Terms) -> Setup:
        """The same under other terms."""
        return replace(self, capacity=terms.capacity, context=terms.context, lanes=terms.lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedHead:
    """A head ready to draft, as its recipe made it, what is told of it and its price; `identity`
    is a digest that another head's file would not have."""

    head: Any
    info: MtpInfo
    identity: str
    priced: Mapping[str, int]


def load_head(
    boot: Boot, recipe: Any, target: Any, checkpoint: Checkpoint, quote: Quote, setup: Setup,
    tell: Tell,
) -> LoadedHead | None:  # fmt: skip
    """The head to draft with for `target`, or None; `tell` hears of those that are left out.

    `quote` has the prices of all but the head. A recipe whose heads may lie in the checkpoint
    finds them itself.
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
    return _first_that_loads(recipe, target, found, quote, setup, tell)


def _first_that_loads(
    recipe: Any, target: Any, found: Iterable[tuple[Sidecar, Any]], quote: Quote, setup: Setup,
    tell: Tell,
) -> LoadedHead | None:  # fmt: skip
    for sidecar, tensors in found:
        try:
            price = partial(_price, recipe, target, sidecar.record, tensors)
            own = price(setup)
            _admit_beside(quote, price, setup)
            head = recipe.load_head(
                target, sidecar.record, tensors, dtype=setup.dtype, device=setup.device
            )
        except ModelError as error:
            tell(refusal_for(sidecar.path, error).message)
            continue
        info = _describe(sidecar, target.args.vocab_size)
        return LoadedHead(head=head, info=info, identity=_identity(sidecar), priced=own)
    return None


def _price(
    recipe: Any, target: Any, record: Mapping[str, Any], tensors: Any, setup: Setup
) -> Mapping[str, int]:
    """A head's bytes, by the file where its recipe keeps weights as they are stored."""
    lanes, context, dtype = setup.lanes, setup.context, setup.dtype
    if hasattr(recipe, "price_stored_head"):
        found: Mapping[str, int] = recipe.price_stored_head(
            target.args, record, tensors, slots=lanes, context=context, dtype=dtype
        )
        return found
    found = recipe.price_head(target.args, record, lanes, context, dtype, target=target)
    return found


def _admit_beside(quote: Quote, price: Callable[[Setup], Mapping[str, int]], setup: Setup) -> None:
    """Refuse a head whose weights and caches do not fit beside all else."""

    def both(terms: Terms) -> Mapping[str, int]:
        prices = dict(quote(terms))
        if terms.mtp:
            own = price(setup.under(terms))
            prices["mtp weights"] = own["mtp weights"]
            prices["caches"] += own["mtp caches"]
        return prices

    try:
        admit(both, setup.terms(mtp=True), setup.available)
    except ModelError as error:
        raise ModelError(f"With it t{error.message[1:]} {error.hint}") from None


def _identity(sidecar: Sidecar) -> str:
    """By its record and by when its file was written: weights are too many to read once more."""
    file = sidecar.path.stat()
    told = f"{sidecar.record}|{file.st_size}|{file.st_mtime_ns}"
    return hashlib.sha256(told.encode()).hexdigest()


def _describe(sidecar: Sidecar, vocabulary: int) -> MtpInfo:
    return MtpInfo(
        file=sidecar.path.name,
        draft_vocabulary=sidecar.draft_vocabulary or vocabulary,
        layers=sidecar.record["layers"],
        parameters=sidecar.parameters,
    )
