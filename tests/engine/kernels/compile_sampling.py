"""Compiles the kernels of laws, draws and commit for a GPU that need not be there, at the sizes of
real vocabularies; a line for each, as `compile_pass` prints them."""

from __future__ import annotations

from typing import Any

import triton

from flarechat.engine.kernels import chain, commit, draws
from flarechat.engine.kernels import filter as filters
from tests.engine.kernels.compile_pass import compiled, told

COUNT = filters.CANDIDATES
FLOATS = ("repetition", "presence", "frequency", "temperature", "top_p", "min_p", "probs_out",
          "law", "q")  # fmt: skip
OTHERS = {"logits": "*bf16", "counts": "*i32", "prompt_seen": "*u8", "match": "*i1"}
NUMBERS = ("columns", "width", "first", "stride", "step", "depth", "any_sure")


def typed(kernel: Any, constants: dict[str, Any], **own: str) -> dict[str, str]:
    """The types of a kernel's arguments: int64 tensors, if they are nothing else."""
    known = OTHERS | dict.fromkeys(FLOATS, "*fp32") | dict.fromkeys(NUMBERS, "i32") | own
    names = [p.name for p in kernel.params if p.name not in constants | {"PDL": 0}]
    return {name: known.get(name, "*i64") for name in names}


def case(kernel: Any, label: str, constants: dict[str, Any], warps: int, **own: str) -> None:
    compiled(kernel, label, constants, warps=warps, **typed(kernel, constants, **own))


def laws(columns: int, *, mapped: bool) -> None:
    cut = filters.cut_for(columns)
    constants = {"PENALTIES": True, "MAPPED": mapped, "TURNS": cut.turns, "C": COUNT}
    case(filters._top, f"{columns} columns", constants, cut.warps, tokens="i32")
    turns = (cut.runs - 1).bit_length()
    constants = {"RUNS": cut.runs, "TURNS": turns, "C": COUNT, "MAPPED": mapped,
                 "MODE": draws.MODES["mixed"], "DRAW": mapped, "STAGED": mapped}  # fmt: skip
    case(filters._law, f"{cut.runs} runs", constants, cut.merging_warps)


def main() -> None:
    laws(8192, mapped=True)
    for columns in (49152, 151936, 248320):
        laws(columns, mapped=False)
    for drafts, points in ((0, True), (3, False), (7, False), (7, True)):
        rows = triton.next_power_of_2(max(drafts + 1, 2))
        constants = {"DRAFTED": drafts > 0, "ROWS": rows, "FOUND": COUNT, "C": COUNT,
                     "Q_FOUND": 1 if points else COUNT, "Q": 1 if points else COUNT,
                     "POINTS": points, "MODE": draws.MODES["mixed"]}  # fmt: skip
        case(chain._accept, f"{drafts} drafts", constants, chain.WARPS)
    rows = {"ROWS": 8}
    case(commit._inputs, "", rows, 1)
    case(commit._clip, "", rows | {"EOS": 16}, 1)
    case(commit._advance, "", rows, 1, counts="*i32", vocabulary="i32")
    case(commit._pack, "", rows | {"HEADER": 6}, 1)


if __name__ == "__main__":
    with told():
        main()
