"""The Qwen3.8 draft head against one composed of transformers' own classes, and its files."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen4_exp.modeling_qwen4_exp import (
    Qwen4ExpForCausalLM,
    Qwen4ExpTextRMSNorm,
)

from flarechat.engine.layers.linear import DenseLinear
from flarechat.engine.layers.offset_norm import OffsetRMSNorm
from flarechat.engine.plan import Plan, extent_for
from flarechat.engine.recipes.qwen38.mtp import Feedback
from flarechat.engine.slot import SCRATCH_ROWS, Lanes
from flarechat.errors import ModelError
from tests.engine.qwen38.drafting import PROMPTS, drafter_of, luck, workbench
from tests.engine.qwen38.mtp_reference import ReferenceHead, reference_head, tensors_of
from tests.engine.qwen38.paths import assert_equal, assert_head, path
from tests.engine.qwen38.tiny import CONTEXT, VOCABULARY
from tests.engine.tiny import Bench

Pair = tuple[Tensor, Tensor]

EXTENT = extent_for(CONTEXT, CONTEXT + SCRATCH_ROWS)
FAR = tuple(
    torch.randint(2, VOCABULARY, (46,), generator=torch.Generator().manual_seed(11)).tolist()
)


def chain_logits(made: Bench, slot: int, depth: int) -> tuple[list[int], list[Tensor]]:
    """The drafts of one greedy chain and the logits [V] or [R] each came from."""
    drafter, seen = drafter_of(made), []
    logits = drafter.head.logits

    def watched(output: Tensor) -> Tensor:
        seen.append(logits(output))
        return seen[-1]

    drafter.head.logits = watched  # type: ignore[method-assign]
    drafter.stage(slot, depth)
    drafts = drafter.propose(Lanes(made.pool, (slot,)), Plan(depth, EXTENT)).tokens[0].tolist()
    drafter.head.logits = logits  # type: ignore[method-assign]
    return drafts, [row[0, 0] for row in seen]


def assert_chain(made: Bench, head: ReferenceHead, tokens: tuple[int, ...], depth: int = 7) -> None:
    """The chain behind `tokens`, held by slot 1, is the reference's, step by step."""
    drafts, rows = chain_logits(made, 1, depth)
    expected, truth = head.chain(tokens, depth, lambda step, logits: int(logits.argmax()))
    assert expected == drafts
    for own, theirs in zip(rows, truth, strict=True):
        assert_equal({"logits": own}, {"logits": theirs})


# The head's numbers.


@pytest.mark.parametrize("chunk", [1, 3, 4, 17, 40, 256])
@pytest.mark.parametrize("length", [2, 3, 6, 24, 46])
def test_prefill_in_chunks_leaves_the_rows_of_teacher_forcing(
    of: Qwen4ExpForCausalLM, length: int, chunk: int
) -> None:
    made, head = workbench(of)
    tokens = FAR[:length]
    made.open(1, tokens, chunk=chunk)

    assert_head(drafter_of(made), 1, head, path(of, tokens, 0), length - 1)
    assert_chain(made, head, tokens, depth=2)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 20, 21, 22, 23, 24, 25, 46])
def test_a_chain_is_that_of_the_reference(of: Qwen4ExpForCausalLM, length: int) -> None:
    made, head = workbench(of)
    made.open(1, FAR[:length])

    assert_chain(made, head, FAR[:length])


def test_a_chain_goes_on_from_copies(of: Qwen4ExpForCausalLM) -> None:
    made, head = workbench(of)
    made.open(1, FAR)
    copies = [9, 8, 7]
    drafter_of(made).script = lambda slot, done, k: copies
    drafts, _ = chain_logits(made, 1, 6)

    def choose(step: int, logits: Tensor) -> int:
        return copies[step] if step < 3 else int(logits.argmax())

    assert head.chain(FAR, 6, choose)[0] == drafts


def test_rows_absorbed_twice_are_the_same_to_the_bit(of: Qwen4ExpForCausalLM) -> None:
    made, _ = workbench(of)
    drafter, tokens = drafter_of(made), torch.tensor([FAR[:22]])
    made.open(1, FAR[:23])
    told: list[dict[str, Tensor]] = []
    for _ in range(2):
        made.pool.consumed[1] = 12
        lanes, plan = Lanes(made.pool, (1,), prefilling=True), Plan(9, EXTENT)
        hidden = path(of, FAR[:23], 0).hidden
        drafter.hidden.rows[1] = hidden[11]
        drafter.absorb(lanes, tokens[:, 12:], hidden[None, 12:22], torch.tensor([10]), plan)
        told.append({name: t.clone() for name, t in drafter.cache.tensors().items()})

    assert all(torch.equal(value, told[1][name]) for name, value in told[0].items())


def test_the_head_drafts_from_a_vocabulary_of_its_own(of: Qwen4ExpForCausalLM) -> None:
    ids = list(range(3, VOCABULARY, 3))
    made, head = workbench(of, record={"draft_vocabulary": ids})
    made.open(1, FAR)
    drafts, rows = chain_logits(made, 1, 5)
    kept = torch.tensor(ids)
    expected, truth = head.chain(FAR, 5, lambda step, logits: int(kept[logits[kept].argmax()]))

    assert expected == drafts
    for own, theirs in zip(rows, truth, strict=True):
        assert (len(ids),) == own.shape
        assert_equal({"logits": own}, {"logits": theirs[kept]})


# What feeds it, at the real width, to the bit.


def by_the_spec(
    embedded: Tensor, residual: Tensor, norms: Pair, products: Pair
) -> Tensor:  # fmt: skip
    """The feedback of b12x's oracle: rounded after each norm, each product and the sum."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + 1e-6)
        return (scaled * (1.0 + weight.float())).to(torch.bfloat16)

    told = F.linear(norm(embedded, norms[0]), products[0])
    streams = norm(residual, norms[1]).view(len(residual), 4, -1)
    return (F.linear(streams, products[1]) + told.unsqueeze(1)).flatten(1)


def by_transformers(
    embedded: Tensor, residual: Tensor, norms: Pair, products: Pair
) -> Tensor:  # fmt: skip
    own = []
    for weight in norms:
        norm = Qwen4ExpTextRMSNorm(len(weight)).to(torch.bfloat16)
        norm.weight = nn.Parameter(weight, requires_grad=False)
        own.append(norm)
    linear = [nn.Linear(2560, 2560, bias=False, dtype=torch.bfloat16) for _ in products]
    for product, weight in zip(linear, products, strict=True):
        product.weight = nn.Parameter(weight, requires_grad=False)
    streams = linear[1](own[1](residual).unflatten(-1, (4, -1)))
    return (streams + linear[0](own[0](embedded))[:, None]).flatten(1)


def real_feedback(groups: int = 1) -> tuple[Tensor, tuple[Any, ...]]:
    """Our feedback of three rows at the real width in bfloat16, and what it was made of."""
    generator = torch.Generator().manual_seed(2)

    def drawn(*shape: int, spread: float = 1.0) -> Tensor:
        return (spread * torch.randn(*shape, generator=generator)).to(torch.bfloat16)

    # Streams of unlike size, as they are in a trained model.
    residual = (drawn(3, 4, 2560) * torch.tensor([1, 2, 3, 4])[:, None]).flatten(1)
    embedded, norms = drawn(3, 2560), (drawn(2560, spread=0.2), drawn(10240, spread=0.2))
    products = drawn(2560, 2560, spread=0.02), drawn(2560, 2560, spread=0.02)
    feedback = Feedback(
        OffsetRMSNorm(1 + norms[1].float(), 1e-6, groups),
        OffsetRMSNorm(1 + norms[0].float(), 1e-6),
        DenseLinear(products[1]),
        DenseLinear(products[0]),
        4,
    )
    made = feedback(residual[:, None], embedded[:, None])[:, 0]
    return made, (embedded, residual, norms, products)


@pytest.mark.parametrize("law", [by_the_spec, by_transformers])
def test_the_feedback_at_real_width_is_the_oracle_to_the_bit(law: Any) -> None:
    made, given = real_feedback()

    assert torch.equal(law(*given), made)


def test_a_mean_for_each_stream_is_seen_in_the_feedback() -> None:
    made, given = real_feedback(groups=4)
    truth = by_the_spec(*given).float()
    off = (made.float() - truth).norm() / truth.norm()

    assert 0.1 < float(off)


# Shared choices.


def sharing(head: ReferenceHead, anchor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows of the reference behind `anchor` see what it chose and all after it."""
    indexer = head.layers[0].self_attn.indexer
    forward = indexer.forward

    def shared(*given: Any) -> Tensor:
        mask = forward(*given)
        for row in range(anchor + 1, mask.shape[2]):
            mask[:, :, row] = mask[:, :, anchor]
            mask[:, :, row, anchor + 1 : row + 1] = True
        return mask

    monkeypatch.setattr(indexer, "forward", shared)


@pytest.mark.parametrize("length", [5, 21, 22, 23, 24, 43, 44, 45, 46])
def test_a_chain_may_share_the_choice_of_its_first_step(
    of: Qwen4ExpForCausalLM, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, head = workbench(of, record={"index_share_for_mtp_iteration": True})
    made.open(1, FAR[:length])
    sharing(head, length - 2, monkeypatch)

    assert_chain(made, head, FAR[:length])


def test_a_choice_is_shared_only_if_asked_for_and_by_drafts_alone(
    of: Qwen4ExpForCausalLM,
) -> None:
    plain, head = workbench(of)
    made, _ = workbench(of, record={"index_share_for_mtp_iteration": True})
    along = [path(of, PROMPTS[0], 26)]
    for bench in (plain, made):
        bench.open(0, PROMPTS[0])
        drafter_of(bench).script = luck(along, lambda slot, done: done % 4, more=True)
    done = 0
    for width in (8, 3, 1, 8):
        records = [bench.play((0,), width - 1)[0] for bench in (plain, made)]
        done += records[0].emitted
        assert records[0].tokens == records[1].tokens
        assert_head(drafter_of(made), 0, head, along[0], len(PROMPTS[0]) + done - 1)

    assert not drafter_of(plain).head.shares_choice
    assert drafter_of(made).head.shares_choice


# Files.


def test_the_head_has_the_tensors_of_the_checkpoint(of: Qwen4ExpForCausalLM) -> None:
    assert 31 == len(tensors_of(reference_head(of)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mtp.fc_hidden.weight": None}, "lacks the tensor mtp.fc_hidden.weight"),
        ({"mtp.fc.weight": torch.ones(64, 128)}, "unexpected tensor mtp.fc.weight"),
        ({"model.norm.weight": torch.ones(64)}, "unexpected tensor norm.weight"),
        (
            {"mtp.pre_fc_norm_hidden.weight": torch.zeros(64)},
            "mtp.pre_fc_norm_hidden.weight has shape (64,), not (256,)",
        ),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    of: Qwen4ExpForCausalLM, change: dict[str, Tensor | None], said: str
) -> None:
    tensors: dict[str, Any] = {**tensors_of(reference_head(of)), **change}
    given = {name: t for name, t in tensors.items() if t is not None}

    with pytest.raises(ModelError) as refused:
        workbench(of, tensors=given)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"hidden_size": 128}, "hidden_size = 128; the model takes 64"),
        ({"layers": 2}, "layers = 2; the model takes 1"),
        ({"draft_vocabulary": [3, 2]}, "does not draft rising tokens"),
        ({"draft_vocabulary": [3, 256]}, "does not draft rising tokens"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(
    of: Qwen4ExpForCausalLM, record: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError) as refused:
        workbench(of, record=record)
    assert said in str(refused.value)
