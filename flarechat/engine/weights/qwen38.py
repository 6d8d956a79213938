"""The tensors of a Qwen3.8 checkpoint by their logical names, whatever format it stores them in.

Owns names (prefixes, fused experts or one by one, numbered shards), the dispatch on each tensor's
own type, and strictness: a packed tensor without its scale, a scale that belongs to nothing and a
name that nobody asked for are errors. Shapes of the model are the recipe's to check. Target names
begin after "model.language_model." ("layers.0.mlp.gate.weight"), the draft head's with "mtp.".

Scales for activations (`input_scale`) are ignored: activations are never packed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flarechat.engine.weights.folder import read_config, read_tensors
from flarechat.engine.weights.formats import (
    FP8,
    FP8_BLOCKS,
    FP8_TENSOR,
    FP8_TILE,
    HINT,
    MXFP8,
    MXFP8_GROUP,
    NVFP4,
    NVFP4_GROUP,
    Batch,
    Packed,
    decode_csf,
)
from flarechat.engine.weights.quantisation import QuantisationMap, stripped
from flarechat.errors import ModelError

DENSE = "dense"
MTP = "mtp."
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_BYTES = (torch.uint8, torch.float8_e8m0fnu)
_CSF = (".nvfp4_csf_fixed", ".nvfp4_csf_exceptions")
_IGNORED = ("visual.", "vision_tower.")
_OFFSET_NORMS = re.compile(
    r"(?:^|\.)(?:hc_norm|[qk]_norm|[qk]_layernorm|norm_key|norm_query|norm_conv"
    r"|pre_fc_norm_embedding|pre_fc_norm_hidden)\.weight$"
)
_FOLDED_MEAN, _FOLDED_NEGATIVE = 0.5, 0.02


class Qwen38Tensors:
    """A reader of `tensors`, which remembers what was asked for.

    `config` is a config.json, flat or with a text_config; its quantization_config is checked
    against what the tensors are.
    """

    def __init__(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        text = config.get("text_config") or config
        quantisation = config.get("quantization_config") or text.get("quantization_config") or {}
        self.claims = QuantisationMap(quantisation, text.get("num_hidden_layers", 0))
        self._experts = text.get("num_experts", 0)
        self._tensors, self._used = tensors, set[str]()
        self._stored = {stripped(name): name for name in tensors}
        if len(self._stored) < len(tensors):
            raise ModelError("The checkpoint has a tensor twice, under two prefixes.", HINT)
        self._folded: dict[bool, bool] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    @property
    def has_mtp(self) -> bool:
        """Whether the draft head is among the tensors."""
        return any(name.startswith(MTP) for name in self._stored)

    def raw(self, name: str) -> Tensor:
        """One tensor as stored; a missing one is a ModelError."""
        if name not in self._stored:
            raise ModelError(f"The checkpoint lacks the tensor {name}.", HINT)
        self._used.add(name)
        return self._tensors[self._stored[name]]

    def look(self, name: str) -> Tensor:
        """One tensor as stored, to see what it is; it does not count as asked for."""
        if name not in self._stored:
            raise ModelError(f"The checkpoint lacks the tensor {name}.", HINT)
        return self._tensors[self._stored[name]]

    @staticmethod
    def is_offset_norm(name: str) -> bool:
        """Whether this is the gain of a norm, stored as its distance from one."""
        return bool(_OFFSET_NORMS.search(name))

    def value(self, module: str) -> Tensor | Packed:
        """The weight of a module: a float tensor as stored, or a packed one with its scales."""
        weight, found = self.raw(f"{module}.weight"), None
        _require_rows(f"{module}.weight", weight)
        if weight.dtype == torch.uint8:
            found = self._nvfp4(module, weight)
        elif weight.dtype == FP8:
            found = self._fp8(module, weight)
        elif weight.dtype not in _FLOATS:
            raise ModelError(f"The tensor {module}.weight is {weight.dtype}, not a weight.", HINT)
        self.claims.require(module, found.kind if found else DENSE)
        if found and f"{module}.input_scale" in self:
            self._used.add(f"{module}.input_scale")
        return found or weight

    def dense(self, module: str) -> Tensor:
        """The weight of a module as floats; what is packed is decoded, to float32."""
        found = self.value(module)
        return found.decode() if isinstance(found, Packed) else found

    def norm(self, name: str) -> Tensor:
        """The float32 gain of a norm stored as its distance from one.

        A file whose writer has added the one is told by its norms, target and draft head apart:
        their mean is near one, and hardly any is negative.
        """
        group = name.startswith(MTP)
        if group not in self._folded:
            self._folded[group] = self._are_folded(group)
        weight = self.raw(name).float()
        return weight if self._folded[group] else 1.0 + weight

    def experts(
        self, base: str, device: torch.device | None = None
    ) -> tuple[Tensor | Packed, Tensor | Packed]:
        """Of "layers.0.mlp.experts": gate and up, and down, of all E experts, on a device.

        Floats are [E, 2 I, D], gate rows first, and [E, D, I]; packed ones have the values'
        shapes [E, 2, I, D] and [E, D, I], with scales of their own for gate and up.
        """
        place = device or torch.device("cpu")
        if f"{base}.gate_up_proj" in self:
            self.claims.require(base, DENSE)
            names = (f"{base}.gate_up_proj", f"{base}.down_proj")
            wide, narrow = (self._fused(name).to(place) for name in names)
            return wide, narrow
        count = self._experts
        self.raw(f"{base}.{count - 1}.down_proj.weight")  # before there is room made for so many
        wider = Batch(self.value(f"{base}.0.gate_proj"), (count, 2), place)
        narrower = Batch(self.value(f"{base}.0.down_proj"), (count,), place)
        for expert in range(count):
            own = f"{base}.{expert}"
            for half, name in enumerate(("gate", "up")):
                wider.put((expert, half), self.value(f"{own}.{name}_proj"))
            narrower.put((expert,), self.value(f"{own}.down_proj"))
        whole = wider.whole
        return whole.flatten(1, 2) if isinstance(whole, Tensor) else whole, narrower.whole

    def table(self, base: str) -> list[Tensor | Packed]:
        """The rows of "…ngram_embedding" as the checkpoint cuts them, in numeric order.

        Every part is [rows, width]; packed ones may share one scale.
        """
        if f"{base}.weight" in self:
            return [self._part(base, base)]
        inside = re.compile(re.escape(base) + r"\.shard_(\d+)\.weight")
        numbers = sorted(
            int(found[1]) for name in self._stored if (found := inside.fullmatch(name))
        )
        if not numbers or numbers != list(range(len(numbers))):
            raise ModelError(f"The checkpoint lacks parts of {base}: it has {numbers[:3]} …", HINT)
        parts = [self._part(base, f"{base}.shard_{number}") for number in numbers]
        held = [
            (part.kind, part.weight) if isinstance(part, Packed) else ("", part) for part in parts
        ]
        if len({(kind, weight.dtype, weight.shape[1]) for kind, weight in held}) > 1:
            raise ModelError(f"The parts of {base} differ in width or format.", HINT)
        return parts

    def require_all_used(self, *, mtp: bool) -> None:
        """Refuse tensors of the draft head, or of the target, that nothing has asked for."""
        left = sorted(
            name
            for name in self._stored.keys() - self._used
            if name.startswith(MTP) == mtp and not name.startswith(_IGNORED)
        )
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise ModelError(f"The checkpoint has the unexpected tensor {left[0]}{more}.", HINT)

    def _are_folded(self, mtp: bool) -> bool:
        names = [n for n in self._stored if n.startswith(MTP) == mtp and _OFFSET_NORMS.search(n)]
        if not names:
            return False
        every = torch.cat([self._tensors[self._stored[name]].float().view(-1) for name in names])
        negative = (every < 0).float().mean()
        return bool(every.mean() > _FOLDED_MEAN) and bool(negative < _FOLDED_NEGATIVE)

    def _fused(self, name: str) -> Tensor:
        found = self.raw(name)
        if found.dtype not in _FLOATS or found.dim() != 3:
            raise ModelError(
                f"The tensor {name} is {found.dtype} {tuple(found.shape)}; "
                f"packed experts are stored one by one.",
                HINT,
            )
        return found

    def _part(self, base: str, part: str) -> Tensor | Packed:
        """One part of a table, with its own scales or those of the whole."""
        weight = self.raw(f"{part}.weight")
        _require_rows(f"{part}.weight", weight, always=True)
        if weight.dtype in _FLOATS:
            return weight
        if weight.dtype == torch.uint8:
            shared = part if f"{part}.weight_scale_2" in self else base
            return self._nvfp4(part, weight, f"{shared}.weight_scale_2")
        if weight.dtype != FP8:
            raise ModelError(f"The tensor {part}.weight is {weight.dtype}.", HINT)
        shared = part if f"{part}.weight_scale" in self else base
        scale = self._scale(f"{part}.weight", (f"{shared}.weight_scale",))
        _require_shape(f"{shared}.weight_scale", scale.reshape(-1), (1,))
        return Packed(FP8_TENSOR, weight, scale.reshape(1))

    def _nvfp4(self, module: str, weight: Tensor, second: str = "") -> Packed:
        scale = self._block_scales(module, weight)
        second = second or f"{module}.weight_scale_2"
        scale_2 = self._scale(f"{module}.weight", (second,))
        *rows, half = weight.shape
        _require_shape(f"{module}.weight_scale", scale, (*rows, 2 * half // NVFP4_GROUP))
        _require_shape(second, scale_2.reshape(-1), (1,))
        if (2 * half) % NVFP4_GROUP or scale.dtype != FP8 or scale_2.dtype not in _FLOATS:
            raise ModelError(f"The scales of {module} are not those of nvfp4.", HINT)
        return Packed(NVFP4, weight, scale, scale_2.float().reshape(()))

    def _block_scales(self, module: str, weight: Tensor) -> Tensor:
        """The E4M3 scales of an nvfp4 matrix, unpacked if they are stored as CSF."""
        name = f"{module}.weight_scale"
        if any(name + end in self for end in _CSF):
            fixed, exceptions = (self.raw(name + end) for end in _CSF)
            return decode_csf(fixed, exceptions)
        return self._scale(f"{module}.weight", (name,))

    def _fp8(self, module: str, weight: Tensor) -> Packed:
        names = (f"{module}.weight_scale_inv", f"{module}.weight_scale")
        scale = self._scale(f"{module}.weight", names)
        out, wide = weight.shape[-2:]
        if scale.dtype in _BYTES:
            _require_shape(names[1], scale, (out, wide // MXFP8_GROUP))
            return Packed(MXFP8, weight, scale.view(torch.uint8))
        if scale.dtype not in _FLOATS:
            raise ModelError(f"The scales of {module} are {scale.dtype}.", HINT)
        if scale.numel() == 1 and names[0] not in self:
            return Packed(FP8_TENSOR, weight, scale.reshape(1))
        _require_shape(names[0], scale, (-(-out // FP8_TILE), -(-wide // FP8_TILE)))
        return Packed(FP8_BLOCKS, weight, scale)

    def _scale(self, weight: str, names: tuple[str, ...]) -> Tensor:
        """The scale of a packed tensor under the first of `names` that there is."""
        for name in names:
            if name in self:
                return self.raw(name)
        raise ModelError(f"The packed tensor {weight} has no scale {names[0]}.", HINT)


def open_sidecar(path: Path, target: Mapping[str, Any]) -> Qwen38Tensors:
    """The draft head in a file or folder of its own, for a target with the configuration `target`.

    What packs its tensors is told by the folder's own configuration, if it has one.
    """
    own = read_config(path if path.is_dir() else path.parent).get("quantization_config")
    text = target.get("text_config") or target
    found = Qwen38Tensors(read_tensors(path), {**text, "quantization_config": own or {}})
    if not found.has_mtp:
        raise ModelError(f"{path} has no tensors of a draft head.", "Give another one.")
    return found


def _require_rows(name: str, weight: Tensor, *, always: bool = False) -> None:
    """Refuse what is packed, or any weight, and is no matrix."""
    if weight.dim() != 2 and (always or weight.dtype in (torch.uint8, FP8)):
        raise ModelError(f"The tensor {name} is {tuple(weight.shape)}, no matrix.", HINT)


def _require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ModelError(f"The tensor {name} has shape {tuple(tensor.shape)}, not {shape}.", HINT)
