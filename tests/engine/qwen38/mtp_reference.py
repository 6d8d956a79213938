"""The MTP head composed of transformers' own classes, over the whole text, no cache kept.

It shares no code with the engine's. `state_dict` has the names that a checkpoint gives the head's
tensors, without "mtp.".
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers.models.qwen4_exp.modeling_qwen4_exp import (
    Qwen4ExpForCausalLM,
    Qwen4ExpTextDecoderLayer,
    Qwen4ExpTextGatedResidual,
    Qwen4ExpTextQSAIndexer,
    Qwen4ExpTextRMSNorm,
    Qwen4ExpTextRotaryEmbedding,
    apply_rotary_pos_emb,
)

from tests.engine.mtp_reference import PlainChain
from tests.engine.qwen38.tiny import Indexer, redraw

RATIO = 4


def block_keys(
    indexer: Qwen4ExpTextQSAIndexer, raw: Tensor, angles: tuple[Tensor, Tensor]
) -> Tensor:
    """The keys [blocks, K] of the whole blocks of raw keys [N, K]; angles are [1, N, rotary]."""
    blocks = len(raw) // RATIO
    pooled = indexer.k_layernorm(raw[: RATIO * blocks].unflatten(0, (blocks, RATIO)).mean(1))
    cos, sin = (part[:, : RATIO * blocks : RATIO] for part in angles)
    return apply_rotary_pos_emb(pooled[None, None], cos=cos, sin=sin)[0, 0]


class ReferenceHead(PlainChain, nn.Module):
    """One decoder layer between what the spec calls the feedback and a mixer of its own."""

    def __init__(self, of: Qwen4ExpForCausalLM) -> None:
        super().__init__()
        config = copy.deepcopy(of.config)
        config.num_hidden_layers, config.layer_types = 1, ["indexed_attention"]
        config.ple_layer_ids, config._experts_implementation = [], "eager"
        self.streams, dim, eps = config.hc_count, config.hidden_size, config.rms_norm_eps
        self.fc_embedding = nn.Linear(dim, dim, bias=False)
        self.fc_hidden = nn.Linear(dim, dim, bias=False)
        self.pre_fc_norm_embedding = Qwen4ExpTextRMSNorm(dim, eps=eps)
        self.pre_fc_norm_hidden = Qwen4ExpTextRMSNorm(self.streams * dim, eps=eps)
        self.layers = nn.ModuleList([Qwen4ExpTextDecoderLayer(config, 0)])
        self.hyper_connection_mixer = Qwen4ExpTextGatedResidual(config, use_combine=False)
        self.layers[0].self_attn.indexer.__class__ = Indexer
        self.rotary = Qwen4ExpTextRotaryEmbedding(config)
        self._of = [of]  # a list, so that the target is no part of this module

    @property
    def of(self) -> Qwen4ExpForCausalLM:
        return self._of[0]

    def hidden(self, tokens: Sequence[int]) -> Tensor:
        """[N, S * D]: the target's residual of all streams before its mixer."""
        seen: list[Tensor] = []
        mixer = self.of.model.hyper_connection_mixer
        hook = mixer.register_forward_pre_hook(lambda _m, given: seen.append(given[0]))
        self.of(torch.tensor([list(tokens)]), use_cache=False)
        hook.remove()
        return seen[0][0]

    def feedback(self, hidden: Tensor, tokens: Sequence[int]) -> Tensor:
        """hidden [N, S * D] and the N tokens after it → the layer's input [N, S * D]."""
        told = self.of.model.embed_tokens(torch.tensor(list(tokens)))
        embedded = self.fc_embedding(self.pre_fc_norm_embedding(told))
        normed = self.pre_fc_norm_hidden(hidden).unflatten(-1, (self.streams, -1))
        return (self.fc_hidden(normed) + embedded[..., None, :]).flatten(-2)

    def forward(self, hidden: Tensor, tokens: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        """Pairs → the layer's output [N, S * D], and what its attention would keep of them."""
        z = self.feedback(hidden, tokens)[None]
        count = z.shape[1]
        mask = torch.ones(1, 1, count, count, dtype=torch.bool).tril()
        at = torch.arange(count).view(1, 1, -1).expand(3, 1, -1)
        angles, layer, seen = self.rotary(z, at), self.layers[0], []
        hook = layer.self_attn.register_forward_pre_hook(lambda _m, given: seen.append(given[0]))
        out = layer(z, position_embeddings=angles, attention_mask=mask)
        hook.remove()
        return out[0], self._kept(seen[0], angles)

    def _kept(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Keys and values [H, N, D], raw indexer keys [N, I] and keys of whole blocks [N/4, I]."""
        own, (cos, sin) = self.layers[0].self_attn, angles
        keys, values = (
            product(x).unflatten(-1, (-1, own.head_dim)) for product in (own.k_proj, own.v_proj)
        )
        keys = apply_rotary_pos_emb(own.k_norm(keys).transpose(1, 2), cos=cos, sin=sin)[0]
        indexer = own.indexer
        raw = indexer.index_qk_proj(x)[0, :, -indexer.index_head_dim :]
        values = values.transpose(1, 2)[0]
        return {
            "keys": keys,
            "values": values,
            "raw": raw,
            "blocks": block_keys(indexer, raw, angles),
        }

    def logits(self, output: Tensor) -> Tensor:
        """[N, S * D] → [N, V]."""
        return self.of.lm_head(self.hyper_connection_mixer(output))


def draw(of: Qwen4ExpForCausalLM, seed: int = 0) -> ReferenceHead:
    """A head for `of` in its dtype, every weight drawn."""
    head = ReferenceHead(of).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed + 100)
    for name, weight in head.named_parameters():
        redraw(name, weight, generator)
    return head


reference_head = functools.cache(draw)


def tensors_of(head: ReferenceHead) -> dict[str, Tensor]:
    """The head's tensors by the names a checkpoint has."""
    return {f"mtp.{name}": tensor for name, tensor in head.state_dict().items()}
