"""Layers put together from a checkpoint's tensors, for the target and for its draft head.

Owns which tensor goes where, in which dtype. Names and formats of files are `weights.qwen38`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from flarechat.engine.layers.experts import Experts, hold_experts
from flarechat.engine.layers.gated_delta import GatedDelta
from flarechat.engine.layers.hyper import GatedResidual
from flarechat.engine.layers.linear import DenseLinear, Linear
from flarechat.engine.layers.mlp import MLP
from flarechat.engine.layers.moe import MoE, Router
from flarechat.engine.layers.ngram import Ngram, NgramHash, Table
from flarechat.engine.layers.ngram_table import NgramTable
from flarechat.engine.layers.offset_norm import GatedNorm, OffsetRMSNorm
from flarechat.engine.layers.sparse_attention import Indexer, SparseAttention
from flarechat.engine.recipes.qwen38.config import ModelArgs
from flarechat.engine.state.recurrent import DeltaShape
from flarechat.engine.weights.formats import Packed
from flarechat.engine.weights.qwen38 import Qwen38Tensors
from flarechat.errors import ModelError

_REMEDY = "The checkpoint is damaged or of another family; download it again."


def delta_shape(args: ModelArgs) -> DeltaShape:
    """Heads of the recurrences."""
    return DeltaShape(
        args.linear_num_key_heads, args.linear_num_value_heads,
        args.linear_key_head_dim, args.linear_value_head_dim,
    )  # fmt: skip


class Parts:
    """Puts layers together from a checkpoint, in the dtype they are computed with, on a device.

    `shapes` are those its tensors must have.
    """

    def __init__(
        self, args: ModelArgs, tensors: Qwen38Tensors, shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        self.args, self.tensors, self.shapes = args, tensors, shapes
        self.dtype, self.device = dtype, device

    def weight(self, module: str) -> Tensor:
        """The weight of a module as it is computed with."""
        found = self._checked(f"{module}.weight", self.tensors.dense(module))
        return found.to(device=self.device, dtype=self.dtype)

    def linear(self, *modules: str) -> Linear:
        """The product with these modules' weights, one below the other."""
        found = [self.weight(module) for module in modules]
        return DenseLinear(torch.cat(found) if len(found) > 1 else found[0])

    def norm(self, module: str, groups: int = 1) -> OffsetRMSNorm:
        """A norm whose weight is stored as its distance from one."""
        name = f"{module}.weight"
        weight = self._checked(name, self.tensors.norm(name)).to(self.device)
        return OffsetRMSNorm(weight, self.args.rms_norm_eps, groups)

    def residual(self, base: str, *, inject: bool = True) -> GatedResidual:
        """A gated residual; without `inject` it only mixes."""
        return GatedResidual(
            self.norm(f"{base}.hc_norm", self.args.hc_count),
            self.linear(f"{base}.input_mix_weight_down"),
            self.linear(f"{base}.input_mix_weight_up"),
            self.linear(f"{base}.block_inject_weight") if inject else None,
            self.args.hc_count,
        )

    def delta(self, base: str) -> GatedDelta:
        """A recurrence."""
        args = self.args
        return GatedDelta(
            delta_shape(args),
            self.linear(f"{base}.in_proj_qkv"),
            self.linear(f"{base}.in_proj_z"),
            self.linear(f"{base}.in_proj_a"),
            self.linear(f"{base}.in_proj_b"),
            self.weight(f"{base}.conv1d")[:, 0],
            self._plain(f"{base}.A_log"),
            self._plain(f"{base}.dt_bias"),
            GatedNorm(self.weight(f"{base}.norm"), args.rms_norm_eps, args.output_gate_type),
            self.linear(f"{base}.out_proj"),
        )

    def sparse(self, base: str) -> SparseAttention:
        """Sparse attention with its indexer."""
        args = self.args
        indexer = Indexer(
            self.linear(f"{base}.indexer.index_qk_proj"),
            self.norm(f"{base}.indexer.q_layernorm"),
            self.norm(f"{base}.indexer.k_layernorm"),
            args.indexer_n_heads,
            args.indexer_budget,
            args.indexer_compress_ratio,
        )
        q, k, v, out = (self.linear(f"{base}.{name}_proj") for name in "qkvo")
        norms = self.norm(f"{base}.q_norm"), self.norm(f"{base}.k_norm")
        return SparseAttention(q, k, v, out, *norms, indexer, args.head_dim)

    def moe(self, base: str) -> MoE:
        """A mixture of experts."""
        args, shared = self.args, f"{base}.shared_expert"
        return MoE(
            Router(
                self.linear(f"{base}.gate"), args.num_experts_per_tok,
                renormalise=args.norm_topk_prob,
            ),
            self.experts(f"{base}.experts"),
            MLP(
                self.linear(f"{shared}.gate_proj", f"{shared}.up_proj"),
                self.linear(f"{shared}.down_proj"),
            ),
            self.linear(f"{base}.shared_expert_gate"),
        )  # fmt: skip

    def experts(self, base: str) -> Experts:
        """The experts, in the storage that their file has."""
        gate_up, down = self.tensors.experts(base, self.device)
        return hold_experts(
            self._held(f"{base}.gate_up_proj", gate_up), self._held(f"{base}.down_proj", down)
        )

    def table(self, base: str) -> Table:
        """The n-gram table, which stays on the host as its file has it."""
        parts, name = self.tensors.table(base), f"{base}.weight"
        table = NgramTable(parts, dtype=self.dtype, device=self.device)
        if (table.rows, table.width) != self.shapes[name]:
            raise self._misshaped(name, (table.rows, table.width))
        return table

    def ngram(self, base: str) -> Ngram:
        """The n-gram module, whose hash must be the one the checkpoint was trained with."""
        args, inside = self.args, f"{base}.ple_embedding"
        hashing = NgramHash(
            args.vocab_size, args.eos_token_id, args.ngram_heads, args.ngram_vocab_size_base,
            args.seed, self.device,
        )  # fmt: skip
        own = {
            "layer_multipliers": hashing.multipliers,
            "ngram_heads_vocab_sizes": hashing.moduli,
            "ngram_heads_offsets": hashing.offsets,
        }
        for name, values in own.items():
            stored = self._checked(f"{inside}.{name}", self.tensors.raw(f"{inside}.{name}"))
            if stored.tolist() != values.tolist():
                raise ModelError(
                    f"The checkpoint's {name} are not those its config implies.", _REMEDY
                )
        names = ("norm_key", "norm_query", "norm_conv")
        key, query, conv = (self.norm(f"{base}.{name}", args.hc_count) for name in names)
        return Ngram(
            hashing,
            self.table(f"{inside}.ngram_embedding"),
            self.linear(f"{base}.key_proj"),
            self.linear(f"{base}.value_proj"),
            (key, query, conv),
            self.weight(f"{base}.conv1d")[:, 0],
            args.hc_count,
        )

    def _plain(self, name: str) -> Tensor:
        return self._checked(name, self.tensors.raw(name)).float().to(self.device)

    def _held(self, name: str, experts: Tensor | Packed) -> Tensor | Packed:
        """Experts on the device: floats as they are computed with, packed ones as they are."""
        if isinstance(experts, Tensor):
            return self._checked(name, experts).to(device=self.device, dtype=self.dtype)
        count, *inside, out, wide = experts.shape
        found = (count, math.prod(inside) * out, wide)
        if found != self.shapes[name]:
            raise self._misshaped(name, found)
        return experts.to(self.device)

    def _checked(self, name: str, tensor: Tensor) -> Tensor:
        if tuple(tensor.shape) != self.shapes[name]:
            raise self._misshaped(name, tuple(tensor.shape))
        return tensor

    def _misshaped(self, name: str, found: tuple[int, ...]) -> ModelError:
        return ModelError(f"The tensor {name} has shape {found}, not {self.shapes[name]}.", _REMEDY)
