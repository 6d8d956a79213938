"""What memory admission reckons is what is allocated, in every format and to the byte."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flarechat.engine.allocated import storage
from flarechat.engine.boot import boot_engine
from flarechat.engine.heads import Setup, load_head
from flarechat.engine.layers.ngram_table import NgramTable
from flarechat.engine.make_random.geometry import FORMATS, config
from flarechat.engine.memory import Terms, admit
from flarechat.engine.recipes import qwen38
from flarechat.engine.recipes.qwen38.config import ModelArgs
from flarechat.engine.recipes.qwen38.mtp_file import head_shapes
from flarechat.engine.recipes.qwen38.price import held
from flarechat.engine.recipes.qwen38.shapes import shapes
from flarechat.engine.weights.qwen38 import Qwen38Tensors
from flarechat.errors import ModelError
from flarechat.protocol import Boot, Ready
from tests.engine.qwen38 import random

CPU, CONTEXT, SLOTS = torch.device("cpu"), 96, 2
REAL = ModelArgs.from_config(config(random.wanted(geometry="real", layers=48)))
MIB = 2**20


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("form", "mtp"), random.PLACES)
def test_the_price_is_what_is_allocated(form: str, mtp: str, dtype: str) -> None:
    found = random.checkpoint(form, mtp)
    args = ModelArgs.from_config(found.config)
    prices = qwen38.price_stored(
        args, found.config, found.tensors, slots=SLOTS, context=CONTEXT, dtype=dtype, device=CPU
    )
    model = qwen38.load(
        found.config, found.tensors, slots=SLOTS, context=CONTEXT, dtype=dtype, device=CPU
    )
    caches, seen = model.caches, set[int]()
    states = caches.recurrent.nbytes + caches.ngram.nbytes
    growing = caches.sparse.kv.nbytes + caches.sparse.indexer.nbytes
    growing += model.rope.cos.nbytes + model.rope.sin.nbytes

    assert {"states": states, "caches": growing} == {k: prices[k] for k in ("states", "caches")}
    assert storage(caches, seen) == states + growing - storage(model.rope, seen)
    assert prices["weights"] == storage(model, seen)

    sidecar, named = next(qwen38.find_heads(
        found.config, found.tensors, random.folder(form, mtp), None, found.fingerprint, pytest.fail
    ))  # fmt: skip
    own = qwen38.price_stored_head(
        args, sidecar.record, named, slots=SLOTS, context=CONTEXT, dtype=dtype
    )
    head = qwen38.load_head(model, sidecar.record, named, dtype=dtype, device=CPU)
    rows, tail = head.cache(SLOTS, CONTEXT)

    assert own["mtp weights"] == storage(head, seen)
    assert own["mtp caches"] == rows.nbytes + tail.nbytes == storage((rows, tail), seen)


@pytest.mark.parametrize(("form", "mtp"), random.PLACES)
def test_a_loaded_model_tells_its_price_and_what_is_allocated(
    form: str, mtp: str, tmp_path: Path
) -> None:
    told: list[Any] = []
    boot = Boot(
        model=str(random.folder(form, mtp)), cache=str(tmp_path), dtype="bfloat16", context=CONTEXT
    )
    boot_engine(boot, told.append)
    memory = next(event for event in told if isinstance(event, Ready)).model.memory

    assert memory is not None
    parts = {"weights", "states", "caches", "slots", "mtp weights", "mtp caches"}
    assert parts == memory.priced.keys()
    assert sum(memory.priced.values()) == memory.allocated


def test_experts_stay_packed() -> None:
    priced = {}
    for form in FORMATS:
        found = random.checkpoint(form)
        args = ModelArgs.from_config(found.config)
        named, name = Qwen38Tensors(found.tensors, found.config), "layers.0.mlp.experts.down_proj"
        priced[form] = held(named, name, shapes(args)[name], torch.bfloat16)
    values = 8 * 64 * 32

    assert 2 * values == priced["bf16"]
    assert values + 8 * 2 == priced["fp8"]
    four_bits = values // 2 + values // 16 + 8 * 4
    assert [four_bits] * 3 == [priced[f] for f in ("nvfp4", "nvfp4-mtp-fp8", "fp4-local")]


def test_the_real_geometry_has_the_figures_of_its_description() -> None:
    bf16, float32 = torch.bfloat16, torch.float32
    one = qwen38.price(REAL, 1, 4096, "bfloat16")
    more = qwen38.price(REAL, 1, 8192, "bfloat16")
    recurrent = 36 * 48 * 128 * 128 * float32.itemsize
    conv, ngram = 36 * 10240 * 3 * bf16.itemsize, 10240 * 9 * bf16.itemsize
    records = 36 * 8 * 32_960
    fresh = 8 * (36 * 10240 + 10240) * bf16.itemsize

    assert 108 * MIB == recurrent
    assert (36 * 60 * 1024, 180 * 1024) == (conv, ngram)
    held = recurrent + conv + ngram + 2 * 8  # as it was before a round that is judged

    assert recurrent + conv + ngram + held + records + fresh + (2 + 8) * 8 == one["states"]
    assert one["states"] == more["states"]
    assert 12 * (2048 + 64) * 4096 == more["caches"] - one["caches"]

    heads = [qwen38.price_head(REAL, {}, 1, context, "bfloat16") for context in (4096, 8192)]
    assert 2112 * 4096 == heads[1]["mtp caches"] - heads[0]["mtp caches"]
    assert 2_607_150_848 * 2 == heads[0]["mtp weights"]
    few = qwen38.price_head(REAL, {"draft_vocabulary": range(64_000)}, 1, 4096, "bfloat16")
    assert 64_000 * (2560 * 2 + 8) == few["mtp weights"] - heads[0]["mtp weights"]
    assert 20 * 1024 == REAL.residual_size * bf16.itemsize


def test_the_real_tensors_are_as_many_as_published() -> None:
    named = shapes(REAL)
    count = {name: math.prod(shape) for name, shape in named.items()}
    routed = sum(size for name, size in count.items() if ".experts." in name)
    table = sum(size for name, size in count.items() if "ngram_embedding" in name)

    assert 120_795_955_200 == routed
    assert 320_001_536 * 160 == table
    assert 2_607_150_848 == sum(math.prod(shape) for shape in head_shapes(REAL).values())
    # 128 shards are one table here, 31 tensors are the head's, and 333 see pictures.
    assert 1658 == len(named) + 127 + len(head_shapes(REAL)) + 333


def test_the_packed_head_of_the_local_format_has_its_published_size() -> None:
    dense = sum(
        math.prod(shape)
        for name, shape in head_shapes(REAL).items()
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj"))
    )
    named = _Looks({"mtp.layers.0.mlp.experts.0.gate_proj.weight": torch.uint8,
                    "mtp.layers.0.mlp.experts.0.down_proj.weight": torch.uint8})  # fmt: skip
    priced = {
        name: held(named, name, shape, torch.bfloat16)  # type: ignore[arg-type]
        for name, shape in head_shapes(REAL).items()
    }
    norms = sum(size // 2 for name, size in priced.items() if named.is_offset_norm(name))

    assert 90_568_448 == dense
    assert 1_596_720_640 == sum(priced.values()) - norms


class _Looks:
    """A checkpoint of which only types are known."""

    is_offset_norm = staticmethod(Qwen38Tensors.is_offset_norm)

    def __init__(self, types: dict[str, torch.dtype]) -> None:
        self._types = types

    def __contains__(self, name: str) -> bool:
        return name in self._types

    def look(self, name: str) -> Tensor:
        return torch.empty(0, dtype=self._types[name], device="meta")


@pytest.mark.parametrize("pinned", [False, True])
def test_a_gpu_also_holds_rows_used_last_or_the_addresses_of_a_pinned_table(
    pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("flarechat.engine.recipes.qwen38.price")
    monkeypatch.setattr(module, "pins", lambda size, device: pinned)
    extra = {}
    for form in ("bf16", "fp8", "fp4-local"):
        found = random.checkpoint(form)
        args = ModelArgs.from_config(found.config)
        cpu, gpu = (
            qwen38.price_stored(
                args, found.config, found.tensors, slots=1, context=CONTEXT, dtype="bfloat16",
                device=torch.device(name),
            )["weights"]
            for name in ("cpu", "cuda")
        )  # fmt: skip
        extra[form] = gpu - cpu
        table = Qwen38Tensors(found.tensors, found.config).table(
            "layers.1.ple.ple_embedding.ngram_embedding"
        )
        held = NgramTable(table, dtype=torch.bfloat16, device=CPU, cached_rows=1 << 16)
        assert pinned or extra[form] == held.nbytes

    rows, addresses = (0, 16 * 8) if pinned else (65536, 0)
    assert {
        "bf16": rows * 32 + 2 * addresses,
        "fp8": rows * 16 + 2 * addresses,
        "fp4-local": rows * 9 + 3 * addresses,
    } == extra


def test_what_does_not_fit_is_refused_with_a_context_that_would() -> None:
    def quote(terms: Terms) -> dict[str, int]:
        return {"weights": 100 * MIB, "states": 50 * MIB, "caches": terms.context * 1024}

    available = math.ceil((150 * MIB + 1024 * 1024) / 0.9)
    setup = Setup(device=CPU, dtype="bfloat16", lanes=1, context=4096, available=available)
    with pytest.raises(ModelError) as told:
        admit(quote, setup.terms(), available)

    assert "(weights 100 MiB, states 50 MiB, caches 4 MiB)" in told.value.message
    assert "--ctx 1024 would fit with 1 lane(s)." == told.value.hint


def test_a_head_that_does_not_fit_beside_the_model_is_left_out() -> None:
    found, said = random.checkpoint("nvfp4"), list[str]()
    args = ModelArgs.from_config(found.config)
    model = qwen38.load(found.config, found.tensors, slots=1, context=CONTEXT, dtype="float32",
                        device=CPU)  # fmt: skip
    prices = qwen38.price_stored(args, found.config, found.tensors, slots=1, context=CONTEXT,
                                 dtype="float32", device=CPU)  # fmt: skip
    room = math.ceil(sum(prices.values()) / 0.9) + 1000
    setup = Setup(device=CPU, dtype="float32", lanes=1, context=CONTEXT, available=room)
    boot = Boot(model=str(random.folder("nvfp4")), cache="")

    assert load_head(boot, qwen38, model, found, lambda _: prices, setup, said.append) is None
    assert "is not used: with it the model with --ctx 96 needs" in said[0]
