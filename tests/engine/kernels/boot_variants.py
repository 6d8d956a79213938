"""Tells what the boot of a captured engine asks Triton for, on a machine without a GPU: a model and
head of SmolLM2-135M's shape, every plan of four lanes. A line for each variant: kernel and data.

With `--compile` it has some of them compiled by other processes, and tells what came of it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from flarechat.engine import kernels
from flarechat.engine.drafters import blend, make_drafter
from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.executors.catalogue import Catalogue
from flarechat.engine.executors.graph import GraphExecutor
from flarechat.engine.kernels import (
    commit,
    compiling,
    launch,
    lookups,
    products,
    qkv,
    tall,
    variants,
    verify_attention,
)  # fmt: skip
from flarechat.engine.kernels.compiler import Absent
from flarechat.engine.recipes.llama import ModelArgs, load, load_head
from flarechat.engine.recipes.llama import mtp as heads
from flarechat.engine.recipes.llama.weights import shapes
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.engine.staging import Staging
from flarechat.engine.window import Window
from tests.engine.captures import HostCapture

CPU, LANES, CONTEXT = torch.device("cpu"), 4, 8192
TAPS = (1, 2, 3, 4, 5)
# A vocabulary that is sorted soon, and as large as kernels for large ones ask.
VOCABULARY, DRAFTED = 8192, 4096
SIZES = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": len(TAPS),
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 1e5,
    "tie_word_embeddings": True, "hidden_act": "silu",
}  # fmt: skip
RECORD = {
    "format": 1, "targets": [], "hidden_size": 576, "layers": 1, "intermediate_size": 1536,
    "taps": list(TAPS), "draft_vocabulary": list(range(DRAFTED)),
}  # fmt: skip


def pretend() -> None:
    """Let tensors of the CPU be taken for a GPU's, by what chooses kernels and their variants."""
    triton.runtime.driver.set_active(Absent(GPUTarget("cuda", 90, 32)))  # type: ignore[arg-type]
    launch._dependent = lambda device: True  # type: ignore[assignment]
    for module in (products, qkv, tall, verify_attention):
        module.product_type = lambda x: launch.TYPES[x.dtype]  # type: ignore[attr-defined]


def zeros(named: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in named.items()}


def works() -> list[variants.Work]:
    """Every plan of the catalogue, as the executor tries it."""
    args: Any = ModelArgs.from_config(SIZES)
    target = load(SIZES, zeros(shapes(args)), slots=LANES, context=CONTEXT, dtype="bfloat16",
                  device=CPU)  # fmt: skip
    tensors = zeros(heads.shapes(heads.MtpArgs.from_record(RECORD, args)))
    head = load_head(target, RECORD, tensors, dtype="bfloat16", device=CPU)
    target.taps = TAPS
    staging, pool = Staging(LANES, CPU), SlotPool(LANES, CONTEXT, VOCABULARY, CPU)
    drafter = blend(
        make_drafter("copies", LANES, CPU, staging), MtpDrafter(head, LANES, CONTEXT, CPU, staging)
    )
    catalogue = Catalogue(
        slots=LANES, capacity=128, context=CONTEXT, extent=CONTEXT + SCRATCH_ROWS, learned=True,
        always_absorbs=drafter.always_absorbs,
    )  # fmt: skip
    executor = GraphExecutor(target, drafter, staging, pool, catalogue, HostCapture())
    executor._slots[:, 0] = range(LANES)
    executor._piece.host[:] = 0
    return [executor._tried(captured) for captured in catalogue.all()]


def small_works() -> list[variants.Work]:
    """What takes no long time to compile: four kernels."""
    lanes = Lanes(SlotPool(2, 16, 48, CPU), (0, 1))
    drafts = torch.zeros(2, 3, dtype=torch.int64)
    counts = torch.zeros(2, dtype=torch.int64)
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    x, weight = (torch.zeros(n, 32, dtype=torch.bfloat16) for n in (4, 16))
    rows, hidden = (torch.zeros(2, n, 32, dtype=torch.bfloat16) for n in (40, 4))
    return [
        lambda: commit.inputs(lanes, drafts),
        lambda: commit.clip(tokens, counts, lanes),
        lambda: commit.inputs(lanes, drafts[:, :1]),
        lambda: products.plain(x, weight),
        lambda: lookups.store(rows, hidden, Window(lanes, 4)),
    ]


def launched(work: variants.Work) -> list[bool]:
    """Of what is launched, whether it was found compiled; only the launch itself fails here."""
    found = list[bool]()
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: found.append(cache_hit)
    with suppress(AttributeError):
        work()
    return found


def main() -> None:
    pretend()
    with kernels.interpreted(), torch.inference_mode():
        if "--compile" not in sys.argv:
            for variant in variants.asked_for(works()):
                print(variant.name, variant.data, sep="\t")
            return
        small, told = small_works(), list[tuple[int, int]]()
        for _ in range(2):
            did = compiling.compile_ahead(small, lambda *step: told.append(step), processes=2)
            print(did, told[:1] + told[-1:])
        print(*[launched(work) for work in small])


if __name__ == "__main__":
    main()
