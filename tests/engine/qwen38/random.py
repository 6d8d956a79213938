"""Random tiny checkpoints as `flarechat models make-random` writes them, made once a session."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from flarechat.engine.make_random.__main__ import make
from flarechat.engine.make_random.geometry import FORMATS, Wanted
from flarechat.engine.weights import Checkpoint, load_checkpoint

_KEPT = TemporaryDirectory(prefix="flarechat-random-")
PLACES = [(form, "inside") for form in FORMATS] + [("bf16", "sidecar"), ("fp4-local", "sidecar")]


def wanted(form: str = "bf16", mtp: str = "inside", **fields: object) -> Wanted:
    """A wish for a tiny checkpoint."""
    given = {"family": "qwen38", "layers": 4, "geometry": "tiny", "seed": 0, **fields}
    return Wanted(format=form, mtp=mtp, **given)  # type: ignore[arg-type]


def folder(form: str = "bf16", mtp: str = "inside") -> Path:
    """The folder of such a checkpoint."""
    return _made(form, mtp)


@cache
def _made(form: str, mtp: str) -> Path:
    path = Path(_KEPT.name) / f"{form}-{mtp}"
    make(wanted(form, mtp), path, lambda event: None)
    return path


def checkpoint(form: str = "bf16", mtp: str = "inside") -> Checkpoint:
    """The same, opened."""
    source = folder(form, mtp)
    return load_checkpoint(
        source, Path(_KEPT.name) / "cache", lambda *_: None, supported=("qwen4_exp",)
    )
