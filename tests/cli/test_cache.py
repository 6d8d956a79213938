"""`flarechat cache`: what is kept on disk of what was computed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from flarechat import paths
from tests.cli.conftest import Cli
from tests.vault.nodes import IDENTITY, Made, made

MIB = 1 << 20
CUDA = replace(IDENTITY, device="cuda", dtype="bfloat16")


def used(node: Made, age: int) -> Path:
    """A node in the vault, last used so many seconds before a certain moment."""
    path = node.put(paths.snapshots_dir())
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def three() -> list[Path]:
    """A trunk with two branches, of which the second was used last."""
    trunk = made([1, 2, 3], extra=MIB)
    left, right = made([4, 5], trunk, extra=MIB), made([6], trunk, offset=2, extra=MIB)
    return [used(trunk, 0), used(left, 20), used(right, 10)]


def test_what_is_kept_is_shown_by_model_the_last_used_first(cli: Cli) -> None:
    files = three()
    other = used(made([7, 8], identity=CUDA, model="qwen\x1b[1m"), -50)

    got = cli("cache", "show")

    rows = [line.split() for line in got.out.splitlines()]
    assert 0 == got.code
    assert ["MODEL", "DEVICE", "DTYPE", "SNAPSHOTS", "TOKENS", "SIZE", "USED"] == rows[0]
    assert ["qwen[1m", "cuda", "bfloat16", "1", "2"] == rows[1][:5]
    assert ["smol", "cpu", "float32", "3", "6", "3.1", "MB"] == rows[2][:7]
    assert f"of at most 2.1 GB (--prefix-cache-disk 2048) in {paths.snapshots_dir()}." in got.err
    assert all(path.exists() for path in [*files, other])


def test_what_is_kept_as_json(cli: Cli) -> None:
    files = three()

    got = json.loads(cli("--prefix-cache-disk", "3", "cache", "show", "--json").out)

    total = sum(path.stat().st_size for path in files)
    assert {"folder", "budget", "bytes", "models"} == set(got)
    assert (str(paths.snapshots_dir()), 3 * MIB, total) == (
        got["folder"],
        got["budget"],
        got["bytes"],
    )
    assert [
        {
            "identity": IDENTITY.digest,
            "model": "smol",
            "recipe": "llama",
            "fingerprint": "ab12|",
            "dtype": "float32",
            "device": "cpu",
            "snapshots": 3,
            "tokens": 6,
            "bytes": total,
            "last_used": 1e9,
            "unreadable": 0,
        }
    ] == got["models"]


def test_an_empty_cache_is_shown(cli: Cli) -> None:
    got = cli("cache", "show")

    assert (0, "") == (got.code, got.out)
    assert got.err.startswith("0 B of at most 2.1 GB (--prefix-cache-disk 2048) in ")
    assert [] == json.loads(cli("cache", "show", "--json").out)["models"]


def test_files_that_cannot_be_read_are_counted(cli: Cli) -> None:
    [trunk, *_] = three()
    trunk.write_bytes(b"junk")

    got = cli("cache", "show")

    assert 0 == got.code
    assert "1 of the files cannot be read; `flarechat sessions verify` says why." in got.err
    [model] = json.loads(cli("cache", "show", "--json").out)["models"]
    assert (1, 3, 3) == (model["unreadable"], model["snapshots"], model["tokens"])


def test_a_trim_leaves_what_was_used_last_and_what_it_hangs_on(cli: Cli) -> None:
    trunk, left, right = three()
    size = left.stat().st_size

    got = cli("cache", "trim", "--to", "3")

    assert (0, "", f"{size / 1e6:.1f} MB were freed.\n") == (got.code, got.out, got.err)
    assert [True, False, True] == [path.exists() for path in (trunk, left, right)]
    assert "0 B were freed.\n" == cli("cache", "trim").err
    assert [True, True] == [path.exists() for path in (trunk, right)]


def test_a_trim_without_a_size_is_to_what_the_settings_allow(cli: Cli) -> None:
    files = three()

    Path("flarechat.toml").write_text("prefix-cache-disk = 2\n")
    assert 0 == cli("cache", "trim").code
    assert [True, False, False] == [path.exists() for path in files]

    assert 0 == cli("--prefix-cache", "0", "cache", "trim").code
    assert not files[0].exists()


@pytest.mark.parametrize(("answer", "stays"), [(b"n\n", True), (b"y\n", False)])
def test_a_clear_asks(cli: Cli, answer: bytes, stays: bool) -> None:
    files = three()

    got = cli("cache", "clear", stdin=answer)

    assert (0, "") == (got.code, got.out)
    assert got.err.startswith("Delete 3 snapshots (3.1 MB)? [y/N] ")
    assert ("They were kept." in got.err) == stays
    assert {stays} == {path.exists() for path in files}


def test_a_clear_that_nobody_answers_deletes_nothing(cli: Cli) -> None:
    files = three()

    got = cli("cache", "clear")

    assert (2, True) == (got.code, "Give --yes to not be asked." in got.err)
    assert {True} == {path.exists() for path in files}


def test_a_clear_leaves_alien_files_and_is_not_asked_twice(cli: Cli) -> None:
    files = three()
    alien = paths.snapshots_dir() / "notes.txt"
    alien.write_text("mine")

    got = cli("cache", "clear", "--yes")

    assert (0, "3.1 MB were freed.\n") == (got.code, got.err)
    assert ({False}, True) == ({path.exists() for path in files}, alien.exists())
    assert "0 B were freed.\n" == cli("cache", "clear").err


@pytest.mark.parametrize("to", ["-1", "many"])
def test_a_size_that_is_none_is_refused(cli: Cli, to: str) -> None:
    assert 2 == cli("cache", "trim", "--to", to).code
