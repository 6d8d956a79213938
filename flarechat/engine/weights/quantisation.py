"""What a checkpoint's configuration says of its packed tensors: the quantisation map.

Owns the reading of `quantization_config`. The tensors' own types decide how they are decoded; the
map is a second witness, and one that contradicts them is an error. Modules that it does not name
may be stored in any way. A draft layer is named there by its own number or by that after the
target's last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flarechat.engine.weights.formats import (
    FP8_BLOCKS,
    FP8_TENSOR,
    FP8_TILE,
    HINT,
    MXFP8,
    MXFP8_GROUP,
    NVFP4,
    NVFP4_GROUP,
)
from flarechat.errors import ModelError

_GROUPS = {NVFP4: NVFP4_GROUP, MXFP8: MXFP8_GROUP}
_ENCODINGS = (None, "csf")


class QuantisationMap:
    """The formats that a configuration claims; `layers` are those of the target."""

    def __init__(self, quantisation: Mapping[str, Any], layers: int) -> None:
        if not isinstance(quantisation, Mapping):
            raise ModelError(
                f"The model's config has quantization_config = {quantisation!r}.", HINT
            )
        listed = quantisation.get("quantized_layers") or {}
        if not isinstance(listed, Mapping):
            raise ModelError(f"The quantized_layers of the configuration are {listed!r}.", HINT)
        block = quantisation.get("weight_block_size")
        if block is not None and block not in ([FP8_TILE] * 2, (FP8_TILE,) * 2):
            raise ModelError(f"The model has weight blocks of {block}, not of 128 by 128.", HINT)
        self._claims: dict[str, tuple[str, ...]] = {}
        for name, entry in listed.items():
            own = stripped(name)
            alias = f"mtp.layers.{layers}."
            if f"{own}.".startswith(alias):
                own = f"mtp.layers.0.{own[len(alias) :]}".rstrip(".")
            self._claims[own] = _kinds(name, entry)

    def require(self, module: str, kind: str) -> None:
        """Refuse a module that is stored as `kind` ("dense" among them) and claimed otherwise."""
        claimed = self._claimed(module)
        if claimed and kind not in claimed:
            raise ModelError(
                f"The configuration says that {module} is {' or '.join(claimed)}, "
                f"and its tensors are {kind}.",
                HINT,
            )

    def _claimed(self, module: str) -> tuple[str, ...]:
        """The claim for the module, or for all experts it is one of; () without any."""
        experts = module.partition(".experts.")
        around = f"{experts[0]}.experts" if experts[1] else ""
        return self._claims.get(module) or self._claims.get(around, ())


def stripped(name: str) -> str:
    """A name without the prefixes that families of files put before the text model's."""
    for prefix in ("model.language_model.", "language_model.model.", "language_model.", "model."):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _kinds(name: str, entry: Any) -> tuple[str, ...]:
    """The formats an entry allows, from its quant_algo."""
    found = entry.get("quant_algo") if isinstance(entry, Mapping) else None
    algorithm = str(found).upper()
    if "NVFP4" in algorithm:
        kinds: tuple[str, ...] = (NVFP4,)
    elif "MXFP8" in algorithm:
        kinds = (MXFP8,)
    elif "FP8" in algorithm:
        kinds = (FP8_TENSOR, FP8_BLOCKS)
    else:
        return (f"{found!r}",)  # no format of ours, so an error where the module is needed
    size, encoding = entry.get("group_size"), entry.get("weight_scale_encoding")
    if size is not None and size != _GROUPS.get(kinds[0], size):
        raise ModelError(f"The groups of {name} have {size} values, not {_GROUPS[kinds[0]]}.", HINT)
    if encoding not in _ENCODINGS:
        raise ModelError(f"The scales of {name} are encoded as {encoding!r}, an unknown way.", HINT)
    return kinds
