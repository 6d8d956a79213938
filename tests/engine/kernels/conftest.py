"""Kernels run in Triton's interpreter; the root conftest asks for it, before any import."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

_HERE = Path(__file__).parent


class _Unavailable(pytest.Module):
    """A module of tests that cannot be imported here."""

    def collect(self) -> NoReturn:
        pytest.skip("Triton has no wheel for this platform", allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Leave out what lies in this folder without Triton; the folder of C kernels needs none."""
    if module_path.parent != _HERE or find_spec("triton"):
        return None
    made: pytest.Module = _Unavailable.from_parent(parent, path=module_path)
    return made
