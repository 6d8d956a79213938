"""Compiles the kernels of a model's pass to machine code for a GPU that need not be there: of each
its name, what was asked for, the registers it takes and the bytes it spills."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flarechat.engine.kernels import lookups, products, qkv, tall, verify_attention
from flarechat.engine.kernels.launch import AHEAD, BEHIND
from flarechat.engine.kernels.products import Cut, cut_for, tiling

TYPES = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}
PLACES = {"index": "*i64", "consumed": "*i64", "finish": "*i64", "width": "i32", "shift": "i32",
          "spare": "i32"}  # fmt: skip
LOGS: dict[str, str] = {}


def compiled(
    kernel: Any, label: str, constants: dict[str, Any], *, warps: int = 4, pdl: int = AHEAD,
    **types: str,
) -> None:  # fmt: skip
    constants = constants | {"PDL": pdl}
    known = types | dict.fromkeys(constants, "constexpr")
    signature = {p.name: known.pop(p.name) for p in kernel.params}
    assert not known, known
    aligned = {(n,): [["tt.divisibility", 16]]
               for n, (name, kind) in enumerate(signature.items())
               if kind.startswith("*") or name.endswith("step")}  # fmt: skip
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": warps, "launch_pdl": True}
    with redirect_stdout(StringIO()) as log:
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    told = LOGS.setdefault(made.hash, log.getvalue())  # Of what was compiled before there is none.
    print(kernel.__name__, label, *figures(told), sep=",", flush=True)


def figures(said: str) -> tuple[int, int]:
    """Registers of a thread, and bytes spilled, by what the assembler said."""
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", said)))
    return int(re.findall(r"Used (\d+) registers", said)[-1]), spilled


def product(kind: str, out: int, wide: int, cut: Cut | None = None, dtype: str = "bf16",
            pdl: int = AHEAD) -> None:  # fmt: skip
    cut, size = cut or cut_for(out, wide), 4 if dtype == "fp32" else 2
    constants = {
        "IN": wide, "OUT": out, "NORM": kind in ("normed", "gated"), "GATED": kind == "gated",
        "ADDED": kind == "added", "BLOCK": cut.block, "TYPE": TYPES[dtype],
        **tiling(wide, out, size, cut, pair=kind == "gated"),
    }  # fmt: skip
    tensors = dict.fromkeys(("x", "norm", "weight", "residual", "out"), f"*{dtype}")
    compiled(products._few, f"{kind} {out} from {wide} {dtype}", constants, warps=cut.warps,
             pdl=pdl, **tensors, rows="i32", step="i32", eps="fp32")  # fmt: skip


def tall_product(lines: int, wide: int) -> None:
    block, whole = tall.block_for(lines, 8), 1 << (wide.bit_length() - 1)
    constants = {
        "IN": wide, "WHOLE": whole, "REST": wide - whole, "BLOCK": block, "TYPE": tl.bfloat16,
        "STAGES": tall._STAGES, "EXACT": True,
    }  # fmt: skip
    compiled(tall._tall, f"{lines} from {wide}", constants, warps=tall._WARPS, x="*bf16",
             weight="*bf16", out="*bf16", rows="i32", step="i32", lines="i32")  # fmt: skip


def projection(heads: int, kv: int, dim: int, wide: int, *, queries: bool = True) -> None:
    cut = Cut(block=8)
    constants = {
        "PREFILLING": False, "IN": wide, "DIM": dim, "HEADS": heads, "KV_HEADS": kv,
        "FIRST": 0 if queries else heads, "BLOCK": cut.block, "TYPE": tl.bfloat16,
        **tiling(wide, dim // 2, 2, cut, pair=True),
    }  # fmt: skip
    tensors = dict.fromkeys(("x", "norm", "weight", "out", "keys", "values"), "*bf16")
    compiled(qkv._project, f"{heads}/{kv}x{dim} from {wide}", constants, warps=cut.warps,
             **tensors, cos="*fp32", sin="*fp32", rows="i32", eps="fp32", slot_step="i32",
             head_step="i32", reach="i32", **PLACES)  # fmt: skip


def attention(heads: int, kv: int, dim: int, capacity: int, width: int) -> None:
    group = heads // kv
    split = verify_attention.split_for(dim)
    layout = verify_attention.layout(group, dim, capacity, width, 2, split)
    constants = {
        "PREFILLING": False, "GROUP": group, "KV_HEADS": kv, "DIM": dim, "ROWS": capacity,
        "PADDED": verify_attention.padded_for(dim),
        "KEYS": split.keys, "MERGED": split.merged, "STAGES": split.stages, "TYPE": tl.bfloat16,
        "TALL": layout.tall, "BLOCKS": layout.blocks, "SPLITS": layout.splits,
        "FEW": verify_attention._few(width * group, layout.tall),
    }  # fmt: skip
    compiled(verify_attention._attend, f"{heads}/{kv}x{dim} of {capacity} width {width}",
             constants, warps=split.warps, **dict.fromkeys(("q", "keys", "values", "out"), "*bf16"),
             sums="*fp32", scales="*fp32", arrived="*i32", slot_step="i32", head_step="i32",
             factor="fp32", **PLACES)  # fmt: skip


def main() -> None:
    for kind, out, wide in (
        ("added", 576, 576), ("gated", 1536, 576), ("added", 576, 1536), ("normed", 960, 576),
        ("normed", 8192, 4096), ("plain", 576, 1152), ("plain", 576, 2880), ("gated", 14336, 4096),
    ):  # fmt: skip
        product(kind, out, wide)
    product("gated", 1536, 576, dtype="fp16", pdl=BEHIND)
    product("added", 576, 1536, dtype="fp32")
    for lines in (49152, 8192):
        tall_product(lines, 576)
    compiled(tall._normed, "576", {"IN": 576, "TILE": 1024}, x="*bf16", norm="*bf16", out="*bf16",
             step="i32", eps="fp32")  # fmt: skip
    projection(9, 3, 64, 576)
    projection(9, 3, 64, 576, queries=False)
    projection(32, 8, 128, 4096)
    for heads, kv, dim in ((4, 2, 8), (9, 3, 64), (8, 2, 96), (32, 8, 128), (24, 2, 256)):
        for width in (1, 256):
            attention(heads, kv, dim, 8208, width)
    row = {"DIM": 576, "PART": 1024}
    compiled(lookups._embed, "", row, tokens="*i64", table="*bf16", out="*bf16")
    compiled(lookups._pair, "", {"DIM": 576, "WHOLE": 1024}, tokens="*i64", eps="fp32",
             **dict.fromkeys(("hidden", "norm_hidden", "table", "norm_embedding", "out"), "*bf16"),
             )  # fmt: skip
    placed = row | {"PREFILLING": False}
    compiled(lookups._store, "", placed, rows="*bf16", hidden="*bf16", slot_step="i32", **PLACES)
    compiled(lookups._last, "", placed, rows="*bf16", out="*bf16", slot_step="i32", **PLACES)


@contextmanager
def told() -> Iterator[None]:
    """Everything is compiled anew, and the assembler's log is printed."""
    with tempfile.TemporaryDirectory() as folder:
        triton.knobs.cache.dir, triton.knobs.nvidia.dump_ptxas_log = folder, True
        yield


if __name__ == "__main__":
    with told():
        main()
