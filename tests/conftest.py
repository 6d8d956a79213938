"""Fixtures every test shares: its own home, nothing left behind."""

from __future__ import annotations

import atexit
import gc
import os
from pathlib import Path

import platformdirs
import pytest

from flarechat.errors import FlarechatError
from flarechat.models import store

_SHARED_CACHE = os.environ.get("FLARECHAT_TEST_CACHE") or platformdirs.user_cache_dir(
    "flarechat-tests"
)

# Kernels run in Triton's interpreter, which must be asked for before Triton is first imported. On
# a machine with a GPU, `TRITON_INTERPRET=0 pytest -m cuda` runs the tests that need one.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Processes of tests that run side by side leave one another's processors alone, and so do theirs.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The application freezes what it has loaded. Here that is Triton too, whose bindings complain after
# pytest's last line of all that the interpreter could not free.
atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none, or where kernels are interpreted."""
    gpu = [item for item in items if item.get_closest_marker("cuda")]
    if not gpu:
        return
    import torch

    if torch.cuda.is_available() and os.environ["TRITON_INTERPRET"] != "1":
        return
    config.hook.pytest_deselected(items=gpu)
    items[:] = [item for item in items if item not in gpu]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh FLARECHAT_HOME, and no FLARECHAT_* setting of the caller's."""
    for name in [n for n in os.environ if n.startswith("FLARECHAT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("FLARECHAT_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model, pulled once into a cache that all runs share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLARECHAT_HOME", _SHARED_CACHE)
        try:
            return store.resolve("smollm2")
        except FlarechatError as error:
            pytest.skip(f"the default model is not in the test cache: {error.message}")
