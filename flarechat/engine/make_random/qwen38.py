"""The tensors of a Qwen3.8-Flash-Next checkpoint: names, shapes and formats, file by file.

Owns that list, written down apart from the loader's, so that each checks the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from flarechat.engine.layers import ngram
from flarechat.engine.make_random.geometry import TARGET, Wanted, narrow, sizes
from flarechat.engine.make_random.shards import Group, Item
from flarechat.engine.make_random.stored import TABLE_SCALE, Drawn, Draws

_FILE_BYTES = 4 << 30
# What makes a random model worth drafting for: after a token its successor is likely, and the
# draft head sees which token it was. With the real sizes most drafts are right, but not all.
_HEAD_GAIN, _CARRY = 4.0, 4.0
_ORDER = {"tiny": 40.0, "real": 1.6}
_SEED = 1234  # of the hash, where a config names none
# Of routed experts, the n-gram table and the MTP layer's experts; see stored.py.
_FORMS = {
    "bf16": ("bf16", "bf16", "bf16"),
    "fp8": ("fp8", "fp8", "fp8"),
    "nvfp4": ("nvfp4", "fp8", "bf16"),
    "nvfp4-mtp-fp8": ("nvfp4", "fp8", "fp8"),
    "fp4-local": ("csf", "nvfp4", "nvfp4-a16"),
}
_BYTES = {"bf16": 2.0, "fp8": 1.001, "nvfp4": 0.5626, "csf": 0.5626, "nvfp4-a16": 0.5626}


@dataclass(frozen=True)
class Tensors:
    """All tensors of one wanted checkpoint."""

    wanted: Wanted
    text: dict[str, Any]
    draws: Draws

    @classmethod
    def of(cls, wanted: Wanted) -> Tensors:
        return cls(wanted, sizes(wanted), Draws(wanted.seed))

    def groups(self) -> list[Group]:
        """The files of the target, and of the MTP head if it lies inside."""
        found = [Group(8, self._outer)]
        found += [Group(self._bound, partial(self._layer, n)) for n in range(self.wanted.layers)]
        shards = range(self.text["split_ngram_parts"])
        rows, width = self._table.shape
        some = max(1, int(_FILE_BYTES // (rows * width * _BYTES[self._forms[1]])))
        for first in range(0, len(shards), some):
            own = shards[first : first + some]
            found.append(Group(3 * len(own) + 4, partial(self._shards, own)))
        return found + ([self.head()] if self.wanted.mtp == "inside" else [])

    def head(self) -> Group:
        """The MTP head."""
        return Group(self._bound, self._mtp)

    @property
    def bytes(self) -> int:
        """What all of it takes on a disk, a little more rather than less."""
        a, (experts, table, mtp) = self.text, self._forms
        routed = 3 * a["num_experts"] * a["moe_intermediate_size"] * a["hidden_size"]
        rows = self._table.numel * a["split_ngram_parts"]
        values = routed * self.wanted.layers * _BYTES[experts] + rows * _BYTES[table]
        dense = 2 * a["vocab_size"] * a["hidden_size"]
        for n in range(self.wanted.layers):
            dense += sum(drawn.numel for drawn in self._dense_layer(n).values())
        if self.wanted.mtp != "none":
            values += routed * _BYTES[mtp]
            dense += sum(drawn.numel for drawn in self._dense_mtp().values())
        files = 3 * (self.wanted.layers + 8)
        return int(1.01 * values + 2.02 * dense) + files * 256 * self._bound

    # What there is, dense.

    @property
    def _bound(self) -> int:
        """More tensors than any file has."""
        return 64 + 12 * int(self.text["num_experts"])

    @property
    def _forms(self) -> tuple[str, str, str]:
        return _FORMS[self.wanted.format]

    @property
    def _table(self) -> Drawn:
        """One shard of the n-gram table."""
        a = self.text
        heads = (a["ngram_size"] - 1) * a["heads_per_ngram"]
        rows = ngram.table_rows(
            a["ngram_vocab_size_base"], heads, a["make_ngram_vocab_size_divisible_by"]
        )
        return Drawn((rows // a["split_ngram_parts"], a["ple_embed_dim"] // heads), "table")

    def _hyper(self, base: str, *, inject: bool = True) -> dict[str, Drawn]:
        a = self.text
        streams, low = a["hc_count"], a["hc_lowrank"]
        wide = streams * a["hidden_size"]
        found = {
            f"{base}.hc_norm.weight": Drawn((wide,), "norm"),
            f"{base}.input_mix_weight_down.weight": Drawn((low, wide)),
            f"{base}.input_mix_weight_up.weight": Drawn((wide, low)),
        }
        return found | (
            {f"{base}.block_inject_weight.weight": Drawn((streams, wide))} if inject else {}
        )

    def _recurrence(self, base: str) -> dict[str, Drawn]:
        a = self.text
        dim, heads = a["hidden_size"], a["linear_num_value_heads"]
        values = heads * a["linear_value_head_dim"]
        channels = 2 * a["linear_num_key_heads"] * a["linear_key_head_dim"] + values
        return {
            f"{base}.in_proj_qkv.weight": Drawn((channels, dim)),
            f"{base}.in_proj_z.weight": Drawn((values, dim)),
            f"{base}.in_proj_a.weight": Drawn((heads, dim)),
            f"{base}.in_proj_b.weight": Drawn((heads, dim)),
            f"{base}.conv1d.weight": Drawn((channels, 1, a["linear_conv_kernel_dim"]), "conv"),
            f"{base}.A_log": Drawn((heads,), "decay"),
            f"{base}.dt_bias": Drawn((heads,), "bias"),
            f"{base}.norm.weight": Drawn((a["linear_value_head_dim"],), "scale"),
            f"{base}.out_proj.weight": Drawn((dim, values)),
        }

    def _attention(self, base: str) -> dict[str, Drawn]:
        a = self.text
        dim, head, inner = a["hidden_size"], a["head_dim"], a["indexer_head_dim"]
        queries, pairs = a["num_attention_heads"] * head, a["num_key_value_heads"] * head
        return {
            f"{base}.q_proj.weight": Drawn((2 * queries, dim)),
            f"{base}.k_proj.weight": Drawn((pairs, dim)),
            f"{base}.v_proj.weight": Drawn((pairs, dim)),
            f"{base}.o_proj.weight": Drawn((dim, queries)),
            f"{base}.q_norm.weight": Drawn((head,), "norm"),
            f"{base}.k_norm.weight": Drawn((head,), "norm"),
            f"{base}.indexer.index_qk_proj.weight": Drawn(
                ((a["indexer_n_heads"] + 1) * inner, dim)
            ),
            f"{base}.indexer.q_layernorm.weight": Drawn((inner,), "norm"),
            f"{base}.indexer.k_layernorm.weight": Drawn((inner,), "norm"),
        }

    def _mixture(self, base: str) -> dict[str, Drawn]:
        """The dense part of a mixture of experts."""
        a = self.text
        dim, inner = a["hidden_size"], a["shared_expert_intermediate_size"]
        return {
            f"{base}.gate.weight": Drawn((a["num_experts"], dim)),
            f"{base}.shared_expert.gate_proj.weight": Drawn((inner, dim)),
            f"{base}.shared_expert.up_proj.weight": Drawn((inner, dim)),
            f"{base}.shared_expert.down_proj.weight": Drawn((dim, inner)),
            f"{base}.shared_expert_gate.weight": Drawn((1, dim)),
        }

    def _ngrams(self, base: str) -> dict[str, Drawn]:
        a = self.text
        dim = a["hidden_size"]
        wide = a["hc_count"] * dim
        return {
            f"{base}.key_proj.weight": Drawn((wide, a["ple_embed_dim"])),
            f"{base}.value_proj.weight": Drawn((dim, a["ple_embed_dim"])),
            f"{base}.conv1d.weight": Drawn((wide, 1, a["ple_conv_kernel_size"]), "conv"),
            f"{base}.norm_key.weight": Drawn((wide,), "norm"),
            f"{base}.norm_query.weight": Drawn((wide,), "norm"),
            f"{base}.norm_conv.weight": Drawn((wide,), "norm"),
        }

    def _dense_layer(self, n: int) -> dict[str, Drawn]:
        base = f"{TARGET}layers.{n}"
        found = self._hyper(f"{base}.attn_hyper_connection")
        found |= self._hyper(f"{base}.mlp_hyper_connection")
        linear = self.text["layer_types"][n] == "linear_attention"
        found |= (
            self._recurrence(f"{base}.linear_attn")
            if linear
            else self._attention(f"{base}.self_attn")
        )
        found |= self._mixture(f"{base}.mlp")
        with_table = n + 1 in self.text["ple_layer_ids"]
        return found | (self._ngrams(f"{base}.ple") if with_table else {})

    def _dense_mtp(self) -> dict[str, Drawn]:
        dim = self.text["hidden_size"]
        wide = self.text["hc_count"] * dim
        base = "mtp.layers.0"
        found = {
            "mtp.fc_embedding.weight": Drawn((dim, dim), gain=0.5, identity=_CARRY),
            "mtp.fc_hidden.weight": Drawn((dim, dim), gain=0.5),
            "mtp.pre_fc_norm_embedding.weight": Drawn((dim,), "norm"),
            "mtp.pre_fc_norm_hidden.weight": Drawn((wide,), "norm"),
        }
        found |= self._hyper("mtp.hyper_connection_mixer", inject=False)
        found |= self._hyper(f"{base}.attn_hyper_connection")
        found |= self._hyper(f"{base}.mlp_hyper_connection")
        return found | self._attention(f"{base}.self_attn") | self._mixture(f"{base}.mlp")

    # What a file has, as stored.

    def _outer(self) -> Iterator[Item]:
        a = self.text
        shape = (a["vocab_size"], a["hidden_size"])
        name, root = f"{TARGET}embed_tokens.weight", math.sqrt(a["hidden_size"])
        head = Drawn(shape, gain=_HEAD_GAIN, follows=name, by=_ORDER[self.wanted.geometry])
        yield self.draws.dense(name, Drawn(shape, gain=root / 4))
        yield self.draws.dense("lm_head.weight", head)
        mixer = self._hyper(f"{TARGET}hyper_connection_mixer", inject=False)
        for name, drawn in mixer.items():
            yield self.draws.dense(name, drawn)

    def _layer(self, n: int) -> Iterator[Item]:
        dense = self._dense_layer(n)
        packed = {f"{module}.weight" for module in narrow(self.wanted, n)}
        for name, drawn in dense.items():
            if name not in packed:
                yield self.draws.dense(name, drawn)
        for name in sorted(packed):
            yield from self.draws.mxfp8(name, dense[name])
        yield from self._experts(f"{TARGET}layers.{n}.mlp.experts", self._forms[0])

    def _mtp(self) -> Iterator[Item]:
        for name, drawn in self._dense_mtp().items():
            yield self.draws.dense(name, drawn)
        yield from self._experts("mtp.layers.0.mlp.experts", self._forms[2])

    def _experts(self, base: str, form: str) -> Iterator[Item]:
        a = self.text
        yield from self.draws.experts(
            base, a["num_experts"], a["moe_intermediate_size"], a["hidden_size"], form
        )

    def _shards(self, numbers: range) -> Iterator[Item]:
        a, form = self.text, self._forms[1]
        base = f"{TARGET}layers.{a['ple_layer_ids'][0] - 1}.ple.ple_embedding"
        if numbers.start == 0:
            yield from self._constants(base)
        for shard in numbers:
            yield from self.draws.shard(
                f"{base}.ngram_embedding.shard_{shard}.weight", self._table, form
            )
        if numbers.stop == a["split_ngram_parts"] and form == "fp8":
            yield f"{base}.ngram_embedding.weight_scale", TABLE_SCALE

    def _constants(self, base: str) -> Iterator[Item]:
        """The numbers of the hash, which a loader computes itself and compares."""
        a = self.text
        heads = (a["ngram_size"] - 1) * a["heads_per_ngram"]
        moduli = ngram.moduli(a["ngram_vocab_size_base"], heads)
        offsets = [sum(moduli[:n]) for n in range(heads)]
        multipliers = ngram.multipliers(a["vocab_size"], _SEED)
        yield f"{base}.layer_multipliers", torch.tensor(multipliers)
        yield f"{base}.ngram_heads_vocab_sizes", torch.tensor(moduli)
        yield f"{base}.ngram_heads_offsets", torch.tensor(offsets)
