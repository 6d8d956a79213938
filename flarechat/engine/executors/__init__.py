"""Executors: how the page is run. A table with lazy imports; one file each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from flarechat.errors import SettingsError

if TYPE_CHECKING:
    from flarechat.engine.contracts import Drafter, Executor, Target
    from flarechat.engine.executors.catalogue import Catalogue
    from flarechat.engine.executors.graph import Progress
    from flarechat.engine.slot import SlotPool
    from flarechat.engine.staging import Staging

EXECUTORS = {
    "eager": ("flarechat.engine.executors.eager", "EagerExecutor"),
    "graph": ("flarechat.engine.executors.graph", "GraphExecutor"),
}


def choose(asked: str, *, cuda: bool, kernels: bool, capturable: bool) -> tuple[str, str]:
    """The executor's name, and why it is that one, in words.

    Rounds are captured where there is a GPU, Triton for its `kernels`, and a family that is
    `capturable`; asked for where they cannot be, they are refused.
    """
    if not cuda:
        lacking = "rounds are captured on a CUDA device only"
    elif not kernels:
        lacking = "Triton is not installed, and captured rounds need its kernels"
    elif not capturable:
        lacking = "rounds of this model family need the host and cannot be captured"
    else:
        lacking = ""
    if asked == "graph" and lacking:
        raise SettingsError(f"--executor graph is not available: {lacking}.", "Use auto or eager.")
    if asked == "eager":
        return "eager", "--executor asks for it"
    return ("eager", lacking) if lacking else ("graph", "there is a CUDA device")


def make_executor(
    name: str, target: Target, drafter: Drafter, staging: Staging, pool: SlotPool,
    catalogue: Catalogue, progress: Progress,
) -> Executor:  # fmt: skip
    """The executor called `name`, ready to play; `progress` hears of its captures."""
    module, cls = EXECUTORS[name]
    kind = getattr(import_module(module), cls)
    if name == "eager":
        executor: Executor = kind(target, drafter, staging)
        return executor
    graph = kind(target, drafter, staging, pool, catalogue)
    graph.prepare(progress)
    made: Executor = graph
    return made
