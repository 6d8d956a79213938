"""Checkpoints of every published format, and what they load as."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from flarechat.engine.layers.experts import DenseExperts, Fp8Experts, Nvfp4Experts, hold_experts
from flarechat.engine.text.tokenizer import json_from_gguf
from flarechat.engine.weights import load_checkpoint
from flarechat.engine.weights.formats import Packed
from flarechat.engine.weights.qwen38 import Qwen38Tensors, open_sidecar
from flarechat.errors import ModelError
from tests.engine.qwen38 import packing, tiny
from tests.engine.qwen38.loading import E, config, loaded, logits, made, opened
from tests.engine.qwen38.packing import EXPERTS, FORMATS, MTP_EXPERTS, PREFIX, TABLE
from tests.models import tiny as files


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


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("base", [E, MTP_EXPERTS])
def test_activations_are_never_packed_the_heads_neither(form: str, base: str) -> None:
    generator = torch.Generator().manual_seed(2)
    x, share = (torch.randn(5, size, generator=generator) for size in (64, 2))
    ids = torch.tensor([[0, 3], [3, 1], [7, 0], [2, 6], [5, 4]])
    tensors, prefix = dict(made(form).tensors), "" if base.startswith("mtp.") else PREFIX
    for name in made(form).tensors:
        if f"{base}." in name and name.endswith("_proj.weight"):
            tensors[name.replace("weight", "input_scale")] = torch.tensor(0.5)
    values = made(form).values
    floats = DenseExperts(
        values[f"{prefix}{base}.gate_up_proj"].float(), values[f"{prefix}{base}.down_proj"].float()
    )
    parts = [p.float() if isinstance(p, Tensor) else p for p in opened(form, tensors).experts(base)]

    torch.testing.assert_close(
        floats(x, ids, share), hold_experts(*parts)(x, ids, share), atol=1e-5, rtol=1e-5
    )
