"""Where a Qwen3.8 target's MTP head lies, what it takes, and how it is put together.

A head is inside the checkpoint (tensors named "mtp."), or in a file or folder of its own: one that
flarechat's record names for this model, or any that the user points at. Its experts stay in the
format that they are stored in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flarechat.engine.recipes.qwen38.config import ModelArgs
from flarechat.engine.recipes.qwen38.model import Layer, Model
from flarechat.engine.recipes.qwen38.mtp import Feedback, MtpHead
from flarechat.engine.recipes.qwen38.parts import Parts
from flarechat.engine.recipes.qwen38.shapes import layer_shapes, residual_shapes
from flarechat.engine.recipes.qwen38.weights import COMPUTE, price_sparse
from flarechat.engine.state.hidden import TailState
from flarechat.engine.weights.checkpoint import SafetensorsFiles, open_safetensors
from flarechat.engine.weights.qwen38 import Qwen38Tensors, open_sidecar
from flarechat.errors import ModelError
from flarechat.models.sidecars import RECORD_KEY, Sidecar, candidates, refusal_for

SHARES = "index_share_for_mtp_iteration"
_HINT = "The chat goes on without MTP drafts; give another file with --mtp-file."
_LAYER = "mtp.layers.0"

Found = tuple[Sidecar, Mapping[str, Tensor] | Qwen38Tensors]


def head_shapes(args: ModelArgs) -> dict[str, tuple[int, ...]]:
    """Every tensor of a head by its logical name, the experts fused, with its shape."""
    dim = args.hidden_size
    named: dict[str, tuple[int, ...]] = {
        "mtp.fc_embedding.weight": (dim, dim),
        "mtp.fc_hidden.weight": (dim, dim),
        "mtp.pre_fc_norm_embedding.weight": (dim,),
        "mtp.pre_fc_norm_hidden.weight": (args.residual_size,),
    }
    mixer = residual_shapes(args, inject=False)
    named |= {f"mtp.hyper_connection_mixer.{name}": shape for name, shape in mixer.items()}
    layer = layer_shapes(args, linear=False)
    return named | {f"{_LAYER}.{name}": shape for name, shape in layer.items()}


def find_heads(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], model: Path, asked: Path | None,
    fingerprint: str, refused: Callable[[str], None],
) -> Iterator[Found]:  # fmt: skip
    """Every head for the checkpoint at `model`, the one to try first first, with its tensors: the
    one asked for, the one inside, those of files that name this model.

    `refused` hears a sentence about each that is left out.
    """
    args = ModelArgs.from_config(dict(config))
    if asked is not None and not _has_record(asked):
        try:
            yield _described(args, asked, open_sidecar(asked, config))
        except ModelError as error:
            refused(refusal_for(asked, error).message)
        asked = None
    elif asked is not None:
        yield from _recorded(args, model, asked, fingerprint, refused)
    named = Qwen38Tensors(tensors, config)
    if named.has_mtp:
        share = config.get(SHARES) is True
        yield _described(args, model, named, {SHARES: share})
    yield from _recorded(args, model, None, fingerprint, refused)


def _recorded(
    args: ModelArgs, model: Path, asked: Path | None, fingerprint: str,
    refused: Callable[[str], None],
) -> Iterator[Found]:  # fmt: skip
    for sidecar in candidates(model, fingerprint, explicit=asked, refused=refused):
        files = SafetensorsFiles(dict.fromkeys(sidecar.tensors, sidecar.path))
        yield _described(args, sidecar.path, _reader(args, files), sidecar.record)


def _reader(args: ModelArgs, tensors: Mapping[str, Tensor]) -> Qwen38Tensors:
    sizes = {"num_experts": args.num_experts, "num_hidden_layers": args.num_hidden_layers}
    return Qwen38Tensors(tensors, sizes)


def _has_record(path: Path) -> bool:
    """Whether this is a file with flarechat's own record."""
    if path.is_dir() or not path.exists():
        return not path.exists()  # what does not exist is refused in the common words
    try:
        return RECORD_KEY in (open_safetensors(path).metadata() or {})
    except ModelError:
        return True


def _described(
    args: ModelArgs, path: Path, named: Qwen38Tensors, record: Mapping[str, Any] | None = None
) -> Found:
    """A head as the engine tells of it: counted by its values, however they are stored."""
    told = {
        "hidden_size": args.hidden_size,
        "layers": 1,
        "draft_vocabulary": None,
        **(record or {}),
    }
    return Sidecar(path=path, record=told, tensors=head_shapes(args)), named


def price_head(
    args: ModelArgs, record: Mapping[str, Any], slots: int, context: int, dtype: str
) -> dict[str, int]:
    """Bytes of a head of the target `args` before anything is allocated, its experts not packed.

    "mtp weights" counts its own tensors and its copy of the output rows it drafts from, "mtp
    caches" its rows and the residual of the last token of all slots.
    """
    compute, ids = COMPUTE[dtype], len(record.get("draft_vocabulary") or ())
    own = sum(math.prod(shape) for shape in head_shapes(args).values()) + ids * args.hidden_size
    rows = price_sparse(args, 1, slots, context, compute)
    tail = TailState.price(slots, args.residual_size, compute)
    weights = own * compute.itemsize + ids * torch.int64.itemsize
    return {"mtp weights": weights, "mtp caches": rows + tail}


def load_head(
    target: Model, record: Mapping[str, Any], tensors: Mapping[str, Tensor] | Qwen38Tensors, *,
    dtype: str, device: torch.device,
) -> MtpHead:  # fmt: skip
    """Build the head of `target`. What does not fit, tensors missing, surplus or misshaped
    included, is a ModelError."""
    args, alone = target.args, not isinstance(tensors, Qwen38Tensors)
    named = tensors if isinstance(tensors, Qwen38Tensors) else _reader(args, tensors)
    for key, wanted in (("hidden_size", args.hidden_size), ("layers", 1)):
        if record.get(key, wanted) != wanted:
            raise _refusal(f"has {key} = {record[key]!r}; the model takes {wanted}")
    parts = Parts(args, named, head_shapes(args), COMPUTE[dtype], device)
    layer = Layer(
        parts.residual(f"{_LAYER}.attn_hyper_connection"),
        parts.sparse(f"{_LAYER}.self_attn"),
        0,
        parts.residual(f"{_LAYER}.mlp_hyper_connection"),
        parts.moe(f"{_LAYER}.mlp"),
    )
    feedback = Feedback(
        parts.norm("mtp.pre_fc_norm_hidden"),
        parts.norm("mtp.pre_fc_norm_embedding"),
        parts.linear("mtp.fc_hidden"),
        parts.linear("mtp.fc_embedding"),
        args.hc_count,
    )
    mixer = parts.residual("mtp.hyper_connection_mixer", inject=False)
    named.require_all_used(mtp=True)
    if alone:
        named.require_all_used(mtp=False)
    return MtpHead(
        target, feedback, layer, mixer, _vocabulary(record, args, device),
        shares_choice=record.get(SHARES) is True,
    )  # fmt: skip


def _vocabulary(record: Mapping[str, Any], args: ModelArgs, device: torch.device) -> Tensor | None:
    """The tokens to draft, rising; None is all of them."""
    ids = record.get("draft_vocabulary")
    if ids is None:
        return None
    rising = all(a < b for a, b in pairwise(ids))
    if not ids or not rising or ids[0] < 0 or ids[-1] >= args.vocab_size:
        raise _refusal(f"does not draft rising tokens of the model's {args.vocab_size}")
    return torch.tensor(ids, device=device)


def _refusal(what: str) -> ModelError:
    return ModelError(f"The MTP head {what}.", _HINT)
