"""What `flarechat doctor` looks at. Owns the checks, not how they are printed.

Asks a short process about the device, so that torch is never imported here; a check that fails
is reported, not raised.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import flarechat
from flarechat import paths
from flarechat.config import FOLDER_FILE, Settings, load_settings
from flarechat.engine import executors
from flarechat.engine.kernels import cpu
from flarechat.errors import FlarechatError, ModelError, SettingsError
from flarechat.protocol import PACKED, STORED

PACKAGES = ("torch", "triton", "transformers", "tokenizers", "safetensors", "textual", "typer")
RECORDED = ("tokens", "acceptance", "licence")
DEVICE_PATIENCE_S = 60
_DEVICE_PROBE = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "device": f"cuda ({torch.cuda.get_device_name()})" if cuda else "cpu",
    "devices": torch.cuda.device_count(),
    "threads": torch.get_num_threads(),
    "device_memory": torch.cuda.get_device_properties(0).total_memory if cuda else None,
}))
"""
Report = dict[str, dict[str, Any]]


def examine() -> tuple[Report, list[FlarechatError]]:
    """All facts by part, and what is wrong; never raises for what it finds."""
    problems: list[FlarechatError] = []
    settings = _tried(lambda: load_settings({}), problems) or Settings()
    report: Report = {
        "versions": _versions(),
        "engine": _engine(settings, problems),
        "machine": _machine(),
        "model": _tried(lambda: _model(settings.model), problems) or {"name": settings.model},
        "mtp": _tried(lambda: _mtp(settings), problems) or {"head": None},
        "paths": _tried(_paths, problems) or {},
        "terminal": _terminal(),
    }
    return report, problems


def _tried(check: Callable[[], Any], problems: list[FlarechatError]) -> Any:
    """What a check found, or None with its problem noted."""
    try:
        return check()
    except FlarechatError as error:
        problems.append(error)
        return None


def _versions() -> dict[str, Any]:
    """Versions as their packages record them; None for one that is not installed."""
    found: dict[str, Any] = {
        "flarechat": flarechat.__version__,
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def _engine(settings: Settings, problems: list[FlarechatError]) -> dict[str, Any]:
    """The device, and how rounds would be run on it by a model that can be captured; what was
    asked for and cannot be is a problem, as every start would end with it.
    """
    found = _device()
    cuda, kernels = str(found.get("device")).startswith("cuda"), find_spec("triton") is not None
    try:
        name, why = executors.choose(settings.executor, cuda=cuda, kernels=kernels, capturable=True)
    except FlarechatError as error:
        problems.append(error)
        name, why = None, error.message
    if cuda and settings.device != "cpu":
        return {"executor": name, "why": why} | found
    weights = _tried(lambda: _weights(settings.dtype, settings.threads), problems)
    return {"executor": name, "why": why} | found | {"weights": weights}


def _weights(dtype: str, threads: int | None) -> str:
    """In which form a llama's weights would be multiplied on the CPU, by what, or why not as they
    are stored."""
    library = cpu.library()
    if library is not None and threads:
        library.set_threads(threads)
    if dtype == STORED and library is None:
        raise SettingsError(
            f"--dtype {STORED} is not available here.",
            f"Its kernels are {cpu.reason()}; use --dtype auto.",
        )
    if dtype not in ("auto", STORED):
        return f"{dtype}, as asked for"
    if dtype == "auto" and (why := cpu.hindrance()):
        return f"{PACKED}, as the CPU kernels are {why}"
    return f"{STORED}, by kernels with {cpu.reason()}"


def _device() -> dict[str, Any]:
    """What torch finds, asked of a process of its own."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _DEVICE_PROBE],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=DEVICE_PATIENCE_S,
            check=True,
        )
        answer = json.loads(asked.stdout)
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return {"device": f"unknown: torch does not start ({last})"}
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {"device": f"unknown: torch does not answer ({type(error).__name__})"}
    return answer if isinstance(answer, dict) else {}


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {"system": platform.platform(), "cores": os.cpu_count()}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found["memory"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return found


def _model(name: str) -> dict[str, Any]:
    """Whether the model is here; nothing is pulled to find out."""
    from flarechat.models import headers, store

    try:
        path = store.resolve(name, pull_missing=False)
    except ModelError:
        return {"name": name, "here": False}
    facts: dict[str, Any] = {"name": name, "here": True, "path": str(path)}
    if path.is_dir():
        facts["stored"] = headers.stored(headers.folder_table(path))
    return facts


def _mtp(settings: Settings) -> dict[str, Any]:
    """The draft head that would be loaded with the model, what its record says, and why others
    would not; a model's digest is computed the first time.
    """
    from flarechat.launch import mtp_file
    from flarechat.models import headers, inspection, sidecars, store

    if not settings.mtp:
        return {"head": "off (--no-mtp)"}
    asked = mtp_file(settings)
    try:
        path = store.resolve(settings.model, pull_missing=False)
    except ModelError:
        return {"head": None}
    if not asked and path.is_dir() and headers.has_head(headers.folder_table(path)):
        return {"head": "inside the checkpoint"}
    refused: list[str] = []
    found = sidecars.find(
        path, inspection.fingerprint(path), explicit=Path(asked) if asked else None,
        refused=refused.append,
    )  # fmt: skip
    facts: dict[str, Any] = {"refused": refused} if refused else {}
    if found is None:
        return {"head": None, **facts}
    told = {key: found.record[key] for key in RECORDED if key in found.record}
    return {
        "head": str(found.path),
        "draft vocabulary": found.draft_vocabulary or "all tokens",
        "layers": found.record["layers"],
        "parameters": sum(headers.stored(headers.file_table(found.path)).values()),
        **told,
        **facts,
    }


def _paths() -> dict[str, Any]:
    cache = paths.cache_dir()
    return {
        "settings": str(paths.config_file()),
        "folder settings": os.path.abspath(FOLDER_FILE),
        "sessions": str(paths.sessions_dir()),
        "models": str(paths.models_dir()),
        "cache": str(cache),
        "logs": str(paths.logs_dir()),
        "free disk": shutil.disk_usage(cache).free,
    }


def _terminal() -> dict[str, Any]:
    columns, rows = shutil.get_terminal_size()
    return {
        "terminal": sys.stdout.isatty(),
        "TERM": os.environ.get("TERM"),
        "COLORTERM": os.environ.get("COLORTERM"),
        "size": f"{columns}x{rows}",
        "encoding": sys.stdout.encoding,
    }
