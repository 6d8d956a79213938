"""Finding a draft head: whose it is, in which order, and what is said of one that is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flarechat import paths
from flarechat.models.sidecars import MOST_HEADER_BYTES, Sidecar, candidates, find
from tests.models import heads
from tests.models.heads import TARGET

OTHER = "cd" * 32


@pytest.fixture(autouse=True)
def assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An assets folder of the test's own, empty."""
    folder = tmp_path / "assets"
    folder.mkdir()
    monkeypatch.setattr(paths, "assets_dir", lambda: folder)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder / "tiny.gguf"


def looked(
    model: Path, fingerprint: str = TARGET, explicit: Path | None = None
) -> tuple[Sidecar | None, list[str]]:
    """What was found and what was said."""
    said: list[str] = []
    return find(model, fingerprint, explicit=explicit, refused=said.append), said


def test_a_head_is_found_by_the_fingerprint_of_its_model(model: Path) -> None:
    path = heads.write(model.with_name("any-MTP-name.safetensors"), heads.record([OTHER, TARGET]))
    found, said = looked(model)

    assert found is not None and path == found.path
    assert [] == said
    assert sum(value.size for value in heads.tensors().values()) == found.parameters
    assert (32, 64) == found.tensors["mtp.fc.weight"]
    assert len(heads.record()["draft_vocabulary"]) == found.draft_vocabulary
    assert (None, []) == looked(model, "ee" * 32)


def test_a_head_for_the_whole_vocabulary_says_so(model: Path) -> None:
    heads.write(model.with_name("mtp.safetensors"), heads.record(draft_vocabulary=None))
    found, said = looked(model)

    assert found is not None and found.draft_vocabulary is None and [] == said


def test_the_file_asked_for_comes_first_then_the_models_folder_then_the_assets(
    model: Path, assets: Path, tmp_path: Path
) -> None:
    shipped = heads.write(assets / "mtp.safetensors")
    near = heads.write(model.with_name("b-mtp.safetensors"))
    nearer = heads.write(model.with_name("a-mtp.safetensors"))
    asked = heads.write(tmp_path / "any name")

    def order(explicit: Path | None) -> list[Path]:
        return [sidecar.path for sidecar in candidates(model, TARGET, explicit=explicit)]

    assert [asked, nearer, near, shipped] == order(asked)
    assert [near, nearer, shipped] == order(near)
    assert [nearer, near, shipped] == order(None)


def test_the_head_of_a_model_folder_lies_in_it(model: Path) -> None:
    folder = model.with_suffix("")
    path = heads.write(folder / "mtp.safetensors")
    found, _ = looked(folder)

    assert found is not None and path == found.path


def test_files_for_something_else_are_passed_over_in_silence(model: Path, assets: Path) -> None:
    heads.write(model.with_name("other-mtp.safetensors"), heads.record([OTHER], format=99))
    plain = b'{"mtp.fc.weight":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}'
    model.with_name("mtp-weights.safetensors").write_bytes(
        len(plain).to_bytes(8, "little") + plain + bytes(8)
    )
    model.with_name("mtp.gguf").write_bytes(b"GGUF")
    heads.write(model.with_name("head.safetensors"))

    assert (None, []) == looked(model)


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"format": 2}, "it has format 2, and this version of flarechat reads 1"),
    ({"format": True}, "format = True"),
    ({"format": ...}, "format = None"),
    ({"hidden_size": 0}, "hidden_size = 0"),
    ({"hidden_size": 32.0}, "hidden_size = 32.0"),
    ({"layers": "1"}, "layers = '1'"),
    ({"layers": 2**40}, "layers = 1099511627776"),
    ({"intermediate_size": ...}, "intermediate_size = None"),
    ({"taps": []}, "taps = []"),
    ({"taps": [2, "1"]}, "taps = [2, '1']"),
    ({"taps": [0]}, "taps = [0]"),
    ({"taps": {"2": 1}}, "taps = {'2': 1}"),
    ({"draft_vocabulary": ...}, "lacks draft_vocabulary"),
    ({"draft_vocabulary": [1, 1]}, "rising token ids"),
    ({"draft_vocabulary": [-1, 1]}, "rising token ids"),
    ({"draft_vocabulary": [1, True]}, "rising token ids"),
    ({"draft_vocabulary": []}, "rising token ids"),
]


@pytest.mark.parametrize(("changes", "said"), FAULTS)
def test_a_faulty_record_is_told_in_one_sentence_and_the_next_file_is_tried(
    model: Path, assets: Path, changes: dict[str, Any], said: str
) -> None:
    broken = heads.write(model.with_name("mtp.safetensors"), heads.record(**changes))
    good = heads.write(assets / "mtp.safetensors")
    found, sentences = looked(model)
    (sentence,) = sentences

    assert found is not None and good == found.path
    assert sentence.startswith(f"The MTP file {broken} is not used: ") and sentence.endswith(".")
    assert said in sentence and "\n" not in sentence


def raw(path: Path, size: int, body: bytes) -> Path:
    path.write_bytes(size.to_bytes(8, "little") + body)
    return path


def test_a_broken_file_is_told_in_one_sentence(model: Path) -> None:
    path = model.with_name("mtp.safetensors")
    table = json.dumps({"__metadata__": {"flarechat.mtp": json.dumps(heads.record())}})

    def said(body: bytes, size: int | None = None) -> str:
        raw(path, len(body) if size is None else size, body)
        found, sentences = looked(model)
        assert found is None and 1 == len(sentences), sentences
        return sentences[0].removeprefix(f"The MTP file {path} is not used: ")

    assert "it is cut off inside its header." == said(b"{}", 3)
    limit = f"at most {MOST_HEADER_BYTES} are read."
    assert f"it claims a header of {2**63} bytes; {limit}" == said(b"{}", 2**63)
    assert "its header is not UTF-8." == said(b"\xff\xfe{}")
    assert "its header is not JSON." == said(b"{")
    assert "its header is not JSON." == said(b"[" * 100_000)
    assert "its header is not JSON." == said(b"9" * 5000)
    assert "its header is no JSON object." == said(b"[]")
    assert "its record is not a text." == said(b'{"__metadata__":{"flarechat.mtp":1}}')
    assert "its record is not JSON." == said(b'{"__metadata__":{"flarechat.mtp":"{"}}')
    named = {"targets": [TARGET.upper()]}
    body = json.dumps({"__metadata__": {"flarechat.mtp": json.dumps(named)}}).encode()
    assert "its record does not name the models it is for." == said(body)

    def tensor(**entry: Any) -> str:
        fields = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}
        return said(json.dumps({**json.loads(table), "t": fields}).encode() + b"        ")

    read = "BF16, F16, F32 and packed ones are read."
    assert f"its tensor 't' has the dtype 'I64'; {read}" == tensor(dtype="I64")
    assert "its tensor 't' has the shape [-2]." == tensor(shape=[-2])
    assert "its tensor 't' has the shape [1, 1, 1, 1, 1]." == tensor(shape=[1] * 5)
    assert "its tensor 't' has data_offsets = [0, 9]." == tensor(data_offsets=[0, 9])
    assert "its tensor 't' has data_offsets = [-8, 0]." == tensor(data_offsets=[-8, 0])
    assert "it is cut off: its tensor 't' ends behind the file's end." == tensor(
        data_offsets=[64, 72]
    )


def test_a_file_that_was_cut_off_is_not_used(model: Path) -> None:
    path = heads.write(model.with_name("mtp.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    found, (sentence,) = looked(model)

    assert found is None
    assert "cut off" in sentence and "mtp.layers.0.mlp.down_proj.weight" in sentence


def test_a_file_asked_for_that_does_not_fit_is_named_with_both_fingerprints(
    model: Path, assets: Path, tmp_path: Path
) -> None:
    asked = heads.write(tmp_path / "theirs.safetensors", heads.record([OTHER, "0" * 64]))
    good = heads.write(assets / "mtp.safetensors")
    found, said = looked(model, explicit=asked)

    assert found is not None and good == found.path
    assert [
        f"The MTP file {asked} is not used: this model is {TARGET[:16]}, and the file is for "
        f"{OTHER[:16]}, 0000000000000000."
    ] == said


def test_a_file_asked_for_that_is_no_head_says_so(model: Path, tmp_path: Path) -> None:
    gone, alien, folder = tmp_path / "gone", tmp_path / "alien", tmp_path / "folder"
    raw(alien, 2, b"{}")
    folder.mkdir()
    os.mkfifo(tmp_path / "pipe")

    assert "No such file or directory." in looked(model, explicit=gone)[1][0]
    assert "it is no file." in looked(model, explicit=folder)[1][0]
    assert "it is no file." in looked(model, explicit=tmp_path / "pipe")[1][0]
    assert "its header has no 'flarechat.mtp' record." in looked(model, explicit=alien)[1][0]


WHOLE = heads.content()
HEADER = 8 + int.from_bytes(WHOLE[:8], "little")


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(st.integers(0, HEADER - 1), st.binary(min_size=1, max_size=3)), max_size=4),
    st.integers(0, len(WHOLE)) | st.just(len(WHOLE)),
)
def test_no_byte_of_a_header_makes_more_than_a_sentence(
    model: Path, changes: list[tuple[int, bytes]], keep: int
) -> None:
    data = bytearray(WHOLE)
    for at, new in changes:
        data[at : at + len(new)] = new
    path = model.with_name("mtp.safetensors")
    path.write_bytes(data[:keep])
    found, said = looked(model)

    assert (found is None) or [] == said
    assert len(said) <= 1 and all(len(sentence) < 400 for sentence in said)
    if data == WHOLE and keep == len(WHOLE):
        assert found is not None


def test_assets_are_looked_for_in_the_package_and_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    package = tmp_path / "somewhere" / "flarechat"
    package.mkdir(parents=True)
    monkeypatch.setattr(paths, "__file__", str(package / "paths.py"))
    beside = paths.assets_dir()
    (package / "assets").mkdir()

    assert package.parent / "assets" == beside
    assert package / "assets" == paths.assets_dir()
