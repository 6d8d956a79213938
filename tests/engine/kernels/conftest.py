"""Kernels run in Triton's interpreter; the root conftest asks for it, before any import."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

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


@pytest.fixture(scope="session", autouse=True)
def _patched_once_a_launch() -> None:
    """Where a kernel calls a function, the interpreter patches Triton's language again, which is a
    third of its time and changes nothing: let it see first whether the launch has done so."""
    if find_spec("triton"):
        from triton.runtime import interpreter

        interpreter._patch_lang = _looking(interpreter._patch_lang)


def _looking(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    from triton import language
    from triton.runtime.interpreter import _LangPatchScope

    @functools.cache
    def languages(function: Any) -> list[Any]:
        known = (language, language.core)
        return [value for value in function.__globals__.values() if any(value is k for k in known)]

    def is_patched(place: Any, name: str) -> bool:
        return not language.core.is_builtin(getattr(place, name))

    def look(function: Any) -> Any:
        if is_patched(language.tensor, "to") and all(
            is_patched(place, "load") for place in languages(function)
        ):
            return _LangPatchScope()
        return patch(function)

    return look
