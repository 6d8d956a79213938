"""How a command line is run in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flarechat import launch
from flarechat.__main__ import main
from tests.cli.scripted import SCENARIOS, install
from tests.fakes import ScriptedEngine


@dataclass
class Outcome:
    """What one command line did."""

    code: int
    out: str
    err: str
    engines: list[ScriptedEngine] = field(default_factory=list)


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Cli]:
    """Run one command line with piped input, over the scripted engine of a scenario."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(launch, "engine_of", launch.engine_of)

    def run(
        *arguments: str,
        stdin: bytes = b"",
        engine: str | Callable[[], ScriptedEngine] = "answer",
    ) -> Outcome:
        engines = install(SCENARIOS[engine] if isinstance(engine, str) else engine)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(arguments)
        out, err = capsys.readouterr()
        return Outcome(code, out, err, engines)

    yield run
