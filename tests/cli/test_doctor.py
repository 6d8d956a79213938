"""`flarechat doctor`: what it reports and what it calls wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flarechat import __version__, paths
from flarechat.cli import checks
from flarechat.errors import SettingsError
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
    assert engine == {key: report["engine"][key] for key in engine}
    assert {*engine, "weights"} == set(report["engine"])
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


class Kernels:
    """The C library, as far as the doctor asks it."""

    threads = 8

    def __init__(self, pays: bool = True) -> None:
        self.pays = pays

    def set_threads(self, threads: int) -> None:
        self.threads = threads


@pytest.mark.parametrize(
    ("found", "variables", "said"),
    [
        (Kernels(), {}, "as-stored, by kernels with avx2 on 8 threads"),
        (Kernels(pays=False), {}, "packed-float16, as the CPU kernels are slow without AVX2"),
        (
            Kernels(),
            {"DTYPE": "as-stored", "THREADS": "3"},
            "as-stored, by kernels with avx2 on 3 threads",
        ),
        (Kernels(), {"DTYPE": "float32"}, "float32, as asked for"),
        (None, {}, "packed-float16, as the CPU kernels are not built (no compiler)"),
        (None, {"DTYPE": "float32"}, "float32, as asked for"),
    ],
)
def test_the_doctor_says_how_weights_are_multiplied_on_a_cpu_and_why(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, found: Kernels | None, variables: dict[str, str],
    said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(checks, "_DEVICE_PROBE", 'print(\'{"device": "cpu"}\')')
    monkeypatch.setattr(checks.cpu, "library", lambda: found)
    reason = (
        (lambda: f"avx2 on {found.threads} threads")
        if found
        else (lambda: "not built (no compiler)")
    )
    monkeypatch.setattr(checks.cpu, "reason", reason)
    for name, value in variables.items():
        monkeypatch.setenv(f"FLARECHAT_{name}", value)

    got = cli("doctor")

    assert (0, "") == (got.code, got.err)
    assert f"weights          {said}\n" in got.out


def test_the_doctor_says_nothing_of_cpu_kernels_where_rounds_run_on_a_gpu(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_DEVICE_PROBE", 'print(\'{"device": "cuda (H200)"}\')')

    assert "weights" not in json.loads(cli("doctor", "--json").out)["engine"]
    monkeypatch.setenv("FLARECHAT_DEVICE", "cpu")
    assert "weights" in json.loads(cli("doctor", "--json").out)["engine"]


@pytest.mark.parametrize(
    ("dtype", "reason", "said"),
    [
        ("as-stored", "not built", "--dtype as-stored is not available here."),
        ("auto", SettingsError("FLARECHAT_CPU_ISA is 'sse'."), "FLARECHAT_CPU_ISA is 'sse'."),
    ],
)
def test_cpu_kernels_that_would_end_every_start_are_named_as_wrong(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, dtype: str, reason: str | SettingsError, said: str
) -> None:
    def library() -> None:
        if isinstance(reason, SettingsError):
            raise reason

    monkeypatch.setattr(checks, "_DEVICE_PROBE", 'print(\'{"device": "cpu"}\')')
    monkeypatch.setattr(checks.cpu, "library", library)
    monkeypatch.setattr(checks.cpu, "reason", lambda: reason)
    monkeypatch.setenv("FLARECHAT_DTYPE", dtype)

    got = cli("doctor", "--json")

    assert 2 == got.code and said in got.err
    assert json.loads(got.out)["engine"]["weights"] is None
