"""A bench of the tiny target with its real head, whose drafts tests may steer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from flarechat.engine.executors.eager import EagerExecutor
from flarechat.engine.recipes.qwen38 import load, load_head
from flarechat.engine.slot import SlotPool
from tests.engine.mtp_reference import Script, StagedMtp
from tests.engine.qwen38.mtp_reference import ReferenceHead, reference_head, tensors_of
from tests.engine.qwen38.paths import Path, wrong
from tests.engine.qwen38.tiny import CONTEXT, CPU, VOCABULARY, checkpoint, config
from tests.engine.tiny import Bench

LONG = tuple(
    torch.randint(2, VOCABULARY, (28,), generator=torch.Generator().manual_seed(3)).tolist()
)
# Of 20 and more tokens sparse attention leaves some out; every remainder by four.
PROMPTS = tuple(LONG[:length] for length in (21, 22, 23, 24))


def workbench(
    of: Qwen4ExpForCausalLM, *, commit: str = "records", slots: int = 4,
    record: dict[str, Any] | None = None, tensors: dict[str, Tensor] | None = None,
    dtype: str = "float32",
) -> tuple[Bench, ReferenceHead]:  # fmt: skip
    """A bench whose drafter is a StagedMtp, and the reference of its head."""
    head = reference_head(of)
    model = load(
        config(), checkpoint(of), slots=slots, context=CONTEXT, dtype=dtype, device=CPU,
        commit=commit,
    )  # fmt: skip
    tensors = tensors_of(head) if tensors is None else tensors
    own = load_head(model, record or {}, tensors, dtype=dtype, device=CPU)
    pool = SlotPool(slots, CONTEXT, VOCABULARY, CPU)
    drafter = StagedMtp(own, slots, CONTEXT, CPU)
    drafter.generated = pool.generated
    return Bench(pool, model, EagerExecutor(model, drafter)), head


def drafter_of(made: Bench) -> StagedMtp:
    drafter = made.executor.drafter
    assert isinstance(drafter, StagedMtp)
    return drafter


def luck(paths: Sequence[Path], good: Callable[[int, int], int], *, more: bool = False) -> Script:
    """Drafts right for `good(slot, generated)` tokens of each slot's path, then wrong ones; with
    `more` the chain goes on after the first wrong one."""

    def script(slot: int, done: int, k: int) -> list[int]:
        ahead, right = paths[slot].answer[done : done + k], good(slot, done)
        bad = [wrong(token) for token in ahead[right:]]
        return [*ahead[:right], *(bad[:1] if more else bad)]

    return script
