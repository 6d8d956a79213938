"""Fetches a model by its Hugging Face name, `organisation/name`, through huggingface_hub.

Owns the staging folder of such downloads. Takes weights, settings and templates only; never a
pickle, never code. An interrupted download shows up nowhere and is continued by the next one.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flarechat import paths
from flarechat.errors import FlarechatError, ModelError
from flarechat.models.files import locked, require_space, storage_error

FILES = ("*.json", "*.safetensors", "*.jinja")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_STAGING = ".hub"

Download = Callable[[str, Path], None]
Sizes = Callable[[str], int]


def is_hub_name(name: str) -> bool:
    """Whether `name` has the form organisation/name."""
    return bool(_NAME.fullmatch(name)) and ".." not in name


def folder_of(name: str) -> Path:
    """Where the model lies once pulled. The double dash keeps names apart from the catalog's."""
    return paths.models_dir() / name.replace("/", "--")


def name_of(folder: Path) -> str:
    """The inverse of `folder_of`."""
    return folder.name.replace("--", "/", 1)


def is_pulled(name: str) -> bool:
    return (folder_of(name) / "config.json").is_file()


def pull(
    name: str,
    progress: Callable[[int, int], None],
    *,
    sizes: Sizes | None = None,
    download: Download | None = None,
) -> Path:
    """Bring `organisation/name` onto this machine; `progress(done, total)` counts bytes."""
    target = folder_of(name)
    staging = paths.models_dir() / _STAGING / target.name
    total = 0

    def report() -> None:
        progress(min(_bytes_below(staging), total), total)

    with locked(staging.with_name(f"{staging.name}.lock"), report):
        if is_pulled(name):
            return target
        try:
            total = (sizes or _hub_size)(name)
            require_space(
                paths.models_dir(), max(0, total - _bytes_below(staging)), f"pulling {name}"
            )
            _in_background(lambda: (download or _hub_download)(name, staging), report)
            shutil.rmtree(staging / ".cache", ignore_errors=True)
            os.replace(staging, target)
        except FlarechatError:
            raise
        except Exception as error:  # the library and its transports have no common root
            raise _failure(name, error) from error
    progress(total, total)
    return target


def _hub_size(name: str) -> int:
    from fnmatch import fnmatch

    from huggingface_hub import HfApi

    files = HfApi().model_info(name, files_metadata=True).siblings or []
    wanted = [f for f in files if any(fnmatch(f.rfilename, pattern) for pattern in FILES)]
    if not any(f.rfilename.endswith(".safetensors") for f in wanted):
        raise ModelError(f"{name} has no safetensors weights.", "Give another model with --model.")
    return sum(f.size or 0 for f in wanted)


def _hub_download(name: str, staging: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    snapshot_download(name, local_dir=staging, allow_patterns=list(FILES))


def _in_background(work: Callable[[], None], watch: Callable[[], None]) -> None:
    """Do `work` in a thread that an interrupt leaves behind; call `watch` meanwhile."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=guarded, name="model download", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(timeout=0.2)
        watch()
    if raised:
        raise raised[0]


def _failure(name: str, error: Exception) -> FlarechatError:
    """What the library's complaint means for the user."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS):
        return storage_error(paths.models_dir(), error)
    kind = type(error).__name__
    if kind == "GatedRepoError":
        return ModelError(
            f"{name} asks for an agreement before it may be downloaded.",
            "Accept it on the model's page and log in with `hf auth login`.",
        )
    status: Any = getattr(getattr(error, "response", None), "status_code", None)
    if kind == "RepositoryNotFoundError" or status in (401, 404):
        return ModelError(
            f"There is no public model {name}.",
            "Check the spelling, or log in with `hf auth login`.",
        )
    reason = (str(error).splitlines() or [kind])[0].rstrip(".")
    return ModelError(
        f"The model {name} could not be fetched, probably because this machine is offline "
        f"({kind}: {reason[:200]}).",
        f"Run `flarechat models pull {name}` when online, or give a model folder with --model.",
    )


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # renamed meanwhile
            continue
    return total
