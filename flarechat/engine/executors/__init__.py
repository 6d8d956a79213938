"""Executors: how the page is run. A table with lazy imports; one file each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flarechat.engine.contracts import Drafter, Executor, Target

EXECUTORS = {"eager": ("flarechat.engine.executors.eager", "EagerExecutor")}
DEFAULT = "eager"


def make_executor(name: str, target: Target, drafter: Drafter) -> Executor:
    """The executor called `name` over a target and a drafter."""
    module, cls = EXECUTORS[name]
    executor: Executor = getattr(import_module(module), cls)(target, drafter)
    return executor
