"""What a boot asks Triton to compile is not much, and other processes compile just that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flarechat.engine.kernels import compiling, variants

# Of a model and a head of SmolLM2-135M's shape, every plan of four lanes.
MOST_VARIANTS = 42


def said(folder: Path, *arguments: str) -> list[list[str]]:
    """What boot_variants says, line by line, in pieces; Triton's folder is empty before."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.kernels.boot_variants", *arguments],
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_a_boot_asks_for_few_variants(tmp_path: Path) -> None:
    lines = said(tmp_path)

    assert len({tuple(line) for line in lines}) == len(lines)
    assert {"_few", "_project", "_attend", "_tall", "_top", "_law", "_accept", "_clip"} <= {
        name for name, _ in lines
    }
    assert len(lines) <= MOST_VARIANTS
    assert [] == list(tmp_path.rglob("*.cubin"))


@pytest.mark.slow
def test_other_processes_compile_what_is_launched_later(tmp_path: Path) -> None:
    lines = said(tmp_path, "--compile")

    assert [["True [(0, 4), (4, 4)]"], ["False [(0, 4), (4, 4)]"]] == lines[:2]
    assert [["[True] [True] [] [True] [True]"]] == lines[2:]
    assert 4 == len(list(tmp_path.rglob("*.cubin")))


WANTED = [variants.Variant("flarechat.engine.kernels.commit", "_inputs", "{}")]


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variant is asked for, and not stored."""
    monkeypatch.setattr(compiling, "asked_for", lambda works: WANTED)
    monkeypatch.setattr(compiling, "stored", lambda variant: False)
    monkeypatch.setattr(compiling, "_hand_over", lambda compiler, wanted, processes: None)


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import time; time.sleep(60)"])
def test_a_compiler_that_fails_leaves_the_work_to_the_plain_way(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], code: str
) -> None:
    monkeypatch.setattr(compiling, "COMMAND", [sys.executable, "-c", code])
    monkeypatch.setattr(compiling, "PATIENCE", 0.5)
    told: list[tuple[int, int]] = []

    assert not compiling.compile_ahead([int], lambda *step: told.append(step), processes=2)
    assert [(0, 1)] == told
    assert "says nothing more" in capfd.readouterr().err


@pytest.mark.usefixtures("cold")
def test_lines_are_counted_however_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, time; os.write(1, b'1\\n0\\n'); time.sleep(0.2); os.write(1, b'1\\n')"
    monkeypatch.setattr(compiling, "asked_for", lambda works: WANTED * 3)
    monkeypatch.setattr(compiling, "COMMAND", [sys.executable, "-c", code])
    told: list[tuple[int, int]] = []

    assert compiling.compile_ahead([int], lambda *step: told.append(step), processes=2)
    assert [(0, 3), (2, 3), (3, 3)] == told


def test_nothing_is_started_where_the_folder_is_warm_or_one_processor_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "COMMAND", ["nothing of this name"])
    monkeypatch.setattr(compiling, "asked_for", lambda works: WANTED)
    monkeypatch.setattr(compiling, "stored", lambda variant: True)

    assert not compiling.compile_ahead([int], lambda *step: None, processes=4)
    monkeypatch.setattr(compiling, "stored", lambda variant: False)
    assert not compiling.compile_ahead([int], lambda *step: None, processes=1)


def test_new_tensors_are_zeros_in_a_dry_run_and_only_there() -> None:
    like, made = torch.ones(3, 5), list[torch.Tensor]()

    def work() -> None:
        made.extend((torch.empty(3, 5), torch.empty_like(like), like.new_empty(2, 3)))
        made.append(torch.empty_strided((2, 3), (1, 2), dtype=torch.int64))

    # Memory that is asked for is then full of what is no number.
    torch.use_deterministic_algorithms(True)
    try:
        with torch.inference_mode():
            assert [] == variants.asked_for([work])
            work()
    finally:
        torch.use_deterministic_algorithms(False)

    assert [True] * 4 + [False] * 4 == [not t.any() for t in made]


def test_an_error_in_the_dry_run_is_the_plain_ways_to_tell(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fails() -> None:
        raise ValueError("not in the dry run")

    assert not compiling.compile_ahead([fails], lambda *step: None, processes=2)
    assert "not in the dry run" in capfd.readouterr().err
