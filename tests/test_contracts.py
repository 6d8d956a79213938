"""The rules of the code that a machine can check: imports, sizes, words, and the README."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "flarechat"
SOURCES = sorted(PACKAGE.rglob("*.py"))
MOST_FILE_LINES = 330
MOST_FUNCTION_LINES = 60
HEAVY = ("torch", "transformers")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def contracts() -> list[dict[str, object]]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return list(table["tool"]["importlinter"]["contracts"])


def torch_free_roots() -> list[str]:
    """What the import contract calls torch-free: one list serves both checks."""
    contract = next(c for c in contracts() if c["id"] == "torch-line")
    return [str(name) for name in contract["source_modules"]]  # type: ignore[attr-defined]


def modules_below(name: str) -> Iterator[str]:
    """The module itself and, of a package, every module in it."""
    path = ROOT.joinpath(*name.split("."))
    for file in [path.with_suffix(".py"), *sorted(path.rglob("*.py"))]:
        if file.exists():
            parts = file.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_the_import_contracts_hold() -> None:
    linted = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()",
         "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert 0 == linted.returncode, linted.stdout + linted.stderr


def test_every_contract_is_named_with_a_sentence() -> None:
    names = [str(contract["name"]) for contract in contracts()]

    assert names
    assert all(len(name.split()) >= 4 and name[0].isupper() for name in names)


def test_every_module_the_torch_line_lists_exists() -> None:
    assert [] == [name for name in torch_free_roots() if not list(modules_below(name))]


def test_importing_what_stands_above_the_torch_line_loads_no_torch() -> None:
    names = [name for root in torch_free_roots() for name in modules_below(root)]
    probe = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        f"    loaded = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]\n"
        "    assert not loaded, f'{name} loaded {loaded}'\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert 0 == result.returncode, result.stderr


def test_the_command_line_answers_for_help_without_torch_or_textual() -> None:
    probe = (
        "import sys\n"
        "from flarechat.__main__ import main\n"
        "code = main(['--help'])\n"
        "loaded = {'torch', 'transformers', 'textual'} & set(sys.modules)\n"
        "assert (0, set()) == (code, loaded), (code, loaded)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert 0 == result.returncode, result.stderr


def readme_lines(program: str) -> list[str]:
    """The README's shell lines that run `program`, without comments and what feeds the pipe."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    lines = [line.rpartition(" | ")[2] for line in "".join(blocks).splitlines()]
    return [line for line in lines if line.split()[:1] == [program]]


@pytest.mark.parametrize("line", readme_lines("flarechat"))
def test_every_command_of_the_readme_exists(line: str) -> None:
    import typer.main

    from flarechat.cli import app

    words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts}

    assert set() == {word for word in words if word.startswith("--")} - known


@pytest.mark.parametrize("line", readme_lines("make"))
def test_every_verb_of_the_readme_is_in_the_makefile(line: str) -> None:
    verb = shlex.split(line, comments=True)[1]

    assert re.search(rf"^{verb}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


def test_no_source_file_is_longer_than_one_sitting() -> None:
    lengths = {named(path): len(path.read_text("utf-8").splitlines()) for path in SOURCES}
    long = {name: lines for name, lines in lengths.items() if lines > MOST_FILE_LINES}

    assert {} == long


def test_no_function_body_is_longer_than_a_screen() -> None:
    too_long = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                lines = node.end_lineno - node.body[0].lineno + 1
                if lines > MOST_FUNCTION_LINES:
                    too_long[f"{named(path)}:{node.name}"] = lines

    assert {} == too_long


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\s*(import|from)\s+(pickle|marshal|shelve|dill|cloudpickle)\b",
        r"\btorch\.load\b",
        r"(?<![\w.])(eval|exec)\(",
        r"\b(TODO|FIXME|XXX)\b",
    ],
)
def test_no_source_file_runs_code_from_a_file_or_leaves_work_for_later(pattern: str) -> None:
    found = re.compile(pattern, re.MULTILINE)

    assert [] == [named(path) for path in SOURCES if found.search(path.read_text("utf-8"))]


def test_every_module_begins_with_its_contract() -> None:
    silent = [
        named(path)
        for path in SOURCES
        if path.read_text("utf-8").strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]

    assert [] == silent
