"""N-gram features: the hash's constants, which rows a token takes, and the module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextNGramEmbedding

from flarechat.engine.layers.ngram import NgramHash, moduli, multipliers, table_rows
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.engine.state.ngram import NgramState
from flarechat.engine.state.passes import Pass
from tests.engine.qwen38 import tiny

EOS, CPU = tiny.EOS, tiny.CPU
ON_A = [9, EOS, 9, 5, EOS, EOS, 7, 8, 9, EOS]


def test_the_real_sizes_give_the_constants_of_the_real_checkpoint() -> None:
    assert [23703573157769, 20109073645365, 8052911324071] == multipliers(248320, 1234)
    ends = (3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171)
    assert [20_000_000 + end for end in ends] == moduli(20_000_000, 16)
    assert 320_001_536 == table_rows(20_000_000, 16, 128)


def theirs() -> Qwen4ExpTextNGramEmbedding:
    of = tiny.reference()
    return of.model.layers[1].ple.ple_embedding


def hashing() -> NgramHash:
    return NgramHash(tiny.VOCABULARY, EOS, 4, tiny.CONFIG["ngram_vocab_size_base"], 1234, CPU)


def test_the_tiny_constants_are_transformers_buffers() -> None:
    embedding, ours = theirs(), hashing()

    assert torch.equal(embedding.layer_multipliers, ours.multipliers)
    assert torch.equal(embedding.ngram_heads_vocab_sizes, ours.moduli)
    assert torch.equal(embedding.ngram_heads_offsets, ours.offsets)
    assert embedding.ngram_embedding.num_embeddings == table_rows(200, 4, 8)


def their_rows(tokens: list[int]) -> Tensor:
    """The rows transformers looks up for each token, [N, heads]."""
    embedding = Qwen4ExpTextNGramEmbedding(Qwen4ExpTextConfig(**tiny.config()), 64, 1)
    rows = embedding.ngram_embedding.num_embeddings
    embedding.ngram_embedding = torch.nn.Embedding(rows, 1)
    embedding.ngram_embedding.weight.data = torch.arange(rows).float()[:, None]
    return embedding(torch.tensor([tokens]), None)[0].long()


@pytest.mark.parametrize("place", range(6))
def test_rows_are_transformers_whatever_token_is_terminal(place: int) -> None:
    tokens = [11, 12, 13, 14, 15, 16]
    tokens[place] = EOS
    before = torch.tensor([[EOS, EOS]])

    for text in (tokens, ON_A):
        assert torch.equal(their_rows(text), hashing().rows(before, torch.tensor([text]))[0])


def test_two_tokens_are_all_that_rows_look_back_on() -> None:
    torch.manual_seed(0)
    for _ in range(20):
        tokens = torch.randint(0, 6, (12,))
        whole = their_rows(tokens.tolist())
        for start in range(2, 12):
            rows = hashing().rows(tokens[None, start - 2 : start], tokens[None, start:])[0]
            assert torch.equal(whole[start:], rows)


@pytest.mark.parametrize("cuts", [(20,), (1, 2, 17), (8, 8, 4)])
def test_the_module_is_transformers_in_any_pieces(cuts: tuple[int, ...]) -> None:
    of, model = tiny.reference(), tiny.target(tiny.reference())
    ple, ours = of.model.layers[1].ple, model.layers[1].ngram
    tokens = torch.tensor([(ON_A * 2)])
    h = torch.randn(1, 20, 256, generator=torch.Generator().manual_seed(0))
    wanted = ple(h, tokens, None)

    pool = SlotPool(2, 64, tiny.VOCABULARY, CPU)
    state = NgramState(2, 2, 9, 256, EOS, torch.float32, CPU)
    lanes, at, got = Lanes(pool, (1,)).for_prefill(), 0, []
    for cut in cuts:
        run, rows = Pass.of_chunk(lanes, cut), slice(at, at + cut)
        features = ours.ahead(tokens[:, rows], state, run).wait()
        got.append(ours(h[:, rows], features, state, run))
        at += cut
        pool.consumed[1] = at

    torch.testing.assert_close(wanted, torch.cat(got, 1), atol=2e-6, rtol=1e-5)
    assert tokens[0, -2:].tolist() == state.ids.rows[1, 0, :, 0].tolist()
