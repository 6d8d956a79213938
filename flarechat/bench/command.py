"""What `flarechat bench` does with its flags. Owns the choice of measurement and the exit code.

An interrupt or a failing engine loses nothing: what was measured so far is printed and written
first. Loads no torch; the engine comes from the launcher when a measurement starts.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from flarechat.bench.arms import Arm, parse_arms
from flarechat.bench.recording import read_recording
from flarechat.bench.replay import print_replay, replay_recording
from flarechat.bench.report import console, print_report, require_writable, write_json
from flarechat.bench.runner import Doors, Measured, measure
from flarechat.bench.summary import arms_of, rows_of
from flarechat.bench.ui_tax import UiTax, measure_ui_tax
from flarechat.bench.workloads import Workload, load_workloads
from flarechat.config import Settings
from flarechat.config_layers import flag_of
from flarechat.errors import EXIT_INTERRUPTED, EXIT_OK, SettingsError, UsageError
from flarechat.protocol import EngineDoor


def run_bench(
    settings: Settings,
    *,
    arms: str,
    workload: str,
    json_path: Path | None,
    replay: Path | None,
    repeats: int,
    ui_tax: bool,
    doors: Doors | None = None,
) -> int:
    """Measure, print and write; returns the exit code. `doors` opens an engine a call, with an MTP
    head or without."""
    if repeats < 1:
        raise SettingsError(f"--repeats {repeats} is out of range.", "Give 1 or more.")
    if replay:
        return _replay(replay, json_path)
    if settings.constraints:
        flag = flag_of(settings.constraints[0])
        raise UsageError(f"The bench holds no answer to {flag}.", "Leave it out.")
    workloads, chosen = load_workloads(workload), parse_arms(arms, settings.speculation())
    if json_path:
        require_writable(json_path)
    open_door = doors or (lambda mtp: _open_door(settings, mtp))
    if ui_tax:
        return _ui_tax(settings, workloads[0], repeats, json_path, open_door)
    return _compare(settings, chosen, workloads, repeats, json_path, open_door)


def _compare(
    settings: Settings,
    arms: tuple[Arm, ...],
    workloads: tuple[Workload, ...],
    repeats: int,
    json_path: Path | None,
    doors: Doors,
) -> int:
    measured = Measured()

    def report() -> None:
        rows = rows_of(measured.samples, arms, workloads)
        lines = arms_of(rows, measured.samples, arms)
        print_report(console(), measured.model, rows, lines, measured.left_out)
        body = {
            "model": measured.model,
            "settings": settings,
            "arms": arms,
            "workloads": workloads,
            "repeats": repeats,
            "complete": measured.complete,
            "left_out": measured.left_out,
            "rows": rows,
            "summary": lines,
            "samples": measured.samples,
        }
        _write(json_path, "compare", body)

    return _guarded(
        lambda: measure(
            settings, arms, workloads, repeats, doors=doors, into=measured, notice=_notice
        ),
        report,
    )


def _ui_tax(
    settings: Settings, workload: Workload, repeats: int, json_path: Path | None, doors: Doors
) -> int:
    tax = UiTax([], [])

    def play() -> None:
        door = doors(False)
        try:
            measure_ui_tax(settings, door, workload, repeats, into=tax, notice=_notice)
        finally:
            door.close()

    def report() -> None:
        console().print(tax.sentence())
        body = {**dataclasses.asdict(tax), "ratio": tax.ratio, "workload": workload}
        _write(json_path, "ui-tax", {**body, "settings": settings, "repeats": repeats})

    return _guarded(play, report)


def _replay(file: Path, json_path: Path | None) -> int:
    replays = replay_recording(read_recording(file))
    print_replay(console(), replays)
    _write(json_path, "replay", {"recording": file.name, "replays": replays})
    return EXIT_OK


def _guarded(play: Callable[[], None], report: Callable[[], None]) -> int:
    """Play, then report in any case; an interrupt is an exit code, a failure goes on up."""
    try:
        play()
    except KeyboardInterrupt:
        report()
        _notice("Interrupted: the figures above cover what was measured until then.")
        return EXIT_INTERRUPTED
    except Exception:
        report()
        raise
    report()
    return EXIT_OK


def _write(path: Path | None, kind: str, body: dict[str, Any]) -> None:
    if path:
        write_json(path, kind, sys.argv[1:], body)


def _notice(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False, style="dim")


def _open_door(settings: Settings, mtp: bool) -> EngineDoor:
    """A fresh engine, loading, without a head unless `mtp`; a model that is not here is pulled."""
    from flarechat.launch import open_engine

    said: set[str] = set()

    def progress(stage: str, done: int, total: int) -> None:
        if stage not in said:
            said.add(stage)
            _notice(f"{stage}: {total / 1e6:.0f} MB")

    return open_engine(dataclasses.replace(settings, mtp=settings.mtp and mtp), progress)
