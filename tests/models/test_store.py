"""From names to paths, and what is said about models without loading them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from flarechat import paths
from flarechat.errors import ModelError
from flarechat.models import hub, inspection, store
from flarechat.models import pull as pulling
from flarechat.models.catalog import SMOLLM2
from flarechat.models.digests import converted_path
from flarechat.protocol import Sampling
from tests.models import heads, tiny


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    config = {"model_type": "llama", "max_position_embeddings": 64, "num_hidden_layers": 2}
    (path / "config.json").write_text(json.dumps(config | {"vocab_size": 9}))
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": None}))
    (path / "chat_template.jinja").write_text("{{ messages }}")
    save_file({"a": np.zeros((3, 4), np.float16), "b": np.zeros(5)}, path / "model.safetensors")
    return path


@pytest.fixture(autouse=True)
def _no_assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No head ships with flarechat here."""
    monkeypatch.setattr(paths, "assets_dir", lambda: tmp_path / "assets")


@pytest.fixture
def pulled() -> Path:
    """The default model as the store sees it: a sparse file of the right size."""
    path = SMOLLM2.path_below(paths.models_dir())
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(SMOLLM2.gguf_bytes)
    return path


def test_a_catalog_name_is_the_pulled_file(pulled: Path) -> None:
    assert pulled == store.resolve("smollm2")


def test_a_catalog_model_is_pulled_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "pull", lambda name, progress: Path("/pulled") / name)

    assert Path("/pulled/smollm2") == store.resolve("smollm2")
    with pytest.raises(ModelError, match="smollm2 is not on this machine") as caught:
        store.resolve("smollm2", pull_missing=False)
    assert "flarechat models pull smollm2" in caught.value.hint


def test_a_gguf_and_a_folder_are_found_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tiny.write(tmp_path / "tiny.gguf").path
    folder = model_folder(tmp_path / "folder")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert written == store.resolve(str(written)) == store.resolve("~/tiny.gguf")
    assert folder == store.resolve(str(folder))


def test_a_hub_name_is_the_pulled_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(hub.folder_of("org/tiny"))

    assert folder == store.resolve("org/tiny")
    monkeypatch.setattr(hub, "pull", lambda name, progress: Path("/pulled") / name)
    assert Path("/pulled/org/other") == store.resolve("org/other")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smolm2", "There is no model 'smolm2'. Did you mean smollm2?"),
        ("wholly-else", "There is no model 'wholly-else'."),
        ("no/such/file.gguf", "The model file no/such/file.gguf does not exist."),
        ("some.gguf", "The model file some.gguf does not exist."),
        ("dir/some.gguf", "The model file dir/some.gguf does not exist."),
    ],
)
def test_a_name_that_means_nothing_is_named_with_what_is_near(name: str, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        store.resolve(name)

    assert words == caught.value.message
    assert caught.value.hint


def test_a_path_that_cannot_be_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    pickled = model_folder(tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    for name, words in (
        ("notes.txt", "not a GGUF file"),
        ("empty", "has no config.json"),
        ("pickled", "only as pickle files"),
    ):
        with pytest.raises(ModelError, match=words):
            store.resolve(str(tmp_path / name))


def test_pulled_models_are_listed_and_removed_with_their_converted_form(pulled: Path) -> None:
    model_folder(hub.folder_of("org/tiny"))
    converted = converted_path(paths.cache_dir(), SMOLLM2.gguf_sha256)
    converted.parent.mkdir(parents=True)
    converted.write_bytes(b"")

    assert ["smollm2", "org/tiny"] == [model.name for model in store.installed()]
    assert ["catalog", "hub"] == [model.source for model in store.installed()]
    assert pulled == store.remove("smollm2").path
    assert not converted.exists()
    assert "org/tiny" == store.remove("org/tiny").name
    assert [] == store.installed()
    with pytest.raises(ModelError, match="'smollm2' is not on this machine"):
        store.remove("smollm2")


def test_the_draft_head_of_a_pulled_model_is_known_without_reading_weights(pulled: Path) -> None:
    folder = model_folder(hub.folder_of("org/tiny"))
    catalog, pulled_folder = store.installed()
    before = [inspection.head_of(catalog), inspection.head_of(pulled_folder)]
    heads.write(pulled.with_name("mtp.safetensors"), heads.record([SMOLLM2.gguf_sha256]))
    inspection.fingerprint(folder)
    known = inspection.head_of(pulled_folder)
    heads.write(folder / "tiny-mtp.safetensors", heads.record([inspection.fingerprint(folder)]))
    named = [inspection.head_of(catalog), inspection.head_of(pulled_folder)]
    (folder / "model.safetensors").unlink()

    assert ["", "?"] == before
    assert "" == known
    assert ["mtp.safetensors", "tiny-mtp.safetensors"] == named
    assert "?" == inspection.head_of(pulled_folder)


def test_a_description_names_the_draft_head_and_why_another_is_not_used(tmp_path: Path) -> None:
    model = tiny.write(tmp_path / "tiny.gguf").path
    without = inspection.inspect(str(model)).mtp
    path = heads.beside(model, paths.cache_dir(), draft_vocabulary=[1, 5])
    found = inspection.inspect(str(model)).mtp
    path.write_bytes(path.read_bytes()[:-1])

    broken = inspection.inspect(str(model)).mtp

    assert ("none", f"{path} (drafts 2 tokens)") == (without, found)
    assert f"none The MTP file {path} is not used: it is cut off" in broken


def test_a_gguf_is_described_from_its_header(tmp_path: Path) -> None:
    written = tiny.write(tmp_path / "tiny.gguf")
    seen = inspection.inspect(str(written.path))

    assert ("Tiny", "gguf", "llama") == (seen.name, seen.kind, seen.architecture)
    assert sum(value.size for value in written.weights.values()) == seen.parameters
    assert (128, tiny.LAYERS, len(tiny.vocabulary())) == (
        seen.context,
        seen.layers,
        seen.vocabulary,
    )
    assert {"Q4_1": 15, "F32": 5} == seen.tensor_types
    assert "gpt2 smollm" == seen.tokenizer
    assert seen.template
    assert Sampling() == seen.recommended
    assert 64 == len(seen.digest)


def test_a_folder_is_described_from_its_settings_and_headers(tmp_path: Path) -> None:
    seen = inspection.inspect(str(model_folder(tmp_path / "folder")))

    assert (17, 64, 2, 9) == (seen.parameters, seen.context, seen.layers, seen.vocabulary)
    assert {"F16": 1, "F64": 1} == seen.tensor_types
    assert seen.template
    assert Sampling(temperature=0.6) == seen.recommended


def test_describing_a_model_loads_no_torch(tmp_path: Path) -> None:
    written = tiny.write(tmp_path / "tiny.gguf").path
    probe = (
        "import sys; from flarechat.models import inspection, store\n"
        "inspection.inspect(sys.argv[1]);"
        "store.resolve(sys.argv[1]); print([m for m in ('torch', 'transformers', 'gguf', 'numpy')"
        " if m in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", probe, str(written)], capture_output=True, text=True, check=True
    )

    assert "[]\n" == said.stdout
