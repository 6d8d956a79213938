"""Loading an MTP head: what fits is priced and computed as told, what does not is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flarechat.engine.allocated import storage
from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.layers.linear import (
    DenseLinear,
    Linear,
    PackedHalfLinear,
    PendingLinear,
    TiledLinear,
)
from flarechat.engine.recipes.llama import load_head, price_head
from flarechat.engine.recipes.llama.mtp import MtpArgs, MtpHead, shapes
from flarechat.engine.recipes.llama.stored import TiledBlock
from flarechat.errors import ModelError
from tests.engine.mtp_reference import RECORDS
from tests.engine.tiny import (
    CONTEXT,
    CPU,
    PACKED_HALF,
    STORED_TILES,
    VOCABULARY,
    head_record,
    head_tensors,
    reference,
    target,
)


def loaded(
    record: dict[str, Any], tensors: dict[str, Tensor], dtype: str = "float32"
) -> tuple[MtpHead, Any]:
    model = target(reference(), dtype=dtype)
    return load_head(model, record, tensors, dtype=dtype, device=CPU), model


def ready(product: Linear) -> Linear:
    return product._making.result() if isinstance(product, PendingLinear) else product


def nbytes(product: Linear) -> int:
    own = ready(product)
    if isinstance(own, DenseLinear):
        return own.weight.nbytes
    if isinstance(own, TiledLinear):
        return own.weight.data.nbytes
    assert isinstance(own, PackedHalfLinear)
    return 2 * int(torch.ops.quantized.linear_unpack_fp16(own.packed)[0].numel())


def weight_bytes(head: MtpHead, model: Any) -> int:
    """Bytes of everything a head holds that is not its target's."""
    products, norms = [head.fc], [head.norm_hidden, head.norm_embedding, head.norm]
    own = 0
    for block in head.blocks:
        if isinstance(block, TiledBlock):
            own += storage(block, {id(model.rope.cos), id(model.rope.sin)})
            continue
        products += [block.attention.qkv, block.attention.out, block.mlp.gate_up, block.mlp.down]
        norms += [block.attention_norm, block.mlp_norm]
    products += [head.fuse] if head.fuse is not None else []
    products += [head.head] if head.vocabulary is not None else []
    ids = 0 if head.vocabulary is None else head.vocabulary.nbytes
    own += sum(map(nbytes, products)) + sum(norm.weight.nbytes for norm in norms)
    return own + ids


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", PACKED_HALF, STORED_TILES])
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_the_price_is_what_is_taken(record: dict[str, Any], dtype: str) -> None:
    head, model = loaded(record, head_tensors(record), dtype)
    drafter = MtpDrafter(head, 3, CONTEXT, CPU)
    prices = price_head(model.args, record, 3, CONTEXT, dtype, target=model)

    assert prices == {
        "mtp weights": weight_bytes(head, model),
        "mtp caches": sum(state.nbytes for state in drafter.states()),
    }


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
def test_any_floating_file_is_computed_in_the_targets_dtype(stored: torch.dtype) -> None:
    record = head_record()
    tensors = {name: t.to(stored) for name, t in head_tensors(record).items()}
    head, _ = loaded(record, tensors)
    weight = ready(head.fc).weight  # type: ignore[attr-defined]

    assert torch.float32 == weight.dtype
    assert torch.equal(tensors["mtp.fc.weight"].float(), weight)


def test_attaching_a_head_taps_its_target() -> None:
    record = head_record(taps=(1, 2))
    _, model = loaded(record, head_tensors(record))

    assert (1, 2) == model.taps


@pytest.mark.parametrize("dtype", ["float32", PACKED_HALF, STORED_TILES])
@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_the_output_head_give_the_draft_tokens_logits(tied: bool, dtype: str) -> None:
    record = head_record(vocabulary=[0, 5, 6, VOCABULARY - 1])
    model = target(reference(tied=tied), dtype=dtype)
    head = load_head(model, record, head_tensors(record), dtype=dtype, device=CPU)
    output = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(4))
    whole = model.head(head.norm(output))

    assert (2, 3, 4) == head.logits(output).shape
    torch.testing.assert_close(head.logits(output), whole[..., record["draft_vocabulary"]])


Change = Callable[[dict[str, Any], dict[str, Tensor]], Any]
UNFIT: dict[str, tuple[Change, str]] = {
    "missing": (lambda r, t: t.pop("mtp.norm.weight"), "lacks the tensor mtp.norm.weight"),
    "no layer": (
        lambda r, t: r.update(layers=2), r"lacks the tensor mtp.layers.1.\S+ and 8 more"
    ),
    "surplus": (
        lambda r, t: t.update({"mtp.extra": torch.ones(1)}), "has the unexpected tensor mtp.extra"
    ),
    "fuse unasked": (
        lambda r, t: t.update({"mtp.fuse.weight": torch.ones(32, 64)}),
        "has the unexpected tensor mtp.fuse.weight",
    ),
    "misshaped": (
        lambda r, t: t.update({"mtp.fc.weight": torch.ones(32, 63)}),
        r"mtp.fc.weight has shape \(32, 63\), not \(32, 64\)",
    ),
    "whole numbers": (
        lambda r, t: t.update({"mtp.norm.weight": torch.ones(32, dtype=torch.int8)}),
        "has values in mtp.norm.weight that are no finite numbers",
    ),
    "not finite": (
        lambda r, t: t["mtp.fc.weight"].fill_(float("nan")),
        "has values in mtp.fc.weight that are no finite numbers",
    ),
    "hidden size": (
        lambda r, t: r.update(hidden_size=64), "is for a hidden size of 64; the model has 32"
    ),
    "no layers": (lambda r, t: r.update(layers=0), "has layers = 0, not a positive whole number"),
    "a layer of truth": (lambda r, t: r.update(layers=True), "has layers = True, not"),
    "many layers": (lambda r, t: r.update(layers=10**12), "claims 1000000000000 layers and has 13"),
    "inner": (
        lambda r, t: r.update(intermediate_size="40"), "has intermediate_size = '40', not a pos"
    ),
    "taps": (lambda r, t: r.update(taps=[3]), "reads layer 3; the model has layers 1 to 2"),
    "tap zero": (lambda r, t: r.update(taps=[0]), "reads layer 0; the model has layers 1 to 2"),
    "no taps": (lambda r, t: r.update(taps=[]), r"has taps = \[\], not a list of layers"),
    "id": (
        lambda r, t: r.update(draft_vocabulary=[1, 48]), "drafts token 48; the model has 48 tokens"
    ),
    "negative": (lambda r, t: r.update(draft_vocabulary=[-1]), "drafts token -1; the model has"),
    "order": (
        lambda r, t: r.update(draft_vocabulary=[1, 5, 5]),
        "lists draft token 5 after 5; ids must increase",
    ),
    "no ids": (lambda r, t: r.update(draft_vocabulary=[]), "a draft vocabulary that is not a list"),
    "nothing": (lambda r, t: r.clear(), "is for a hidden size of None; the model has 32"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "complaint"), UNFIT.values(), ids=UNFIT)
def test_what_does_not_fit_is_named_and_leaves_the_target_alone(
    change: Change, complaint: str
) -> None:
    record = head_record()
    tensors = head_tensors(record)
    change(record, tensors)
    model = target(reference())
    with pytest.raises(ModelError, match=complaint) as refused:
        load_head(model, record, tensors, dtype="float32", device=CPU)

    assert (2,) == model.taps
    assert "\n" not in refused.value.message
    assert "goes on without MTP" in refused.value.hint


def test_the_expected_tensors_are_those_of_the_helper() -> None:
    for record in RECORDS.values():
        args = MtpArgs.from_record(record, target(reference()).args)

        assert shapes(args) == {n: tuple(t.shape) for n, t in head_tensors(record).items()}


def test_a_file_written_over_does_not_reach_a_loaded_head() -> None:
    record = head_record()
    tensors = head_tensors(record)
    head, _ = loaded(record, tensors)
    before = ready(head.fc)(torch.ones(1, 2 * record["hidden_size"])), head.norm.weight.clone()
    for tensor in tensors.values():
        tensor.zero_()

    assert torch.equal(ready(head.fc)(torch.ones(1, 2 * record["hidden_size"])), before[0])
    assert torch.equal(head.norm.weight, before[1])
