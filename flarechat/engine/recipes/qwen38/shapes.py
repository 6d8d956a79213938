"""The tensors of a Qwen3.8 checkpoint that its sizes imply, by logical name: no more and no less.

The draft head has the same residuals, attention and experts under names of its own.
"""

from __future__ import annotations

from flarechat.engine.layers.ngram import table_rows
from flarechat.engine.recipes.qwen38.config import LINEAR, ModelArgs


def residual_shapes(args: ModelArgs, *, inject: bool) -> dict[str, tuple[int, ...]]:
    """Every tensor of one gated residual, with its shape."""
    wide = args.residual_size
    named: dict[str, tuple[int, ...]] = {
        "hc_norm.weight": (wide,),
        "input_mix_weight_down.weight": (args.hc_lowrank, wide),
        "input_mix_weight_up.weight": (wide, args.hc_lowrank),
    }
    return named | ({"block_inject_weight.weight": (args.hc_count, wide)} if inject else {})


def delta_shapes(args: ModelArgs) -> dict[str, tuple[int, ...]]:
    """Every tensor of one recurrence."""
    dim, heads = args.hidden_size, args.linear_num_value_heads
    return {
        "in_proj_qkv.weight": (args.conv_channels, dim),
        "in_proj_z.weight": (args.value_size, dim),
        "in_proj_a.weight": (heads, dim),
        "in_proj_b.weight": (heads, dim),
        "conv1d.weight": (args.conv_channels, 1, args.linear_conv_kernel_dim),
        "A_log": (heads,),
        "dt_bias": (heads,),
        "norm.weight": (args.linear_value_head_dim,),
        "out_proj.weight": (dim, args.value_size),
    }


def sparse_shapes(args: ModelArgs) -> dict[str, tuple[int, ...]]:
    """Every tensor of one sparse attention."""
    dim, head, index = args.hidden_size, args.head_dim, args.indexer_head_dim
    wide, kv = args.num_attention_heads * head, args.num_key_value_heads * head
    return {
        "q_proj.weight": (2 * wide, dim),
        "k_proj.weight": (kv, dim),
        "v_proj.weight": (kv, dim),
        "o_proj.weight": (dim, wide),
        "q_norm.weight": (head,),
        "k_norm.weight": (head,),
        "indexer.index_qk_proj.weight": ((args.indexer_n_heads + 1) * index, dim),
        "indexer.q_layernorm.weight": (index,),
        "indexer.k_layernorm.weight": (index,),
    }


def moe_shapes(args: ModelArgs) -> dict[str, tuple[int, ...]]:
    """Every tensor of one mixture of experts, the experts fused."""
    dim, inner, count = args.hidden_size, args.moe_intermediate_size, args.num_experts
    shared = args.shared_expert_intermediate_size
    return {
        "gate.weight": (count, dim),
        "experts.gate_up_proj": (count, 2 * inner, dim),
        "experts.down_proj": (count, dim, inner),
        "shared_expert.gate_proj.weight": (shared, dim),
        "shared_expert.up_proj.weight": (shared, dim),
        "shared_expert.down_proj.weight": (dim, shared),
        "shared_expert_gate.weight": (1, dim),
    }


def ngram_shapes(args: ModelArgs) -> dict[str, tuple[int, ...]]:
    """Every tensor of the n-gram module, the table as one."""
    wide, heads = args.residual_size, args.ngram_heads
    divisor = args.make_ngram_vocab_size_divisible_by
    rows = table_rows(args.ngram_vocab_size_base, heads, divisor)
    return {
        "key_proj.weight": (wide, args.ple_embed_dim),
        "value_proj.weight": (args.hidden_size, args.ple_embed_dim),
        "conv1d.weight": (wide, 1, args.ple_conv_kernel_size),
        "norm_key.weight": (wide,),
        "norm_query.weight": (wide,),
        "norm_conv.weight": (wide,),
        "ple_embedding.layer_multipliers": (args.ngram_size,),
        "ple_embedding.ngram_heads_vocab_sizes": (heads,),
        "ple_embedding.ngram_heads_offsets": (heads,),
        "ple_embedding.ngram_embedding.weight": (rows, args.ple_embed_dim // heads),
    }


def layer_shapes(args: ModelArgs, *, linear: bool) -> dict[str, tuple[int, ...]]:
    """Every tensor of one layer, but for the n-gram module."""
    kind = ("linear_attn", delta_shapes(args)) if linear else ("self_attn", sparse_shapes(args))
    parts = {
        "attn_hyper_connection": residual_shapes(args, inject=True),
        "mlp_hyper_connection": residual_shapes(args, inject=True),
        "mlp": moe_shapes(args),
        kind[0]: kind[1],
    }
    return {f"{part}.{name}": shape for part, own in parts.items() for name, shape in own.items()}


def shapes(args: ModelArgs) -> dict[str, tuple[int, ...]]:
    """Every tensor of the target by its logical name, with its shape."""
    named: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (args.vocab_size, args.hidden_size),
        "lm_head.weight": (args.vocab_size, args.hidden_size),
    }
    mixer = residual_shapes(args, inject=False)
    named |= {f"hyper_connection_mixer.{name}": shape for name, shape in mixer.items()}
    for number, kind in enumerate(args.layer_types):
        own = layer_shapes(args, linear=kind == LINEAR)
        named |= {f"layers.{number}.{name}": shape for name, shape in own.items()}
    own = ngram_shapes(args)
    return named | {f"layers.{args.ple_layer}.ple.{name}": shape for name, shape in own.items()}
