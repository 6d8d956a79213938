"""Compiles every kernel to machine code for GPUs that need not be there; one line for each."""

from __future__ import annotations

import tempfile
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flarechat.engine.kernels import experts, rows

CAPABILITY = 90
BLOCKS = {"order": "*i64", "block_expert": "*i64", "block_first": "*i64", "block_rows": "*i64"}


def compiled(kernel: Any, constants: dict[str, Any], **types: str) -> None:
    signature = types | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32))
    print(kernel.__name__, len(made.asm["cubin"]))


def main() -> None:
    for nvfp4 in (True, False):
        tiles = {"BLOCK": experts.BLOCK, "NVFP4": nvfp4, "TYPE": tl.bfloat16,
                 "OUT_TILE": 64, "IN_TILE": 128}  # fmt: skip
        scale, last = ("*u8", "*fp32") if nvfp4 else ("*bf16", "*bf16")
        stored = {"weight": "*u8", "scale": scale, "scale_2": last, "experts": "i32"}
        compiled(
            experts._gate_up, {"OUT": 640, "IN": 2560, **tiles},
            x="*bf16", inside="*bf16", **BLOCKS, **stored, chosen="i32",
        )  # fmt: skip
        compiled(
            experts._down, {"OUT": 2560, "IN": 640, **tiles},
            inside="*bf16", result="*fp32", share="*bf16", **BLOCKS, **stored,
        )  # fmt: skip
    compiled(
        rows._gather, {"CODES": 80, "SCALES": 10, "TILE": 128},
        codes="*i64", scales="*i64", part="*i64", inside="*i64", out="*u8",
    )  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        triton.knobs.cache.dir = folder
        main()
