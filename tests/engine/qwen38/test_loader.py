"""Checkpoints of every published format: what they load as, and what is refused."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from flarechat.engine.drafters.none import NoDrafter
from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.layers.experts import DenseExperts, Fp8Experts, Nvfp4Experts, hold_experts
from flarechat.engine.plan import Plan
from flarechat.engine.recipes.qwen38 import Model, load
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.engine.text.tokenizer import json_from_gguf
from flarechat.engine.weights import load_checkpoint
from flarechat.engine.weights.formats import Packed
from flarechat.engine.weights.qwen38 import Qwen38Tensors, open_sidecar
from flarechat.errors import ModelError
from tests.engine.qwen38 import packing, tiny
from tests.engine.qwen38.mtp_reference import reference_head, tensors_of
from tests.engine.qwen38.packing import EXPERTS, FORMATS, MTP_EXPERTS, PREFIX, TABLE, Stored
from tests.engine.tiny import Bench
from tests.models import tiny as files

E = EXPERTS.format(0)


@functools.cache
def made(form: str) -> Stored:
    reference = tiny.reference()
    return packing.stored(form, tiny.checkpoint(reference), tensors_of(reference_head(reference)))


def config(form: str) -> dict[str, Any]:
    layers = made(form).layers
    return tiny.config(quantization_config={"quantized_layers": layers} if layers else {})


def opened(form: str, tensors: dict[str, Tensor] | None = None) -> Qwen38Tensors:
    return Qwen38Tensors(made(form).tensors if tensors is None else tensors, config(form))


def loaded(config: dict[str, Any], tensors: dict[str, Tensor]) -> Model:
    return load(config, tensors, slots=1, context=tiny.CONTEXT, dtype="float32", device=tiny.CPU)


def logits(model: Model) -> Tensor:
    """[8, V] of a window of eight tokens after six that are prefilled."""
    tokens = [7, 23, 9, 101, 55, 23, 1, 200, 3, 88, 4, 7, 23, 9]
    pool = SlotPool(1, tiny.CONTEXT, tiny.VOCABULARY, tiny.CPU)
    bench = Bench(pool, model, EagerExecutor(model, NoDrafter(1, tiny.CPU)))
    bench.open(0, tokens[:7])
    plan = Plan(7, tiny.CONTEXT + SCRATCH_ROWS)
    return model.verify(Lanes(pool, (0,)), torch.tensor([tokens[6:]]), plan)[1][0]


@pytest.mark.parametrize("form", FORMATS)
def test_a_packed_checkpoint_computes_what_its_bytes_stand_for(form: str) -> None:
    packed = loaded(config(form), made(form).tensors)
    floats = loaded(tiny.config(), made(form).values)

    torch.testing.assert_close(logits(floats), logits(packed), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("form", "target", "head"),
    [
        ("bf16", DenseExperts, DenseExperts),
        ("fp8", Fp8Experts, Fp8Experts),
        ("nvfp4", Nvfp4Experts, DenseExperts),
        ("nvfp4-mtp-fp8", Nvfp4Experts, Fp8Experts),
        ("fp4-local", Nvfp4Experts, Nvfp4Experts),
    ],
)
def test_experts_stay_in_their_files_format_the_heads_apart(
    form: str, target: type, head: type
) -> None:
    named = opened(form)

    assert target is type(hold_experts(*named.experts(E)))
    assert head is type(hold_experts(*named.experts(MTP_EXPERTS)))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("base", [E, EXPERTS.format(3), MTP_EXPERTS])
def test_every_expert_has_its_gate_above_its_up(form: str, base: str) -> None:
    values, prefix = made(form).values, "" if base.startswith("mtp.") else PREFIX
    gate_up, down = (
        part.decode() if isinstance(part, Packed) else part for part in opened(form).experts(base)
    )

    theirs = values[f"{prefix}{base}.gate_up_proj"]
    torch.testing.assert_close(theirs.float(), gate_up.float().reshape(theirs.shape))
    torch.testing.assert_close(values[f"{prefix}{base}.down_proj"].float(), down.float())


def test_experts_one_by_one_in_floats_are_the_fused_ones() -> None:
    fused = dict(made("bf16").tensors)
    gate_up, down = (fused.pop(f"{PREFIX}{E}.{name}_proj") for name in ("gate_up", "down"))
    for expert in range(len(down)):
        gate, up = gate_up[expert].chunk(2)
        for name, part in (("gate", gate), ("up", up), ("down", down[expert])):
            fused[f"{PREFIX}{E}.{expert}.{name}_proj.weight"] = part
    own = opened("bf16", fused).experts(E)

    torch.testing.assert_close((gate_up, down), own, atol=0, rtol=0)


def test_gate_and_up_of_one_expert_need_not_share_a_scale() -> None:
    tensors = dict(made("nvfp4").tensors)
    name = f"{PREFIX}{E}.2.up_proj.weight_scale_2"
    tensors[name] = 2 * tensors[name]
    before, after = (opened("nvfp4", t).experts(E)[0].decode() for t in (None, tensors))  # type: ignore[union-attr]
    before[2, 1] *= 2

    torch.testing.assert_close(before, after, atol=0, rtol=0)


def test_the_scale_of_activations_changes_nothing() -> None:
    tensors = dict(made("nvfp4").tensors)
    for name in list(tensors):
        if name.endswith("input_scale"):
            del tensors[name]

    torch.testing.assert_close(
        logits(loaded(config("nvfp4"), made("nvfp4").tensors)),
        logits(loaded(config("nvfp4"), tensors)), atol=0, rtol=0,
    )  # fmt: skip


@pytest.mark.parametrize("form", ["fp8", "fp4-local"])
def test_the_tables_parts_follow_one_another_by_number(form: str) -> None:
    parts = opened(form).table(TABLE)
    values = torch.cat([part.decode() for part in parts if isinstance(part, Packed)])

    assert packing.PARTS == len(parts)
    torch.testing.assert_close(made(form).values[f"{PREFIX}{TABLE}.weight"], values)


def test_parts_of_a_table_may_share_their_last_scale() -> None:
    tensors = dict(made("fp4-local").tensors)
    for part in range(packing.PARTS):
        del tensors[f"{PREFIX}{TABLE}.shard_{part}.weight_scale_2"]
    tensors[f"{PREFIX}{TABLE}.weight_scale_2"] = torch.tensor([0.25])
    own = opened("fp4-local", tensors).table(TABLE)

    assert [0.25] * packing.PARTS == [float(part.scale_2) for part in own]  # type: ignore[union-attr, arg-type]


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


@pytest.mark.parametrize("mtp", [False, True])
def test_norms_with_their_one_added_are_told_for_target_and_head_apart(mtp: bool) -> None:
    tensors = dict(made("bf16").tensors)
    ends = ("_norm.weight", "layernorm.weight", "pre_fc_norm_hidden.weight", "norm_conv.weight",
            "norm_key.weight", "norm_query.weight", "pre_fc_norm_embedding.weight")  # fmt: skip
    offsets = [n for n in tensors if n.endswith(ends)]
    for name in offsets:
        if name.startswith("mtp.") == mtp:
            tensors[name] = tensors[name].float() + 1
    raw, folded = opened("bf16"), opened("bf16", tensors)

    assert 25 == len(offsets)
    for name in (n.removeprefix(PREFIX) for n in offsets):
        torch.testing.assert_close(raw.norm(name), folded.norm(name), atol=1e-6, rtol=0)


def folder(tmp_path: Path, form: str, names: Callable[[str], bool], **config: Any) -> Path:
    """A model folder with the tensors whose names `names` takes, in two unnamed shards."""
    tmp_path.mkdir(exist_ok=True)
    kept = {n: t.contiguous().clone() for n, t in made(form).tensors.items() if names(n)}
    half = sorted(kept)[: len(kept) // 2]
    save_file({n: kept[n] for n in half}, tmp_path / "a.safetensors")
    save_file({n: t for n, t in kept.items() if n not in half}, tmp_path / "b.safetensors")
    text = tiny.config(model_type="qwen4_exp_text")
    whole = {"model_type": "qwen4_exp", "text_config": text, **config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    (tmp_path / "tokenizer.json").write_text(json_from_gguf(files.tokenizer_metadata(), tmp_path))
    return tmp_path


@pytest.mark.parametrize("form", FORMATS)
def test_a_folder_loads_as_its_tensors_do(tmp_path: Path, form: str) -> None:
    told = {"quantization_config": {"quantized_layers": made(form).layers}}
    path = folder(tmp_path / "model", form, lambda name: True, **told)
    found = load_checkpoint(path, tmp_path, lambda *_: None, supported=("qwen4_exp",))

    assert ("qwen4_exp", tiny.VOCABULARY) == (found.architecture, found.config["vocab_size"])
    assert (tiny.EOS,) == found.eos_token_ids
    torch.testing.assert_close(
        logits(loaded(config(form), made(form).tensors)),
        logits(loaded(found.config, dict(found.tensors))), atol=0, rtol=0,
    )  # fmt: skip


@pytest.mark.parametrize("own", [True, False])
def test_what_config_json_says_of_formats_wins(tmp_path: Path, own: bool) -> None:
    entry = {PREFIX + E: {"quant_algo": "NVFP4"}}
    config = {"quantization_config": {"quantized_layers": entry}} if own else {}
    path = folder(tmp_path / "model", "nvfp4", lambda name: True, **config)
    wrong = {"quantization": {"quantized_layers": {PREFIX + E: {"quant_algo": "FP8"}}}}
    (path / "hf_quant_config.json").write_text(json.dumps(wrong))
    found = load_checkpoint(path, tmp_path, lambda *_: None, supported=("qwen4_exp",))
    named = Qwen38Tensors(found.tensors, found.config)

    if own:
        named.experts(E)
    else:
        with pytest.raises(ModelError, match="is fp8 or fp8_blocks"):
            named.experts(E)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("single", [True, False])
def test_a_head_may_lie_in_a_folder_or_file_of_its_own(
    tmp_path: Path, form: str, single: bool
) -> None:
    told = {"quantization_config": {"quantized_layers": made(form).layers}}
    path = folder(tmp_path / "head", form, lambda name: name.startswith("mtp."), **told)
    if single:
        kept = {n: t.contiguous() for n, t in made(form).tensors.items() if n.startswith("mtp.")}
        path = path / "mtp.safetensors"
        save_file(kept, path)
    inside, beside = opened(form).experts(MTP_EXPERTS), open_sidecar(path, tiny.config())

    for mine, theirs in zip(inside, beside.experts(MTP_EXPERTS), strict=True):
        assert type(mine) is type(theirs)
        held = (part.decode() if isinstance(part, Packed) else part for part in (mine, theirs))
        torch.testing.assert_close(*held, atol=0, rtol=0)


def test_a_file_without_a_head_is_no_sidecar(tmp_path: Path) -> None:
    path = folder(tmp_path, "bf16", lambda name: "embed_tokens" in name or "lm_head" in name)
    with pytest.raises(ModelError, match="no tensors of a draft head"):
        open_sidecar(path, tiny.config())


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
