"""Where a Qwen3.8 head is found, in which order, and what is said of those that are left out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from flarechat.engine.make_random.__main__ import SIDECAR
from flarechat.models.sidecars import RECORD_KEY
from flarechat.protocol import Ready
from tests.engine.conftest import Desk
from tests.engine.qwen38 import random


def booted(model: Path, tmp_path: Path, asked: Path | None = None, **boot: Any) -> Ready:
    """What a boot of the checkpoint told, once it stood."""
    given = {"mtp_file": str(asked)} if asked else {}
    made = Desk(model, tmp_path / "cache", dtype="float32", context=64, **given, **boot)
    (ready,) = [event for event in made.events if isinstance(event, Ready)]
    return ready


@pytest.fixture
def without(tmp_path: Path) -> Path:
    """A checkpoint without a head."""
    folder = tmp_path / "model"
    shutil.copytree(random.folder("bf16", "none"), folder)
    return folder


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """The tensors of a head alone, in a file without a record."""
    place = tmp_path / "alone" / "head.safetensors"
    place.parent.mkdir()
    save_file(load_file(random.folder("bf16", "sidecar") / SIDECAR), place)
    return place


def record_of(targets: list[str], **changes: Any) -> dict[str, str]:
    record = {
        "format": 1, "targets": targets, "hidden_size": 64, "layers": 1, "intermediate_size": 32,
        "taps": [4], "draft_vocabulary": None, "licence": "none", **changes,
    }  # fmt: skip
    return {RECORD_KEY: json.dumps(record)}


def test_a_checkpoint_without_a_head_has_none(without: Path, tmp_path: Path) -> None:
    ready = booted(without, tmp_path)

    assert ready.model.mtp is None
    assert () == ready.notices


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_a_head_without_a_record_is_taken_where_the_user_points(
    without: Path, head: Path, tmp_path: Path, folder: bool
) -> None:
    asked = head.parent if folder else head
    ready = booted(without, tmp_path, asked)

    assert () == ready.notices
    assert ready.model.mtp is not None
    assert (asked.name, 320) == (ready.model.mtp.file, ready.model.mtp.draft_vocabulary)
    assert booted(without, tmp_path, asked, mtp=False).model.mtp is None


def test_the_head_asked_for_comes_before_the_one_inside(head: Path, tmp_path: Path) -> None:
    model = random.folder("bf16", "inside")
    found = [booted(model, tmp_path, asked).model.mtp for asked in (None, head)]

    assert ["bf16-inside", "head.safetensors"] == [info.file for info in found if info]


def test_a_record_may_cut_the_vocabulary_it_drafts(without: Path, tmp_path: Path) -> None:
    fingerprint = booted(without, tmp_path).model.fingerprint
    tensors = load_file(random.folder("bf16", "sidecar") / SIDECAR)
    record = record_of([fingerprint], draft_vocabulary=[3, 5, 9])
    save_file(tensors, without / "mtp.safetensors", metadata=record)
    info = booted(without, tmp_path).model.mtp

    assert info is not None
    assert ("mtp.safetensors", 3) == (info.file, info.draft_vocabulary)


REFUSED = {
    "is for another model": (record_of(["0" * 64]), {}, "and the file is for 0000000000000000"),
    "has no such width": (None, {"fc_hidden": 2}, "mtp.fc_hidden.weight has shape"),
    "lacks a tensor": (None, {"fc_embedding": 0}, "lacks the tensor mtp.fc_embedding.weight"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_head_that_does_not_fit_is_told_of_and_the_chat_goes_on(
    head: Path, tmp_path: Path, case: tuple[Any, dict[str, int], str]
) -> None:
    record, cut, words = case
    tensors = load_file(head)
    for name, rows in cut.items():
        tensor = tensors.pop(f"mtp.{name}.weight")
        if rows:
            tensors[f"mtp.{name}.weight"] = tensor[:rows].clone()
    save_file(tensors, head, metadata=record)
    ready = booted(random.folder("bf16", "inside"), tmp_path, head)

    assert 1 == len(ready.notices)
    assert words in ready.notices[0]
    assert str(head) in ready.notices[0]
    assert ready.model.mtp is not None and "bf16-inside" == ready.model.mtp.file


@pytest.mark.parametrize("content", [None, b"", b"\x08\0\0\0\0\0\0\0not json"])
def test_a_file_that_is_none_is_told_of(
    without: Path, tmp_path: Path, content: bytes | None
) -> None:
    asked = tmp_path / "broken.safetensors"
    if content is not None:
        asked.write_bytes(content)
    ready = booted(without, tmp_path, asked)

    assert 1 == len(ready.notices)
    assert str(asked) in ready.notices[0]
    assert ready.model.mtp is None
