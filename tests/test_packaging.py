"""What a wheel of flarechat holds beyond its modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = "import sys, setuptools.build_meta as b; b.build_wheel(sys.argv[1])"
SOURCES = ("flarechat", "assets", "pyproject.toml", "setup.py", "README.md", "LICENSE")


def test_a_wheel_holds_the_draft_heads_and_every_package(tmp_path: Path) -> None:
    source, built = tmp_path / "source", tmp_path / "built"
    built.mkdir()
    source.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source)
    (source / "assets" / "one-mtp.safetensors").write_bytes(b"x")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, str(built)],
        cwd=source, capture_output=True, check=True,
    )  # fmt: skip
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "flarechat").rglob("*.py")}

    assert "flarechat/assets/one-mtp.safetensors" in names
    assert set() == modules - names
    assert {"flarechat/ui/app.tcss", "flarechat/bench/workloads.json"} <= names
