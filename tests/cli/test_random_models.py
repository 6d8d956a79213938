"""`flarechat models make-random`, and `flarechat run` over what it wrote, in real processes."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flarechat.engine.make_random.geometry import FORMATS
from flarechat.models import making
from flarechat.models.store import resolve
from tests.cli.conftest import Cli
from tests.engine.qwen38 import random

PATIENCE_S = 60


def flarechat(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command line as a program of its own."""
    return subprocess.run(
        [sys.executable, "-m", "flarechat", *arguments], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_a_random_model_is_written_and_its_folder_printed(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "model"
    got = cli("models", "make-random", "qwen38", "--format", "nvfp4", "--seed", "7", str(folder))

    assert (0, f"{folder}\n", "") == (got.code, got.out, got.err)
    assert [folder.name] == os.listdir(folder.parent)
    assert folder == resolve(str(folder))
    named = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
             "chat_template.jinja", "model.safetensors.index.json"}  # fmt: skip
    assert named < set(os.listdir(folder))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("llama",), 2, "family llama is unknown."),
        (("qwen38", "--layers", "2"), 2, "--layers 2 is out of range."),
        (("qwen38", "--format", "int4"), 2, "--format int4 is unknown."),
        (("qwen38", "--mtp", "twice"), 2, "--mtp twice is unknown."),
    ],
)
def test_a_wish_that_cannot_be_is_refused(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    got = cli("models", "make-random", *arguments, str(tmp_path / "model"))

    assert (code, "") == (got.code, got.out)
    assert f"flarechat: {said}\n" in got.err
    assert not (tmp_path / "model").exists()


def test_a_process_that_dies_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flarechat.errors import EngineError

    monkeypatch.setattr(making, "COMMAND", [sys.executable, "-c", "raise SystemExit(9)"])
    with pytest.raises(EngineError) as told:
        making.make_random(tmp_path / "model", lambda *_: None, family="qwen38")

    assert "The process that writes the model ended with status 9." == told.value.message


_SLOW_WRITER = """
import time
from flarechat.engine.make_random import __main__ as process
from flarechat.engine.make_random.shards import ShardWriter
write = ShardWriter.write
ShardWriter.write = lambda *all: (write(*all), time.sleep(60))
process.main()
"""


def test_an_interrupted_writing_leaves_nothing_behind(tmp_path: Path) -> None:
    script = (
        "import sys; from flarechat.models import making; from flarechat.__main__ import main; "
        f"making.COMMAND = [sys.executable, '-c', {_SLOW_WRITER!r}]; "
        f"sys.exit(main(['models', 'make-random', 'qwen38', {str(tmp_path / 'model')!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    end = time.monotonic() + PATIENCE_S
    while not any(tmp_path.glob(".model.*.part/model-00001-*")):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)

    assert 128 + signal.SIGTERM == process.returncode
    assert [] == os.listdir(tmp_path)


@functools.cache
def told(form: str, *flags: str) -> dict[str, Any]:
    """The last event of a seeded answer, and the sources of its drafts."""
    ran = flarechat("run", "--json", "--model", str(random.folder(form)), "--dtype", "float32",
                    "--ctx", "512", "--max-tokens", "48", "--seed", "5", *flags,
                    "abcdefg")  # fmt: skip
    assert 0 == ran.returncode, ran.stderr
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    sources = {source for event in events for source in event.get("draft_sources", ())}
    return {"sources": sources, **events[-1]}


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_chats_with_its_head(form: str) -> None:
    answer = told(form, "--no-mtp-adaptive-verification")

    assert "mtp" in answer["sources"]
    assert "" != answer["thinking"] + answer["text"]


@pytest.mark.parametrize("form", ["bf16", "fp4-local"])
def test_without_its_head_it_says_the_same(form: str) -> None:
    """Of every format tests/engine/qwen38/test_end_to_end.py says so, in one process."""
    with_head, without = told(form, "--no-mtp-adaptive-verification"), told(form, "--no-mtp")

    assert "mtp" not in without["sources"]
    assert (without["thinking"], without["text"]) == (with_head["thinking"], with_head["text"])


def test_text_of_a_model_that_thinks_has_the_answer_alone() -> None:
    model = ("--model", str(random.folder()), "--dtype", "float32", "--max-tokens", "6",
             "--seed", "5", "abcdefg")  # fmt: skip
    cut, answered = flarechat("run", *model), flarechat("run", "--no-thinking", *model)

    assert (0, "") == (cut.returncode, cut.stdout)
    assert "flarechat: The model was still thinking when it was cut off;" in cut.stderr
    assert (0, "") == (answered.returncode, answered.stderr)
    assert "" != answered.stdout.strip()
