"""The measurement of the host's part of a round, on a tiny tokenizer: it runs and adds up."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.models import tiny

FILE = Path(__file__).parents[2] / "benchmarks" / "host_overhead.py"


@pytest.mark.parametrize(
    ("way", "own"), [([], {"(frame)"}), (["--engine"], {"page", "(model)"})], ids=["bare", "engine"]
)
def test_a_line_a_part_is_written_for_every_arm(
    way: list[str], own: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    spec = importlib.util.spec_from_file_location("host_overhead", FILE)
    assert spec is not None and spec.loader is not None
    measured = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(measured)
    model, out = tiny.write(tmp_path / "tiny.gguf").path, tmp_path / "host.csv"
    words = ["host_overhead", *way, "--model", str(model), "--rounds", "20", "--repeat", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(out)])
    measured.main()

    lines = [line.split(",") for line in out.read_text("utf-8").splitlines()[1:]]
    arms = {line[0] if len(line) == 3 else ",".join(line[:-2]) for line in lines}
    assert len(arms) == len(measured.ARMS) == len(capsys.readouterr().out.splitlines())
    parts = {"all", "host", "stage", "choose", "launch", "collect", "take", "emit"}
    assert parts | own <= {line[-2] for line in lines}
    assert all(float(line[-1]) >= 0 for line in lines)
