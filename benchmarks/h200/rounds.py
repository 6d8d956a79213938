"""Captured rounds measured on one GPU: equality, service, memory, speed, lanes, peers, floor.

    python -m benchmarks.h200.rounds --model MODEL.gguf --out FOLDER --revision REV

Owns the order of the sections and the command line. A section that fails is written down and the
next one goes on; the last lines printed are the tables. `--dry` plays all of it on the CPU over a
tiny random model, `--quick` the same little of the model given.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.h200 import equality, floor, lanes, memory, peers, record, service, speed, tables
from benchmarks.h200.desk import Desks, Setup
from benchmarks.h200.record import Box, Run
from benchmarks.h200.rows import load
from benchmarks.h200.sizes import DRY, FULL, Sizes

Section = Callable[[Run, Desks, Sizes, str, Box], Mapping[str, Any]]
SECTIONS: dict[str, Section] = {
    "equality": equality.measure,
    "service": service.measure,
    "memory": memory.measure,
    "speed": speed.measure,
    "lanes": lanes.measure,
    "transformers": peers.measure,
    "floor": floor.measure,
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser("rounds", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--model", help="a GGUF file or a folder; left out with --dry")
    made.add_argument("--mtp-file", help="a draft head to try before those that ship")
    made.add_argument("--out", required=True, help="the folder for the CSV files and the JSON")
    made.add_argument("--name", default="rounds", help="how the files' names begin")
    made.add_argument("--revision", default="", help="the git revision, for the record")
    made.add_argument("--sections", default=",".join(SECTIONS), help="which, joined by commas")
    made.add_argument("--seconds", type=float, default=570, help="for all sections together")
    made.add_argument(
        "--box", action="append", default=[], type=boxed, metavar="SECTION=SECONDS",
        help="another box than usual for a section; may be given again",
    )  # fmt: skip
    made.add_argument("--executor", default="graph", help="the one beside eager")
    made.add_argument("--device", default="cuda")
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--resumed", action="store_true", help="go on in the files that are there")
    made.add_argument("--quick", action="store_true", help="as little as --dry, of this model")
    made.add_argument("--dry", action="store_true", help="on the CPU, tiny, in seconds")
    return made


def boxed(text: str) -> tuple[str, float]:
    """A section and its seconds, from SECTION=SECONDS."""
    name, _, seconds = text.partition("=")
    if name not in SECTIONS:
        raise argparse.ArgumentTypeError(f"{name!r} is no section")
    return name, float(seconds)


def main(given: Sequence[str] | None = None) -> int:
    """Run the sections asked for. 0 if none failed, 1 otherwise, 2 for a wrong command line."""
    words = list(sys.argv[1:] if given is None else given)
    made = parser()
    asked = made.parse_args(words)
    names = [name for name in asked.sections.split(",") if name]
    if unknown := [name for name in names if name not in SECTIONS]:
        made.error(f"--sections {unknown[0]} is unknown; use {', '.join(SECTIONS)}")
    if not asked.dry and not asked.model:
        made.error("--model is needed, unless --dry is given")
    with tempfile.TemporaryDirectory() as folder:
        setup = dry_setup(Path(folder)) if asked.dry else _setup(asked, Path(folder))
        command = shlex.join(["python", "-m", "benchmarks.h200.rounds", *words])
        facts = record.facts(setup.device, asked.revision, command, asked.dry)
        run = Run(Path(asked.out), asked.name, facts, asked.seconds, resumed=asked.resumed)
        left = _measure(run, setup, asked, [name for name in SECTIONS if name in names])
    if left:
        return _go_on(words, left, run.box.left)
    print(tables.text(load([run.write()])))
    return 1 if run.failed else 0


def _measure(
    run: Run, setup: Setup, asked: argparse.Namespace, names: Sequence[str]
) -> Sequence[str]:
    """Play sections; those still to play, where a failure took the device with it."""
    desks, sizes = Desks(setup), DRY if asked.dry or asked.quick else FULL
    seconds = {**sizes.seconds, **dict(asked.box)}
    for place, name in enumerate(names, start=1):

        def work(box: Box, section: Section = SECTIONS[name]) -> Mapping[str, Any]:
            return section(run, desks, sizes, asked.executor, box)

        if not run.section(name, work, seconds[name]):
            if device_lost(setup):
                return names[place:]
            desks.close()
    desks.close()
    return ()


def device_lost(setup: Setup) -> bool:
    """Whether this process can use the device no more, as after a failed kernel."""
    try:
        if setup.cuda:
            torch.cuda.synchronize()
    except Exception:
        return True
    return False


def _go_on(words: Sequence[str], names: Sequence[str], seconds: float) -> int:
    """The other sections in a process of their own, with a device that works."""
    more = ["--resumed", "--sections", ",".join(names), "--seconds", f"{seconds:.0f}"]
    call = [sys.executable, "-m", "benchmarks.h200.rounds", *words, *more]
    return subprocess.run(call, check=False).returncode


def _setup(asked: argparse.Namespace, folder: Path) -> Setup:
    return Setup(
        model=asked.model, cache=str(folder), device=asked.device, dtype=asked.dtype,
        mtp_file=asked.mtp_file,
    )  # fmt: skip


def dry_setup(folder: Path) -> Setup:
    """A tiny random llama with a random head, in float32 on the CPU."""
    from tests.models import heads, tiny

    torch.manual_seed(0)
    context = {"llama.context_length": 1024}
    model = tiny.write(folder / "tiny.gguf", extra=context).path
    heads.beside(model, folder)
    return Setup(model=str(model), cache=str(folder), device="cpu", dtype="float32", stand_in=True)


if __name__ == "__main__":
    sys.exit(main())
