"""What does not add up in a checkpoint is refused with a sentence, whatever its format."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flarechat.engine.weights.qwen38 import Qwen38Tensors
from flarechat.errors import ModelError
from tests.engine.qwen38 import tiny
from tests.engine.qwen38.loading import E, config, loaded, made, opened
from tests.engine.qwen38.packing import FORMATS, MTP_EXPERTS, PREFIX, TABLE


def drop(*names: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: [tensors.pop(name) for name in names] and None


def put(name: str, value: Tensor) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.update({name: value})


UP = f"{PREFIX}{E}.3.up_proj"


@pytest.mark.parametrize(
    ("form", "change", "words"),
    [
        ("fp8", drop(f"{UP}.weight_scale_inv"), r"3\.up_proj\.weight has no scale"),
        ("nvfp4", drop(f"{UP}.weight_scale"), r"3\.up_proj\.weight has no scale"),
        ("nvfp4", drop(f"{UP}.weight_scale_2"), r"has no scale .*weight_scale_2"),
        ("nvfp4", drop(f"{PREFIX}{TABLE}.weight_scale"), r"shard_0\.weight has no scale"),
        (
            "fp4-local", drop(f"{PREFIX}{TABLE}.shard_11.weight_scale"),
            r"shard_11\.weight has no scale",
        ),
        (
            "fp4-local", drop(f"{UP}.weight_scale.nvfp4_csf_exceptions"),
            "lacks the tensor .*csf_exceptions",
        ),
        ("fp4-local", drop(f"{UP}.weight_scale.nvfp4_csf_fixed"), "lacks the tensor .*csf_fixed"),
        (
            "fp4-local", drop(f"{PREFIX}layers.3.self_attn.o_proj.weight_scale"),
            r"o_proj\.weight has no scale",
        ),
        ("bf16", drop(f"{PREFIX}layers.2.mlp.gate.weight"), r"lacks the tensor .*mlp\.gate"),
        ("fp8", drop(f"{UP}.weight"), r"lacks the tensor .*3\.up_proj\.weight"),
        ("fp8", drop(f"{PREFIX}{TABLE}.shard_9.weight"), "lacks parts"),
        ("bf16", put(f"{PREFIX}{TABLE}.shard_2.weight", torch.ones(224, 16)), "differ in width or"),
        ("bf16", put(f"{PREFIX}{TABLE}.shard_2.weight", torch.ones(224, 8).bfloat16()), "in width"),
        (
            "bf16", put(f"{PREFIX}{TABLE}.shard_2.weight", torch.ones(220, 16).bfloat16()),
            r"shape \(892, 16\), not \(896, 16\)",
        ),
        ("bf16", put(f"{UP}.weight", torch.ones(2)), r"unexpected tensor .*3\.up_proj"),
        ("bf16", put("layers.0.extra", torch.ones(2)), "unexpected tensor layers.0.extra"),
        ("nvfp4", put(f"{UP}.k_scale", torch.ones(1)), "unexpected tensor"),
        (
            "bf16", put(f"{PREFIX}layers.2.mlp.gate.weight_scale", torch.ones(1)),
            "unexpected tensor .*gate.weight_scale",
        ),
        (
            "nvfp4", put(f"{UP}.weight", torch.ones(32, 64).bfloat16()),
            "batch differ: nvfp4 of uint8 .* and floats of bfloat16",
        ),
        ("nvfp4", put(f"{UP}.weight_scale", torch.ones(32, 4)), "not those of nvfp4"),
        ("nvfp4", put(f"{UP}.weight_scale_2", torch.ones(2)), r"shape \(2,\), not \(1,\)"),
        ("fp8", put(f"{UP}.weight_scale_inv", torch.ones(2, 1)), r"shape \(2, 1\), not \(1, 1\)"),
        ("fp8", put(f"{UP}.weight", torch.ones(32, 64, dtype=torch.int8)), "not a weight"),
        (
            "bf16", put(f"{PREFIX}{E}.down_proj", torch.ones(8, 64, 16, dtype=torch.uint8)),
            "stored one by one",
        ),
        ("bf16", put("layers.0.mlp.gate.weight", torch.ones(8, 64)), "twice"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_does_not_add_up_is_refused(
    form: str, change: Callable[[dict[str, Tensor]], None], words: str
) -> None:
    tensors = dict(made(form).tensors)
    change(tensors)
    with pytest.raises(ModelError, match=words) as caught:
        loaded(config(form), tensors)

    assert caught.value.hint


@pytest.mark.parametrize("form", FORMATS)
def test_what_nobody_asked_for_is_refused_target_and_head_apart(form: str) -> None:
    named = opened(form, made(form).tensors | {"mtp.norm.weight": torch.ones(2)})
    for name in [n for n in named._stored if n.startswith("mtp.") and "experts." not in n]:
        if name != "mtp.norm.weight":
            named.raw(name)
    named.experts(MTP_EXPERTS)
    with pytest.raises(ModelError, match=r"unexpected tensor mtp\.norm\.weight\."):
        named.require_all_used(mtp=True)

    with pytest.raises(ModelError, match=r"unexpected tensor .* more"):
        named.require_all_used(mtp=False)


ALIAS = MTP_EXPERTS.replace("layers.0", "layers.4")


@pytest.mark.parametrize(
    ("form", "module", "entry", "words"),
    [
        ("nvfp4", PREFIX + E, {"quant_algo": "FP8"}, "is fp8 or fp8_blocks, and .* nvfp4"),
        ("nvfp4", PREFIX + E, {"quant_algo": "NVFP4", "group_size": 32}, "32 values, not 16"),
        ("nvfp4", PREFIX + E, {"quant_algo": "INT4"}, "is 'INT4', and its tensors are nvfp4"),
        (
            "nvfp4",
            PREFIX + E,
            {"quant_algo": "NVFP4", "weight_scale_encoding": "zip"},
            "encoded as 'zip'",
        ),
        ("nvfp4", ALIAS, {"quant_algo": "NVFP4"}, "is nvfp4, and its tensors are dense"),
        ("nvfp4-mtp-fp8", ALIAS, {"quant_algo": "NVFP4"}, "is nvfp4, and .* are fp8_blocks"),
        ("nvfp4-mtp-fp8", MTP_EXPERTS, {"quant_algo": "MXFP8"}, "is mxfp8, and .* fp8_blocks"),
    ],
)
def test_a_configuration_that_contradicts_the_tensors_is_refused(
    form: str, module: str, entry: dict[str, Any], words: str
) -> None:
    told = tiny.config(quantization_config={"quantized_layers": {module: entry}})
    with pytest.raises(ModelError, match=words):
        named = Qwen38Tensors(made(form).tensors, told)
        named.experts(E)
        named.experts(MTP_EXPERTS)


def test_more_experts_than_there_are_take_no_room() -> None:
    named = Qwen38Tensors(made("nvfp4").tensors, tiny.config(num_experts=10**12))
    with pytest.raises(ModelError, match=r"lacks the tensor .*999999999999\.down_proj"):
        named.experts(E)


def test_a_claim_is_for_what_it_names() -> None:
    """Not for a layer's other tensors, nor for parts that are not loaded."""
    entries = {
        "mtp.layers.4.mlp": {"quant_algo": "NVFP4"}, "model.visual.blocks": {"quant_algo": "INT4"},
        f"{PREFIX}{E}.3": {"quant_algo": "NVFP4"},
    }  # fmt: skip
    told = {"quantized_layers": entries, "weight_block_size": [128, 128]}
    named = Qwen38Tensors(made("nvfp4").tensors, tiny.config(quantization_config=told))

    named.experts(E)
    assert (8, 64) == tuple(named.dense("mtp.layers.0.mlp.gate").shape)


def test_blocks_of_another_size_are_refused() -> None:
    with pytest.raises(ModelError, match=r"blocks of \[64, 64\]"):
        Qwen38Tensors({}, tiny.config(quantization_config={"weight_block_size": [64, 64]}))


@pytest.mark.parametrize("told", [3, "fp8", [1], {"weight_block_size": 128}])
def test_a_quantisation_that_is_no_map_is_refused(told: Any) -> None:
    with pytest.raises(ModelError, match=r"quantization_config = |weight blocks of 128"):
        Qwen38Tensors({}, tiny.config(quantization_config=told))


DTYPES = (torch.bfloat16, torch.float32, torch.uint8, torch.float8_e4m3fn, torch.int64,
          torch.float8_e8m0fnu, torch.uint32)  # fmt: skip
SHAPES = ((), (1,), (0,), (3,), (32, 64), (64, 32), (2, 1), (16, 48), (1, 2, 3), (8, 64, 64))


@given(
    st.sampled_from(FORMATS), st.integers(0, 1 << 30), st.sampled_from(DTYPES),
    st.sampled_from(SHAPES), st.booleans(),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_any_tensor_in_the_place_of_another_loads_or_is_refused(
    form: str, at: int, dtype: torch.dtype, shape: tuple[int, ...], gone: bool
) -> None:
    tensors = dict(made(form).tensors)
    name = sorted(tensors)[at % len(tensors)]
    del tensors[name]
    if not gone:
        size = math.prod(shape) * dtype.itemsize
        tensors[name] = torch.zeros(size, dtype=torch.uint8).view(dtype).reshape(shape)
    try:
        loaded(config(form), tensors)
        named = Qwen38Tensors(tensors, config(form))
        named.experts(MTP_EXPERTS)
        named.norm("mtp.pre_fc_norm_hidden.weight")
    except ModelError as error:
        assert error.message and error.hint
