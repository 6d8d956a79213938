"""Random checkpoints: what they are named, how they are stored, and that they appear whole."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flarechat.engine.layers import ngram
from flarechat.engine.make_random import __main__ as process
from flarechat.engine.make_random import stored
from flarechat.engine.make_random.geometry import FORMATS, Wanted, config, narrow, sizes
from flarechat.engine.make_random.qwen38 import Tensors
from flarechat.engine.make_random.shards import Group, ShardWriter, Streamed, write_file
from flarechat.engine.make_random.stored import Drawn, Draws
from flarechat.engine.recipes.qwen38 import ModelArgs
from flarechat.engine.recipes.qwen38.mtp_file import head_shapes
from flarechat.engine.recipes.qwen38.shapes import shapes
from flarechat.engine.weights.checkpoint import SafetensorsFiles, open_safetensors
from flarechat.engine.weights.formats import Packed
from flarechat.engine.weights.qwen38 import Qwen38Tensors
from flarechat.errors import StorageError, UsageError
from flarechat.models import headers
from flarechat.models.folder import weight_files
from tests.engine.qwen38 import random

_BASE, _HEAD = "layers.2.mlp.experts", "mtp.layers.0.mlp.experts"
_TABLE = "layers.1.ple.ple_embedding.ngram_embedding"


def opened(path: Path) -> Qwen38Tensors:
    files = weight_files(path)
    places = {name: file for file in files for name in open_safetensors(file).keys()}
    return Qwen38Tensors(SafetensorsFiles(places), json.loads((path / "config.json").read_text()))


def kind(value: Tensor | Packed) -> str:
    return value.kind if isinstance(value, Packed) else str(value.dtype).removeprefix("torch.")


def floats(value: Tensor | Packed) -> Tensor:
    return value.decode() if isinstance(value, Packed) else value.float()


@pytest.mark.parametrize(
    ("form", "routed", "table", "drafts", "linear"),
    [
        ("bf16", "bfloat16", "bfloat16", "bfloat16", "bfloat16"),
        ("fp8", "fp8_blocks", "fp8", "fp8_blocks", "bfloat16"),
        ("nvfp4", "nvfp4", "fp8", "bfloat16", "bfloat16"),
        ("nvfp4-mtp-fp8", "nvfp4", "fp8", "fp8_blocks", "bfloat16"),
        ("fp4-local", "nvfp4", "nvfp4", "nvfp4", "mxfp8"),
    ],
)
def test_every_format_is_what_its_name_says(
    form: str, routed: str, table: str, drafts: str, linear: str
) -> None:
    named = opened(random.folder(form))
    name = "layers.0.linear_attn.in_proj_qkv"

    assert {routed} == {kind(part) for part in named.experts(_BASE)}
    assert {drafts} == {kind(part) for part in named.experts(_HEAD)}
    assert [table] * 16 == [kind(part) for part in named.table(_TABLE)]
    assert linear == kind(named.value(name))
    assert "bfloat16" == kind(named.value("mtp.layers.0.self_attn.q_proj"))


def test_every_format_stores_the_same_drawn_values() -> None:
    exact = opened(random.folder("bf16"))
    name = "layers.3.self_attn.o_proj"
    for form in FORMATS[1:]:
        named = opened(random.folder(form))
        pairs = [
            *zip(exact.experts(_BASE), named.experts(_BASE), strict=True),
            *zip(exact.experts(_HEAD), named.experts(_HEAD), strict=True),
            *zip(exact.table(_TABLE), named.table(_TABLE), strict=True),
            (exact.value(name), named.value(name)),
        ]
        for left, right in pairs:
            a, b = floats(left).flatten(), floats(right).flatten()
            off = float((a - b).norm() / a.norm())
            assert off < 0.12, (form, off)


def test_the_formats_use_the_published_names() -> None:
    def names(form: str) -> set[str]:
        return {n for n in headers.folder_table(random.folder(form)) if ".experts.3." in n}

    target = "model.language_model.layers.0.mlp.experts.3.down_proj"
    head = "mtp.layers.0.mlp.experts.3.down_proj"

    assert set() == names("bf16")
    assert {f"{target}.weight", f"{target}.weight_scale_inv"} <= names("fp8")
    four = {
        f"{target}.{end}" for end in ("weight", "weight_scale", "weight_scale_2", "input_scale")
    }
    assert four == {name for name in names("nvfp4") if name.startswith(target)}
    csf = four - {f"{target}.weight_scale"}
    csf |= {f"{target}.weight_scale.nvfp4_csf_{part}" for part in ("fixed", "exceptions")}
    assert csf == {name for name in names("fp4-local") if name.startswith(target)}
    raw = {f"{head}.{end}" for end in ("weight", "weight_scale", "weight_scale_2")}
    assert raw == {name for name in names("fp4-local") if name.startswith(head)}
    blocks = {f"{head}.weight", f"{head}.weight_scale_inv"}
    assert blocks == {name for name in names("nvfp4-mtp-fp8") if name.startswith(head)}
    bare = headers.folder_table(random.folder("bf16"))
    assert {"model.language_model.layers.0.mlp.experts.gate_up_proj", "lm_head.weight"} <= set(bare)
    assert 31 == sum(name.startswith("mtp.") for name in bare)


@pytest.mark.parametrize("form", FORMATS)
def test_the_real_geometry_has_the_published_tensors(form: str) -> None:
    """Nothing is drawn: only names and shapes are looked at, and compared with the loader's."""
    wanted = random.wanted(form, geometry="real", layers=48)
    tensors, args = Tensors.of(wanted), ModelArgs.from_config(config(wanted))
    own = {name: drawn.shape for n in range(48) for name, drawn in tensors._dense_layer(n).items()}
    head = {name: drawn.shape for name, drawn in tensors._dense_mtp().items()}
    prefix = "model.language_model."
    implied = {
        f"{prefix}{name}": shape
        for name, shape in shapes(args).items()
        if name.startswith("layers.") and ".experts." not in name and "ple_embedding" not in name
    }

    assert implied == own
    assert head == {n: s for n, s in head_shapes(args).items() if ".experts." not in n}
    assert (2_500_012, 160) == tensors._table.shape
    assert [23703573157769, 20109073645365, 8052911324071] == ngram.multipliers(248320, 1234)
    published = {"bf16": 359_999_963_128, "fp8": 185_502_232_570, "fp4-local": 102.14e9}
    if form in published:
        assert 0.99 < tensors.bytes / published[form] < 1.08
    packed = {module for n in range(48) for module in narrow(wanted, n)}
    assert (384 if form == "fp4-local" else 0) == len(packed)
    assert {f"{module}.weight" for module in packed} <= set(own)


def test_the_config_is_validated_and_says_how_the_family_differs_from_its_class_defaults() -> None:
    for geometry in ("tiny", "real"):
        text = sizes(random.wanted(geometry=geometry, layers=8))
        args = ModelArgs.from_config(config(random.wanted(geometry=geometry, layers=8)))

        assert ("sigmoid", [2], 1) == (text["output_gate_type"], text["ple_layer_ids"],
                                       args.ple_layer)  # fmt: skip
        assert (3, 7) == args.sparse_layers
    quantised = config(random.wanted("fp4-local"))["quantization_config"]["quantized_layers"]
    assert "W4A16_NVFP4" == quantised["mtp.layers.4.mlp.experts"]["quant_algo"]
    first = quantised["model.language_model.layers.0.mlp.experts"]
    assert "csf" == first["weight_scale_encoding"]


def test_a_seed_decides_every_value() -> None:
    drawn = Drawn((4, 8))
    one, again, other = (Draws(seed).values("x", drawn) for seed in (1, 1, 2))

    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one, Draws(1).values("y", drawn))


def test_large_tensors_are_drawn_in_blocks_and_the_table_repeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored, "BLOCK", 64)
    monkeypatch.setattr(stored, "TABLE_BLOCK", 3)
    draws = Draws(0)
    _, item = draws.dense("x", Drawn((20, 16)))
    assert isinstance(item, Streamed)
    parts = list(item.parts())
    _, table = next(draws.shard("t", Drawn((8, 16), "table"), "bf16"))
    assert isinstance(table, Streamed)
    rows = torch.cat(list(table.parts()))

    assert [4] * 5 == [len(part) for part in parts]
    assert 20 == len(torch.unique(torch.cat(parts), dim=0))
    assert (8, 16) == rows.shape
    assert torch.equal(rows[:3], rows[3:6]) and torch.equal(rows[:2], rows[6:])


def test_files_lie_as_the_format_wants_them(tmp_path: Path) -> None:
    values = {
        "bytes": torch.arange(3, dtype=torch.uint8),
        "wide": torch.tensor([1.5, -2.0]),
        "alone": torch.tensor(7.0),
        "none": torch.empty(0, dtype=torch.uint32),
        "small": torch.ones(2, 2, dtype=torch.bfloat16),
        "f8": torch.ones(5).to(torch.float8_e4m3fn),
    }
    writer = ShardWriter(tmp_path, 1, lambda size: None)
    writer.write(Group(6, values.items))
    writer.finish()
    write_file(tmp_path / "one.st", Group(6, values.items), {"who": "me"}, lambda size: None)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    first, last = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))

    assert {"bytes": first, "f8": first, "wide": last, "alone": last, "none": last,
            "small": last} == index["weight_map"]  # fmt: skip
    assert sum(value.nbytes for value in values.values()) == index["metadata"]["total_size"]
    for path in (tmp_path / first, tmp_path / last, tmp_path / "one.st"):
        file = open_safetensors(path)
        for name in file.keys():
            got = file.get_tensor(name)
            assert (values[name].dtype, values[name].shape) == (got.dtype, got.shape)
            assert values[name].float().tolist() == got.float().tolist()
    assert "me" == open_safetensors(tmp_path / "one.st").metadata()["who"]
    (length,) = struct.unpack("<Q", (tmp_path / "one.st").read_bytes()[:8])
    assert 0 == length % 8


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"family": "llama"}, "family llama is unknown."),
        ({"layers": 3}, "--layers 3 is out of range."),
        ({"layers": 49}, "--layers 49 is out of range."),
        ({"geometry": "huge"}, "--geometry huge is unknown."),
        ({"seed": -1}, "--seed -1 is out of range."),
    ],
)
def test_what_cannot_be_is_refused_by_its_flag(fields: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as told:
        random.wanted(**fields)  # type: ignore[arg-type]

    assert said == told.value.message


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(StorageError) as told:
        process.make(random.wanted(), tmp_path, lambda event: None)

    assert f"{tmp_path} is not an empty folder." == told.value.message
    assert ["mine.txt"] == os.listdir(tmp_path)


def test_a_disk_that_is_too_small_is_seen_before_anything_is_written(tmp_path: Path) -> None:
    wanted = Wanted(
        family="qwen38", layers=48, geometry="real", format="bf16", mtp="inside", seed=0
    )
    size = Tensors.of(wanted).bytes
    folder = tmp_path / "real"
    if size < os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize:
        size = -1  # a disk this large takes it
    else:
        with pytest.raises(StorageError) as told:
            process.make(wanted, folder, lambda event: None)
        assert told.value.message.startswith(f"The random model needs {size / 1e6:,.0f} MB in ")

    assert [] == os.listdir(tmp_path)


def test_a_failure_on_the_way_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Draws, "shard", broken)
    folder = tmp_path / "model"
    with pytest.raises(StorageError) as told:
        process.make(random.wanted(), folder, lambda event: None)

    assert f"The disk is full: {folder} cannot be written." == told.value.message
    assert "Free space, or give a folder on another disk." == told.value.hint
    assert [] == os.listdir(tmp_path)


def test_it_takes_no_more_than_was_foreseen() -> None:
    for form in FORMATS:
        size = sum(file.stat().st_size for file in random.folder(form).iterdir())
        assert size <= Tensors.of(random.wanted(form)).bytes
        total = sum(math.prod(row["shape"]) for row in headers.folder_table(
            random.folder(form)).values())  # fmt: skip
        assert total > 500_000
