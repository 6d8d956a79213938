"""`flarechat doctor`: what it reports and what it calls wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flarechat import __version__, paths
from flarechat.cli import checks
from flarechat.models import inspection
from tests.cli.conftest import Cli
from tests.models import heads, tiny


def test_the_doctor_reports_without_a_model_or_torch(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_DEVICE_PROBE", 'print(\'{"device": "cpu", "threads": 2}\')')
    text = cli("doctor")
    got = cli("doctor", "--json")

    report = json.loads(got.out)
    assert (0, 0, "") == (text.code, got.code, got.err)
    parts = {"versions", "engine", "machine", "model", "mtp", "paths", "terminal", "problems"}
    assert parts == set(report)
    assert {"head": None} == report["mtp"]
    lacking = "rounds are captured on a CUDA device only"
    engine = {"device": "cpu", "threads": 2, "executor": "eager", "why": lacking}
    assert engine == report["engine"]
    assert {"name": "smollm2", "here": False} == report["model"]
    assert __version__ == report["versions"]["flarechat"]
    assert report["paths"]["free disk"] > 0
    assert str(paths.config_file()) in text.out


def test_the_doctor_finds_the_draft_head_and_tells_what_its_record_says(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "_DEVICE_PROBE", "print('{}')")
    model = tiny.write(tmp_path / "tiny.gguf").path
    path = heads.beside(model, paths.cache_dir(), note="\x1b[2J")
    broken = heads.write(
        tmp_path / "a-mtp.safetensors", heads.record([inspection.fingerprint(model)], format=9)
    )
    monkeypatch.setenv("FLARECHAT_MODEL", str(model))

    mtp = json.loads(cli("doctor", "--json").out)["mtp"]
    text = cli("doctor").out
    record = heads.record()

    assert {
        "head": str(path),
        "draft vocabulary": len(record["draft_vocabulary"]),
        "layers": 1,
        "parameters": sum(value.size for value in heads.tensors().values()),
        "tokens": record["tokens"],
        "acceptance": record["acceptance"],
        "licence": "Apache-2.0",
    } == {key: value for key, value in mtp.items() if key != "refused"}
    assert [True] == [str(broken) in sentence for sentence in mtp["refused"]]
    assert str(path) in text and '{"depth 1": 0.62}' in text


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        (
            {"laws": [{"law": "0", "survival": [0.829, 0.7]}, {"law": "1/20", "survival": [0.6]}]},
            "acceptance       83% at 0, 60% at 1/20 (first drafts; temperature/top-k/top-p)",
        ),
        ({"laws": [{"law": "0", "survival": []}]}, '{"laws": [{"law": "0", "survival": []}]}'),
        ({"laws": [3]}, 'acceptance       {"laws": [3]}'),
        ({"laws": []}, 'acceptance       {"laws": []}'),
        ("good", "acceptance       good"),
    ],
)
def test_the_doctor_puts_measured_acceptance_in_a_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorded: object, said: str
) -> None:
    monkeypatch.setattr(checks, "_DEVICE_PROBE", "print('{}')")
    model = tiny.write(tmp_path / "tiny.gguf").path
    heads.beside(model, paths.cache_dir(), acceptance=recorded)
    monkeypatch.setenv("FLARECHAT_MODEL", str(model))

    assert said in cli("doctor").out


def test_the_doctor_says_that_heads_are_off_or_that_the_one_asked_for_is_not_there(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_DEVICE_PROBE", "print('{}')")
    monkeypatch.setenv("FLARECHAT_MTP_FILE", "nothing")
    missing = cli("doctor")
    monkeypatch.setenv("FLARECHAT_NO_MTP", "1")
    off = cli("doctor", "--json")

    assert 2 == missing.code and "--mtp-file nothing does not exist." in missing.err
    assert {"head": "off (--no-mtp)"} == json.loads(off.out)["mtp"]


def test_the_doctor_names_what_is_wrong(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_DEVICE_PROBE", "import sys; sys.exit('no module named torch')")
    Path("flarechat.toml").write_text("colour = 1\n")

    got = cli("doctor")

    assert 2 == got.code
    assert "unknown: torch does not start (no module named torch)" in got.out
    assert "'colour' is not a setting" in got.err


def test_an_executor_that_would_end_every_start_is_named_as_wrong(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_DEVICE_PROBE", 'print(\'{"device": "cpu"}\')')
    monkeypatch.setenv("FLARECHAT_EXECUTOR", "graph")

    text, got = cli("doctor"), cli("doctor", "--json")
    report = json.loads(got.out)

    assert (2, 2) == (text.code, got.code)
    assert "--executor graph is not available" in text.err and "Use auto or eager." in text.err
    assert report["engine"]["executor"] is None
    assert "cpu" == report["engine"]["device"] and report["problems"]
