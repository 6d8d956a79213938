"""`flarechat bench` as a whole: what is printed, what is written, and the exit code."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from flarechat.bench.command import run_bench
from flarechat.bench.ui_tax import UiTax
from flarechat.config import Settings
from flarechat.errors import EngineError, ModelError, SettingsError, StorageError
from flarechat.protocol import ErrorInfo, Event, Failed
from tests.bench.bench_doors import FEW, ArmEngine, Doors
from tests.fakes import BARE


def bench(doors: Any = None, **changed: Any) -> int:
    options: dict[str, Any] = {
        "arms": FEW,
        "workload": "chat,letter",
        "json_path": None,
        "replay": None,
        "repeats": 2,
        "ui_tax": False,
        "doors": doors or Doors(),
    }
    return run_bench(Settings(seed=7), **{**options, **changed})


def test_the_tables_go_to_stdout_and_the_progress_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = bench()
    out, err = capsys.readouterr()

    assert 0 == code
    for words in (
        "Speed",
        "Drafts",
        "1.60x",
        "no drafts",
        "history 8/8/8",
        "Worst row",
        "emitted =",
    ):
        assert words in out
    assert "repeat 1/2  off" in err
    assert "repeat 1/2" not in out


def test_the_head_is_named_with_its_drafts_or_the_arms_that_were_left_out_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench()
    with_head = capsys.readouterr().out
    bench(Doors(model=BARE), json_path=tmp_path / "result.json")
    without = " ".join(capsys.readouterr().out.split())

    assert "MTP head scripted-mtp.safetensors" in with_head
    assert "mtp 8/8/8" in with_head and "Left out" not in with_head
    assert "no MTP head" in without
    assert "Left out: fixed-3, adaptive. The MTP head alone drafts there" in without
    assert "mtp 8/8/8" not in without
    assert ["fixed-3", "adaptive"] == json.loads((tmp_path / "result.json").read_text())["left_out"]


def test_the_file_says_where_and_how_and_keeps_every_sample(tmp_path: Path) -> None:
    file = tmp_path / "result.json"

    bench(json_path=file)
    data = json.loads(file.read_text())

    assert (1, "compare", True, 16) == (
        data["schema"],
        data["kind"],
        data["complete"],
        len(data["samples"]),
    )
    assert {"system", "machine", "processor", "cores", "python", "release", "load"} == set(
        data["host"]
    )
    assert "f" * 64 == data["model"]["fingerprint"]
    assert {"rounds", "usage", "timings", "seed", "text"} <= set(data["samples"][0])
    assert isinstance(data["command"], list)
    assert "flarechat" in data["versions"] or "textual" in data["versions"]


def test_its_own_file_can_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, verdicts = tmp_path / "result.json", tmp_path / "replay.json"
    bench(json_path=file)
    capsys.readouterr()

    code = bench(replay=file, json_path=verdicts)
    out = capsys.readouterr().out

    assert 0 == code
    assert "Replay of fixed-3" in out
    assert "Replay of off" not in out
    assert ["fixed-3", "adaptive+history"] == [
        replay["label"] for replay in json.loads(verdicts.read_text())["replays"]
    ]


def test_an_interrupt_prints_and_writes_what_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "part.json"

    code = bench(Doors(interrupt_after=2), json_path=file)
    data = json.loads(file.read_text())

    assert 130 == code
    assert (False, 1) == (data["complete"], len(data["samples"]))
    assert "chat" in capsys.readouterr().out


def test_an_engine_that_fails_keeps_what_is_measured_and_raises_its_own_error(
    tmp_path: Path,
) -> None:
    file = tmp_path / "part.json"

    with pytest.raises(ModelError, match="cut short"):
        bench(Doors(failure=ModelError("The file is cut short.")), json_path=file)

    assert [] == json.loads(file.read_text())["samples"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    doors = Doors()
    with pytest.raises(StorageError, match="cannot be written"):
        bench(doors, json_path=tmp_path / "nowhere" / "x.json", repeats=1)

    assert [] == doors.opened, "it is refused before anything is measured"


def test_no_repeats_are_refused() -> None:
    with pytest.raises(SettingsError, match="--repeats 0 is out of range"):
        bench(repeats=0)


def test_the_ui_tax_pairs_an_answer_with_and_without_an_interface(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tax.json"
    doors = Doors(rounds_per_drain=8)

    code = bench(doors, ui_tax=True, json_path=file)
    (engine,) = doors.opened

    assert 0 == code
    assert "100.0 tok/s: 1.000x" in capsys.readouterr().out
    assert ["headless-0", "ui-0", "ui-1", "headless-1"] == [r.id for r in engine.requests[1:]]
    assert {0} == {r.speculation.draft_tokens for r in engine.requests}
    assert [100.0, 100.0] == json.loads(file.read_text())["with_ui"]


class Dying(ArmEngine):
    """Dies while an interface drains it."""

    def drain(self) -> list[Event]:
        if len(self.requests) == 3:
            return [Failed(error=ErrorInfo.of(EngineError("The model process died.")))]
        return super().drain()


def test_an_engine_that_dies_under_the_interface_raises_its_own_error() -> None:
    engine = Dying(rounds_per_drain=8)
    engine.start()

    with pytest.raises(EngineError, match="process died"):
        bench(lambda mtp: engine, ui_tax=True)

    assert engine.closed


def test_an_interrupt_under_the_interface_ends_the_measurement() -> None:
    engine = ArmEngine(rounds_per_drain=0)
    engine.start()
    engine.rounds_per_drain = 8
    original = engine.submit

    def stall(request: Any) -> None:
        original(request)
        if request.id.startswith("ui"):
            engine.rounds_per_drain = 0
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    engine.submit = stall  # type: ignore[method-assign]

    assert 130 == bench(lambda mtp: engine, ui_tax=True)
    assert ["ui-0"] == engine.cancelled


def test_a_tax_without_a_pair_says_so() -> None:
    assert "Nothing was measured." == UiTax([1.0], []).sentence()
