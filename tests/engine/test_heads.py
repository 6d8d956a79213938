"""Booting with a draft head: which one is loaded, which are left out, and what is said of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.engine import boot as booting
from flarechat.engine import heads as loading
from flarechat.engine.memory import HEADROOM
from flarechat.engine.recipes import llama
from flarechat.engine.recipes.llama import ModelArgs
from flarechat.engine.slot import SlotPool
from flarechat.engine.staging import Staging
from flarechat.models.catalog import SMOLLM2
from flarechat.models.digests import digest
from flarechat.models.sidecars import find
from flarechat.protocol import Boot, MtpInfo, Ready, Sampling, Speculation
from tests.engine.conftest import Desk
from tests.models import heads, tiny

GREEDY = Sampling(temperature=0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model in a folder of its own."""
    return tiny.write(tmp_path / "tiny.gguf").path


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.getbasetemp() / "heads-cache"
    folder.mkdir(exist_ok=True)
    return folder


Booted = Callable[..., Desk]


@pytest.fixture
def booted(model: Path, cache: Path) -> Booted:
    return lambda **boot: Desk(model, cache, **{"dtype": "float32", **boot})


def ready(desk: Desk) -> Ready:
    (event,) = [event for event in desk.events if isinstance(event, Ready)]
    return event


def states(desk: Desk) -> set[str]:
    return {type(state).__name__ for state in desk.engine.drafter.states()}


def test_a_head_beside_the_model_is_loaded_told_and_drafts_without_changing_the_text(
    booted: Booted, model: Path, cache: Path
) -> None:
    plain, _ = booted().ask("hello there", sampling=GREEDY, max_tokens=24)
    path = heads.beside(model, cache)
    desk = booted()
    speculation = Speculation(history_drafts=False, draft_tokens=3, adaptive=False)
    finished, rounds = desk.ask(
        "hello there", sampling=GREEDY, max_tokens=24, speculation=speculation
    )

    assert (
        MtpInfo(
            file=path.name,
            draft_vocabulary=len(heads.record()["draft_vocabulary"]),
            layers=1,
            parameters=sum(value.size for value in heads.tensors().values()),
        )
        == ready(desk).model.mtp
    )
    assert () == ready(desk).notices
    assert "mtp" in {source for played in rounds for source in played.draft_sources}
    assert plain.text == finished.text


def test_a_head_of_the_whole_vocabulary_drafts_from_all_tokens(
    booted: Booted, model: Path, cache: Path
) -> None:
    heads.beside(model, cache, draft_vocabulary=None)
    desk = booted()
    info = ready(desk).model.mtp
    _, rounds = desk.ask("hello", sampling=GREEDY, max_tokens=9)

    assert info is not None and ready(desk).model.vocabulary == info.draft_vocabulary
    assert 9 == sum(played.emitted for played in rounds)


def test_without_mtp_nothing_of_a_head_is_read_or_loaded(
    booted: Booted, model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads.beside(model, cache)
    with_head = booted()
    monkeypatch.setattr(loading, "candidates", None)
    desk = booted(mtp=False, mtp_file=str(tmp_path / "nothing"))
    _, rounds = desk.ask("hello", sampling=GREEDY, max_tokens=9)

    assert ready(desk).model.mtp is None and () == ready(desk).notices
    assert "mtp" not in {source for played in rounds for source in played.draft_sources}
    assert states(desk) < states(with_head)


LACKING = {name: value for name, value in heads.tensors().items() if "gate_proj" not in name}


@pytest.mark.parametrize(
    ("changes", "values", "said"),
    [
        ({"hidden_size": 64}, None, "the MTP head is for a hidden size of 64; the model has 32."),
        ({"taps": [9]}, None, "the MTP head reads layer 9; the model has layers 1 to 2."),
        ({"draft_vocabulary": [1, 4000]}, None, "the MTP head drafts token 4000; the model has"),
        ({"layers": 2}, None, "the MTP file lacks the tensor mtp.layers.1."),
        ({}, LACKING, "the MTP file lacks the tensor mtp.layers.0.mlp.gate_proj.weight."),
        ({"intermediate_size": 64}, None, "has shape (48, 32), not (64, 32)."),
        ({"format": 7}, None, "it has format 7, and this version of flarechat reads 1."),
    ],
)
def test_a_head_that_cannot_be_loaded_is_told_and_the_next_one_drafts(
    booted: Booted, model: Path, cache: Path, changes: dict[str, Any], values: Any, said: str
) -> None:
    record = heads.record([digest(model, cache)], **changes)
    broken = heads.write(model.with_name("a-mtp.safetensors"), record, values)
    alone = booted()
    heads.beside(model, cache)
    desk = booted()
    finished, _ = alone.ask("hello", sampling=GREEDY, max_tokens=9)

    for each in (alone, desk):
        (notice,) = ready(each).notices
        assert notice.startswith(f"The MTP file {broken} is not used: ") and said in notice
        assert notice.endswith(".") and not notice.endswith("..") and "\n" not in notice
    assert states(alone) == states(booted(mtp=False))
    assert ready(alone).model.mtp is None
    assert "length" == finished.reason
    info = ready(desk).model.mtp
    assert info is not None and "tiny-mtp.safetensors" == info.file


def test_a_head_asked_for_that_is_for_another_model_is_named_with_both_fingerprints(
    booted: Booted, model: Path, cache: Path, tmp_path: Path
) -> None:
    asked = heads.write(tmp_path / "elsewhere" / "theirs.safetensors")
    desk = booted(mtp_file=str(asked))

    assert ready(desk).model.mtp is None
    assert (
        f"The MTP file {asked} is not used: this model is {digest(model, cache)[:16]}, and the "
        f"file is for {heads.TARGET[:16]}.",
    ) == ready(desk).notices


def test_the_head_that_ships_is_small_and_says_how_it_was_made(tmp_path: Path) -> None:
    refused: list[str] = []
    found = find(tmp_path / "model.gguf", SMOLLM2.gguf_sha256, refused=refused.append)

    assert found is not None and [] == refused
    assert found.path.stat().st_size <= 12_000_000
    record = found.record
    assert [SMOLLM2.gguf_sha256] == record["targets"]
    assert "Apache-2.0" == record["licence"]
    assert record["tokens"] > 0 and record["seed"] >= 0
    assert record["draft_vocabulary"] and all(loss > 0 for loss in record["losses"])
    for law in record["acceptance"]["laws"]:
        survival = law["survival"]
        assert sorted(survival, reverse=True) == survival and 0 < survival[-1] < survival[0] < 1


COUNT = itertools.count()


@pytest.fixture(scope="module")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Any]:
    """A tiny model file, its digest and its target, loaded once."""
    folder = tmp_path_factory.mktemp("fuzzed")
    path = tiny.write(folder / "tiny.gguf").path
    checkpoint = booting.load_checkpoint(path, folder, lambda *step: None, supported=("llama",))
    target = llama.load(
        checkpoint.config, checkpoint.tensors, slots=1, context=128, dtype="float32",
        device=torch.device("cpu"),
    )  # fmt: skip
    return path, checkpoint.fingerprint, target


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=3)), max_size=3),
    st.floats(0.9, 1),
)
def test_no_byte_of_a_head_file_stops_the_model(
    tiny_target: tuple[Path, str, Any], changes: list[tuple[float, bytes]], kept: float
) -> None:
    path, fingerprint, target = tiny_target
    data = bytearray(heads.content(heads.record([fingerprint])))
    header = 8 + int.from_bytes(data[:8], "little")
    for share, new in changes:
        at = int(share * (header - 4))
        data[at : at + len(new)] = new
    # A folder of its own: the head of the example before may still be packed from its mapped file.
    folder = path.with_name(f"example-{next(COUNT)}")
    folder.mkdir()
    (folder / "mtp.safetensors").write_bytes(data[: int(kept * len(data))])
    setup = loading.Setup(
        device=torch.device("cpu"), dtype="float32", lanes=1, context=128, available=1 << 40
    )
    said: list[str] = []
    boot = Boot(model=str(folder / path.name), cache="")
    alone = llama.price(target.args, 1, 128, "float32")
    model: Any = SimpleNamespace(fingerprint=fingerprint)
    loaded = loading.load_head(boot, llama, target, model, lambda _: alone, setup, said.append)

    assert loaded is None or [] == said
    assert len(said) <= 1
    assert changes or kept < 1 or loaded is not None


def prices(model: Path, cache: Path, context: int) -> tuple[int, int]:
    """Bytes of the tiny model alone, and of its head, at this context."""
    args = ModelArgs.from_config(
        booting.load_checkpoint(model, cache, lambda *step: None, supported=("llama",)).config
    )
    found = find(model, digest(model, cache))
    assert found is not None
    alone = llama.price(args, 1, context, "float32")
    alone["slots"] = SlotPool.price(1, args.vocab_size) + Staging.price(1)
    head = llama.price_head(args, found.record, 1, context, "float32")
    return sum(alone.values()), sum(head.values())


def test_where_only_the_model_fits_the_head_is_left_out_with_the_figures(
    booted: Booted, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = heads.beside(model, cache)
    alone, head = prices(model, cache, 128)

    def with_room(needed: int) -> Ready:
        free = int(needed / HEADROOM) + 8
        monkeypatch.setattr(booting, "_available", lambda device: free)
        return ready(booted())

    fits, tight = with_room(alone + head), with_room(alone + head - 1000)

    assert fits.model.mtp is not None and () == fits.notices
    assert tight.model.mtp is None
    (notice,) = tight.notices
    assert notice.startswith(
        f"The MTP file {path} is not used: with it the model with --ctx 128 needs "
    )
    for part in ("weights", "mtp weights", "caches", "is free"):
        assert part in notice
    assert with_room(alone).model.mtp is None


def test_models_of_a_family_without_heads_have_none(tmp_path: Path) -> None:
    said: list[str] = []
    setup = loading.Setup(
        device=torch.device("cpu"), dtype="float32", lanes=1, context=8, available=0
    )

    def loaded(**boot: Any) -> loading.LoadedHead | None:
        asked = Boot(model=str(tmp_path), cache="", **boot)
        model: Any = SimpleNamespace(fingerprint="f")
        return loading.load_head(asked, SimpleNamespace(), None, model, dict, setup, said.append)

    assert loaded() is None and [] == said
    assert loaded(mtp_file="x") is None
    assert ["The MTP file x is not used: models of this family take no head."] == said
