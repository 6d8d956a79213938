"""What pyproject.toml cannot say: assets/ of a clone is flarechat/assets in a wheel, and the CPU
kernels are compiled where a C compiler is.

They become a plain shared library, which knows nothing of Python: one wheel fits every version, and
no Python headers are needed. Without a compiler, or with a broken one, the wheel is pure.
"""

import os
import runpy
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

PACKAGE = "flarechat.engine.kernels.cpu"
FOLDER = Path(*PACKAGE.split("."))
MADE_OF = runpy.run_path(str(FOLDER / "sources.py"))
# Results are exact to the bit, which no flag of the environment may change: these come last.
EXACT = ("-std=c11", "-ffp-contract=off", "-fno-fast-math", "-fPIC", "-pthread")


class NotBuilt(Exception):
    """Why there is no library, in words that fit behind a colon."""


def compiler() -> list[str]:
    """The command of the C compiler: CC, or the first that is there."""
    if os.name == "nt":
        raise NotBuilt("they need gcc or clang and POSIX threads")
    asked = shlex.split(os.environ.get("CC", ""))
    found = asked or [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]
    if not found:
        raise NotBuilt("there is no C compiler (cc, gcc or clang)")
    return found


def told(command: list[str]) -> None:
    """Run a command; of one that fails only the first line about an error is told."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise NotBuilt(f"{command[0]} does not start ({error.strerror})") from None
    except subprocess.CalledProcessError as error:
        lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
        first = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")
        why = first or f"exit status {error.returncode}"
        raise NotBuilt(f"{command[0]} failed ({why})") from None


def compile_library(target: Path) -> None:
    """Compile csrc/*.c into the shared library `target`, or say in a NotBuilt why not."""
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = [*shlex.split(os.environ.get("CFLAGS", "")), *EXACT]
    begin = [*compiler(), "-O3", f'-DFC_SOURCES="{MADE_OF["digest"]()}"', *flags]
    with TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        sources = sorted((FOLDER / "csrc").glob("*.c"))
        objects = [os.path.join(folder, f"{source.stem}.o") for source in sources]
        commands = [
            [*begin, "-c", str(source), "-o", made]
            for source, made in zip(sources, objects, strict=True)
        ]
        list(pool.map(told, commands))
        told([*compiler(), *flags, "-shared", *objects, "-o", str(target), "-lm"])


class BuildKernels(build_ext):
    """Builds the one library; where that fails, the package is one without."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")[:-1], MADE_OF["LIBRARY"])

    def build_extension(self, ext: Extension) -> None:
        try:
            compile_library(Path(self.get_ext_fullpath(ext.name)))
        except NotBuilt as why:
            print(f"flarechat: built without CPU kernels: {why}.", file=sys.stderr)
            self.extensions = []
            self.distribution.ext_modules = None


class Wheel(bdist_wheel):
    """A wheel for a platform if it holds the library, and for any Python either way."""

    def run(self) -> None:
        self.run_command("build")
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


def sources(pattern: str) -> list[str]:
    """Paths of C files, as setuptools wants them."""
    return sorted(path.as_posix() for path in (FOLDER / "csrc").glob(pattern))


setup(
    packages=[*find_packages(include=["flarechat*"]), "flarechat.assets"],
    package_dir={"flarechat.assets": "assets"},
    exclude_package_data={PACKAGE: ["csrc/*"]},
    ext_modules=[
        Extension(f"{PACKAGE}.libflarechat", sources=sources("*.c"), depends=sources("*.h"))
    ],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
)
