"""`flarechat doctor`: what it reports and what it calls wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flarechat import __version__, paths
from tests.cli.conftest import Cli


def test_the_doctor_reports_without_a_model_or_torch(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flarechat.cli import checks

    monkeypatch.setattr(checks, "_DEVICE_PROBE", 'print(\'{"device": "cpu", "threads": 2}\')')
    text = cli("doctor")
    got = cli("doctor", "--json")

    report = json.loads(got.out)
    assert (0, 0, "") == (text.code, got.code, got.err)
    assert {"versions", "engine", "machine", "model", "paths", "terminal", "problems"} == set(
        report
    )
    assert {"device": "cpu", "threads": 2, "executor": "eager"} == report["engine"]
    assert {"name": "smollm2", "here": False} == report["model"]
    assert __version__ == report["versions"]["flarechat"]
    assert report["paths"]["free disk"] > 0
    assert str(paths.config_file()) in text.out


def test_the_doctor_names_what_is_wrong(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from flarechat.cli import checks

    monkeypatch.setattr(checks, "_DEVICE_PROBE", "import sys; sys.exit('no module named torch')")
    Path("flarechat.toml").write_text("colour = 1\n")

    got = cli("doctor")

    assert 2 == got.code
    assert "unknown: torch does not start (no module named torch)" in got.out
    assert "'colour' is not a setting" in got.err
