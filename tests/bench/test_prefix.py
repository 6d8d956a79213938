"""The measurement of restored prefixes, on a tiny model: it finds them where it says."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path

import pytest

from tests.models import tiny

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_every_way_is_measured_and_its_parts_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("prefix", FOLDER / "prefix.py")
    assert spec is not None and spec.loader is not None
    measured = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "prefix", measured)
    spec.loader.exec_module(measured)
    model, out = tiny.write(tmp_path / "tiny.gguf").path, tmp_path / "prefix.csv"
    words = ["prefix", "--model", str(model), "--prefix", "24", "--repeat", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--parts", "--disk", "--out", str(out)])
    measured.main()

    ways = ["computed", "restored", "again", "disk"]
    lines = capsys.readouterr().out.splitlines()
    table = csv.DictReader(out.read_text("utf-8").splitlines())
    assert ways == [row["way"] for row in table]
    assert [*ways, "of", *ways] == [line.split()[0] for line in lines]
    for line in lines[-len(ways) :]:
        parts = dict(part.rsplit(" ", 1) for part in line[10:].split("  "))
        assert {"search", "open slot", "copies", "(rest)"} <= parts.keys()
        assert all(float(us) >= 0 for us in parts.values())
