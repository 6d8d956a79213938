"""What a wheel of flarechat holds beyond its modules, with a C compiler and without."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from flarechat.engine.kernels.cpu.library import load
from flarechat.engine.kernels.cpu.sources import LIBRARY

ROOT = Path(__file__).parents[1]
CPU = Path("flarechat/engine/kernels/cpu")
BUILD = "import sys, setuptools.build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
SOURCES = ("flarechat", "assets", "pyproject.toml", "setup.py", "README.md", "LICENSE")
NOTICE = "flarechat: built without CPU kernels: "

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("cc", "gcc", "clang")), reason="there is no C compiler"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What a build needs of this folder, with nothing built in it."""
    folder = tmp_path / "source"
    folder.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", LIBRARY)
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=ignored)
        else:
            shutil.copy(path, folder)
    (folder / "assets" / "one-mtp.safetensors").write_bytes(b"x")
    return folder


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The Python of these tests with a command, in an environment with other variables."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command], cwd=folder, env=os.environ | variables,
        capture_output=True, text=True, check=True,
    )  # fmt: skip


def build(folder: Path, what: str, **variables: str) -> tuple[Path, list[str]]:
    """What the hook `what` of the build makes, and the lines in which a library was missed."""
    built = folder / "built"
    done = run(folder, "-c", BUILD, what, str(built), **variables)
    (made,) = built.iterdir()
    return made, [line for line in done.stderr.splitlines() if line.startswith("flarechat:")]


def compile_in_place(folder: Path, **variables: str) -> str:
    """Standard error of a build of the library alone."""
    done = run(folder, "setup.py", "--quiet", "build_ext", "--inplace", **variables)
    return done.stderr


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_wheel_holds_the_draft_heads_and_every_package(source: Path) -> None:
    wheel, told = build(source, "build_wheel", CC="/bin/false")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "flarechat").rglob("*.py")}

    assert "flarechat/assets/one-mtp.safetensors" in names
    assert set() == modules - names
    assert {"flarechat/ui/app.tcss", "flarechat/bench/workloads.json"} <= names
    assert wheel.name.endswith("-py3-none-any.whl")
    assert set() == {name for name in names if name.endswith((".so", ".c", ".h"))}
    assert [f"{NOTICE}/bin/false failed (exit status 1)."] == told


@needs_compiler
def test_a_wheel_made_of_the_source_archive_holds_the_library(source: Path, tmp_path: Path) -> None:
    archive, told = build(source, "build_sdist")
    tarfile.open(archive).extractall(tmp_path / "archive", filter="data")
    (unpacked,) = (tmp_path / "archive").iterdir()
    assert [] == told

    wheel, told = build(unpacked, "build_wheel", CFLAGS="-O0")
    zipfile.ZipFile(wheel).extractall(tmp_path / "wheel")
    installed = tmp_path / "wheel" / CPU
    assert [] == told
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    assert not (installed / "csrc").exists()
    library, why = load(installed, ROOT / CPU / "csrc", {})
    assert library is not None, why


@needs_compiler
def test_an_editable_install_compiles_in_place_and_keeps_what_is_there(source: Path) -> None:
    wheel, told = build(source, "build_editable", CFLAGS="-O0")
    assert [] == told and zipfile.ZipFile(wheel).namelist()
    assert load(source / CPU, source / CPU / "csrc", {})[0]

    wheel.unlink()
    _, told = build(source, "build_editable", CC="/bin/false")
    assert [f"{NOTICE}/bin/false failed (exit status 1)."] == told
    assert load(source / CPU, source / CPU / "csrc", {})[0]


def test_an_editable_install_goes_on_without_a_compiler(source: Path) -> None:
    _, told = build(source, "build_editable", CC="", PATH="/nowhere")

    assert [f"{NOTICE}there is no C compiler (cc, gcc or clang)."] == told
    why = "not built (no working C compiler when flarechat was installed)"
    assert (None, why) == load(source / CPU, source / CPU / "csrc", {})


def test_a_broken_compiler_is_told_in_a_line(source: Path, tmp_path: Path) -> None:
    broken = script(
        tmp_path / "broken", "echo 'a.c: warning: mind' >&2; echo ' a.c:1: error: bad' >&2; exit 1"
    )
    for command, why in [
        (broken, f"{broken} failed (a.c:1: error: bad)"),
        ("/no/such -m64", "/no/such does not start (No such file or directory)"),
    ]:
        assert f"{NOTICE}{why}.\n" == compile_in_place(source, CC=command)


def test_flags_of_the_environment_cannot_make_results_inexact(source: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    compile_in_place(
        source, CC=script(tmp_path / "told", f'echo "$@" >> {log}; exit 1'),
        CFLAGS="-O1 -ffast-math -ffp-contract=fast",
    )  # fmt: skip
    flags = log.read_text().splitlines()[0].split()
    order = ["-O3", "-O1", "-ffast-math", "-ffp-contract=fast", "-ffp-contract=off"]

    assert [*order, "-fno-fast-math"] == [
        flag for flag in flags if flag in {*order, "-fno-fast-math"}
    ]
    assert not any(flag.startswith("-march") for flag in flags)
