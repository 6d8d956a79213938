"""How the C library is found, refused and told of."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flarechat.engine import dtypes
from flarechat.engine.kernels import cpu
from flarechat.engine.kernels.cpu import library as found
from flarechat.engine.kernels.cpu import sources
from flarechat.engine.kernels.cpu.library import INSTRUCTIONS, Library, load, matrix_bytes
from flarechat.errors import SettingsError
from tests.engine.kernels.cpu import tiles

MODULE = sys.modules["flarechat.engine.kernels.cpu.library"]
STRUCTURES = {
    "fc_matrix": MODULE.Matrix,
    "fc_window": MODULE.WindowFields,
    "fc_attention": MODULE.AttentionFields,
    "fc_mlp": MODULE.MlpFields,
}


@pytest.fixture
def built(kernels: Library, tmp_path: Path) -> Path:
    """A folder with a copy of the library, which has threads and an instruction set of its own, and
    of its sources."""
    folder = tmp_path / "built"
    shutil.copytree(sources.FOLDER, folder / "csrc")
    shutil.copy(sources.FOLDER.parent / sources.LIBRARY, folder)
    return folder


def test_it_tells_the_instruction_set_and_the_threads(kernels: Library) -> None:
    assert cpu.library() is found() is kernels
    assert f"{kernels.instructions} on 1 thread" == cpu.reason()

    kernels.set_threads(1_000_000)
    cores = kernels.most_threads
    assert 1 <= cores < 1_000_000
    assert cores == Library(kernels.handle).most_threads
    assert f"{kernels.instructions} on {cores} thread{'s' * (cores > 1)}" == cpu.reason()
    kernels.set_threads(0)
    assert 1 == kernels.most_threads


@pytest.mark.parametrize(
    ("told", "share"), [("150000 100000\n", 2), ("5000 100000", 1), ("max 100000", 64), ("", 64)]
)
def test_no_more_threads_than_a_containers_share_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str, share: int
) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(told)
    monkeypatch.setattr(MODULE.os, "sched_getaffinity", lambda _: range(64), raising=False)

    assert share == MODULE._cores(quota)
    assert 64 == MODULE._cores(tmp_path / "none")


def test_an_x86_without_its_sets_is_better_off_with_torch(
    kernels: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels.use("portable")
    for machine, pays in (("x86_64", False), ("AMD64", False), ("aarch64", True)):
        monkeypatch.setattr(MODULE.platform, "machine", lambda machine=machine: machine)
        assert pays is kernels.pays


def test_a_set_is_in_use_once_it_was_taken(kernels: Library) -> None:
    taken = [name for name in INSTRUCTIONS if kernels.use(name) and kernels.instructions == name]

    assert {"portable"} <= set(taken)
    assert not kernels.use("sse")
    assert taken[-1] == kernels.instructions


def test_a_variable_forces_a_set(built: Path) -> None:
    made, why = load(built, built / "csrc", {"FLARECHAT_CPU_ISA": "portable"})

    assert made is not None and ("portable", "") == (made.instructions, why)


def test_a_set_that_the_machine_lacks_is_refused(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Library, "use", lambda self, name: False)

    with pytest.raises(SettingsError, match=r"ISA asks for avx512, which this machine lacks\. U"):
        load(built, built / "csrc", {"FLARECHAT_CPU_ISA": "avx512"})


@pytest.mark.parametrize(
    ("variable", "value", "known"),
    [
        ("FLARECHAT_CPU_ISA", "sse", "portable, avx2, avxvnni, avx512"),
        ("FLARECHAT_CPU_KERNELS", "no", "on, off"),
    ],
)
def test_a_variable_with_another_value_is_refused(
    tmp_path: Path, variable: str, value: str, known: str
) -> None:
    said = f"{variable} is {value!r}, not one of {known}. Unset {variable}."

    with pytest.raises(SettingsError, match=f"^{re.escape(said)}$"):
        load(tmp_path, tmp_path, {variable: value})


def test_such_a_variable_ends_a_start_with_any_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "_loaded", functools.cache(MODULE._loaded.__wrapped__))
    monkeypatch.setattr(dtypes.cpu, "library", found.__wrapped__)
    monkeypatch.setenv("FLARECHAT_CPU_ISA", "sse")

    with pytest.raises(SettingsError, match="FLARECHAT_CPU_ISA is 'sse'"):
        dtypes.require("float32", torch.device("cpu"))
    dtypes.require("bfloat16", torch.device("cuda"))


def test_it_can_be_switched_off(built: Path) -> None:
    off = load(built, built / "csrc", {"FLARECHAT_CPU_KERNELS": "off"})

    assert (None, "switched off by FLARECHAT_CPU_KERNELS=off") == off
    for value in ("on", ""):
        assert load(built, built / "csrc", {"FLARECHAT_CPU_KERNELS": value})[0]


def test_one_that_was_never_built_is_told(tmp_path: Path) -> None:
    assert (
        None,
        "not built (no working C compiler when flarechat was installed)",
    ) == load(tmp_path, tmp_path, {})


def test_a_file_that_is_no_library_is_told(tmp_path: Path) -> None:
    (tmp_path / sources.LIBRARY).write_bytes(b"no library")
    made, why = load(tmp_path, tmp_path / "csrc", {})

    assert made is None and re.fullmatch(r"not loaded \(.*libflarechat.*\)", why)


@pytest.mark.parametrize("change", ["changed", "added", "gone"])
def test_one_made_of_other_sources_is_not_taken(built: Path, change: str) -> None:
    header = built / "csrc" / "parallel.h"
    if change == "changed":
        header.write_text(header.read_text() + "\n")
    elif change == "added":
        (header.parent / "more.c").touch()
    else:
        header.unlink()

    stale = (None, "built from other sources: install flarechat again")
    assert stale == load(built, built / "csrc", {})


def test_one_without_sources_beside_it_is_taken(built: Path) -> None:
    shutil.rmtree(built / "csrc")

    assert load(built, built / "csrc", {})[0]


def test_one_that_lacks_a_function_is_not_taken(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODULE._PROTOTYPES, "of_tomorrow", (None, ()))

    stale = (None, "built from other sources: install flarechat again")
    assert stale == load(built, built / "csrc", {})


def test_the_digest_is_of_names_and_contents_and_of_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a;")
    (tmp_path / "a.h").write_text("extern int a;")
    before = sources.digest(tmp_path)
    (tmp_path / "notes.txt").touch()

    assert before == sources.digest(tmp_path)
    (tmp_path / "a.c").rename(tmp_path / "b.c")
    assert before != sources.digest(tmp_path)


@pytest.mark.parametrize("kind", tiles.KINDS)
def test_bytes_of_a_weight_are_those_of_its_tiles(kind: str) -> None:
    made = tiles.make(tiles.KINDS[kind], 33, 64)

    assert made.data.nbytes == matrix_bytes(kind, 33, 64)


def test_structures_are_laid_out_as_c_has_them(kernels: Library, tmp_path: Path) -> None:
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None:
        pytest.skip("there is no C compiler by now")
    asked, expected = [], []
    for name, made in STRUCTURES.items():
        asked.append(f"sizeof({name})")
        expected.append(ctypes.sizeof(made))
        for field, *_ in made._fields_:
            asked.append(f"offsetof({name}, {field})")
            expected.append(getattr(made, field).offset)
    lines = "".join(f'printf("%zu\\n", (size_t){expression});' for expression in asked)
    (tmp_path / "asks.c").write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <flarechat.h>\n"
        f"int main(void) {{ {lines} return 0; }}\n"
    )
    command = [compiler, "-I", str(sources.FOLDER), "asks.c", "-o", "asks"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    told = subprocess.run([tmp_path / "asks"], check=True, capture_output=True, text=True)

    assert dict(zip(asked, map(int, told.stdout.split()), strict=True)) == dict(
        zip(asked, expected, strict=True)
    )
