"""Checks the kernels of laws, draws and commit on a GPU, draw for draw, and times each.

    python -m benchmarks.h200.sampling --out FOLDER          on a GPU
    python -m benchmarks.h200.sampling --out FOLDER --dry    interpreted, tiny, to see that it runs

Owns both tables. What is held against what: kernels on the device against the torch code on the
CPU, FlashInfer, if it works, against our own kernels. Times are of pieces replayed from a graph.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor

from benchmarks.h200.record import Table
from benchmarks.h200.sampling_cases import Case, Sizes, dry, full, moved, stable_law, uniforms
from flarechat.engine import accept as laws
from flarechat.engine import rng
from flarechat.engine.kernels import chain, commit, flashinfer_chain
from flarechat.engine.kernels import filter as filters
from flarechat.engine.plan import LawShape
from flarechat.engine.sampling import TargetLaw, _filtered, penalised

REPEATS, REPLAYS = 20, 25


def philox(case: Case) -> dict[str, float]:
    """Numbered uniforms of the kernels, and of torch on the device, against torch on the CPU."""
    seed = case.whole(-(2**63), 2**63 - 1, 1024)
    first = case.whole(0, 2**20, 1024) * rng.ACCEPT_STRIDE
    expected = rng.uniforms(seed, rng.ACCEPT, first, 9)
    on = [x.to(case.device) for x in (seed, first)]
    by_torch = rng.uniforms(on[0], rng.ACCEPT, on[1], 9).cpu()
    by_kernel = uniforms(on[0], on[1], 9).cpu()
    differ = (expected != by_torch) | (expected != by_kernel)
    return {"rounds": len(seed), "differ": int(differ.sum())}


def filtered(case: Case, columns: int) -> dict[str, float]:
    """The law of bfloat16 logits, penalties on, candidates and all."""
    lanes, logits, drafts = case.logits(columns)
    own, ids = filters.law(logits, lanes, drafts, True)
    far = moved(lanes, torch.device("cpu"))
    probs, expected = stable_law(logits.cpu(), far, drafts.cpu())
    wrong = (ids.cpu() != expected) & (probs > 1e-6)
    error = float((own.cpu() - probs).abs().max())
    return {"rounds": len(lanes) * logits.shape[1], "differ": int(wrong.sum()), "error": error}


def decided(case: Case, drafts: int, acceptance: str, points: bool) -> dict[str, float]:
    """Acceptance by the kernel, and FlashInfer's of lanes by ratio."""
    lanes, law, proposal = case.round(drafts, points)
    own = chain.accept(law, proposal, lanes, acceptance)
    cpu = torch.device("cpu")
    expected = laws.accept(moved(law, cpu), moved(proposal, cpu), moved(lanes, cpu), acceptance)
    found = {"rounds": len(lanes), "differ": _differ(own, expected)}
    if case.flashinfer:
        theirs = flashinfer_chain.accept(law, proposal, lanes, acceptance)
        found["flashinfer_differ"] = _differ(theirs, own)
    return found


def drawn(case: Case, columns: int, acceptance: str) -> dict[str, float]:
    """Drafts of one step."""
    lanes, logits, _ = case.logits(columns, rows=1)
    depth = torch.full((lanes.pool.slots,), 1, device=case.device)
    made = filters.Chain(lanes, depth, None, 1, acceptance)
    own = made.draw(0, logits, True, None).cpu()
    far = moved(lanes, torch.device("cpu"))
    law = TargetLaw(made.probs.cpu(), made.ids.cpu())
    u = rng.uniforms(far.seed(), rng.DRAFT, rng.DRAFT_STRIDE * (far.consumed() + 1), 1)
    place = far.next_positions(1)[..., None]
    noise = rng.gumbel(far.seed()[:, None, None], rng.SAMPLE, place, law.candidates())
    by_match = far.match()[:, None] if acceptance == "mixed" else acceptance == "match"
    expected = torch.where(torch.as_tensor(by_match), law.draw(noise), law.token_at_mass(u))
    found = {"rounds": len(lanes), "differ": int((own != expected).sum())}
    if case.flashinfer and acceptance == "ratio":
        theirs = flashinfer_chain.sample(made.probs[:, 0], made.ids[:, 0], lanes, 0).cpu()
        found["flashinfer_differ"] = int((theirs[:, None] != own).sum())
    return found


def committed(case: Case) -> dict[str, float]:
    """Clip, advance and frame of one round; every counter of the pool is compared."""
    lanes, _, proposal = case.round(3, False)
    far = moved(lanes, torch.device("cpu"))
    tokens = lanes.inputs(proposal.tokens)
    accepted = proposal.offered
    own = commit.clip(tokens, accepted, lanes)
    expected = laws.clip(tokens.cpu(), accepted.cpu(), far)
    commit.advance(lanes, tokens, *own)
    far.advance(tokens.cpu(), *expected)
    pairs = [*zip(own, expected, strict=True)]
    pairs += [(x, far.pool.tensors()[n]) for n, x in lanes.pool.tensors().items()]
    return {"rounds": len(lanes), "differ": sum(not torch.equal(x.cpu(), y) for x, y in pairs)}


def _differ(own: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> int:
    """Lanes whose emitted tokens differ."""
    (a, b), (tokens, accepted) = [[x.cpu() for x in pair] for pair in (own, expected)]
    counted = torch.arange(a.shape[1]) <= accepted[:, None]
    return int(((b != accepted) | ((a != tokens) & counted).any(1)).sum())


def checks(case: Case, sizes: Sizes) -> Iterator[dict[str, object]]:
    """One row a check."""
    blank = {"error": 0.0, "flashinfer_differ": ""}
    yield {"check": "philox", "of": "1024 streams", **blank, **philox(case)}
    for columns in sizes.columns:
        yield {"check": "law", "of": f"{columns} columns", **blank, **filtered(case, columns)}
    for acceptance in ("ratio", "match", "mixed"):
        yield {"check": "draft", "of": acceptance, **blank,
               **drawn(case, sizes.draft_columns, acceptance)}  # fmt: skip
        for drafts in sizes.drafts:
            for points in (False, True):
                of = f"{acceptance} {drafts} {'points' if points else 'laws'}"
                found = decided(case, drafts, acceptance, points)
                yield {"check": "accept", "of": of, **blank, **found}
    yield {"check": "commit", "of": "clip advance", **blank, **committed(case)}


def pieces(case: Case, sizes: Sizes) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Name, size and call of what is timed, one lane each."""
    for columns in sizes.columns:
        for rows in (1, 4, 8):
            lanes, logits, drafts = case.logits(columns, lanes=1, rows=rows)
            of = f"{columns} columns {rows} rows"
            yield "law", of, lambda a=(logits, lanes, drafts): filters.law(*a, True)
            shape = LawShape(filters.CANDIDATES)
            yield (
                "law by torch",
                of,
                lambda a=(logits, lanes, drafts), s=shape: _filtered(
                    penalised(a[0].float(), a[1], a[2]), a[1], s
                ),
            )
    lanes, logits, _ = case.logits(sizes.draft_columns, lanes=1, rows=1)
    depth = torch.full((lanes.pool.slots,), 1, device=case.device)
    made = filters.Chain(lanes, depth, None, 1, "mixed")
    yield "draft", f"{sizes.draft_columns} columns", lambda: made.draw(0, logits, True, None)
    for drafts in (0, *sizes.drafts):
        lanes, law, proposal = case.round(drafts, False, lanes=1)
        args = (law, proposal, lanes, "mixed")
        yield "accept", f"{drafts} drafts", lambda a=args: chain.accept(*a)
        yield "accept by torch", f"{drafts} drafts", lambda a=args: laws.accept_ratio(*a[:3])
        if case.flashinfer and drafts:
            yield (
                "accept by flashinfer",
                f"{drafts} drafts",
                lambda a=args: flashinfer_chain.accept(*a[:3], "ratio"),
            )
    tokens, count = lanes.inputs(proposal.tokens), torch.ones(1).long().to(case.device)
    yield "inputs", "", lambda: commit.inputs(lanes, proposal.tokens)
    yield "clip", "", lambda: commit.clip(tokens, count, lanes)
    yield "advance", "", lambda: commit.advance(lanes, tokens, 0 * count, count)
    yield "pack", "", lambda: commit.pack(lanes, count, count, count, count, tokens, 6)


def microseconds(call: Callable[[], object], device: torch.device) -> float:
    """Of one call among REPEATS in a graph, the median of REPLAYS; off a GPU of one plain call."""
    call()
    if device.type == "cpu":
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e6
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for _ in range(REPEATS)]
    times = []
    for _ in range(REPLAYS):
        events = [torch.cuda.Event(enable_timing=True) for _ in "ab"]
        events[0].record()
        graph.replay()
        events[1].record()
        events[1].synchronize()
        times.append(events[0].elapsed_time(events[1]) * 1e3 / REPEATS)
    del kept
    return statistics.median(times)


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="sampling")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--flashinfer", action="store_true", help="may compile for minutes")
    args = parser.parse_args()
    device = torch.device("cpu" if args.dry else "cuda")
    args.out.mkdir(parents=True, exist_ok=True)
    sizes = dry() if args.dry else full()
    by_flashinfer = args.flashinfer and flashinfer_chain.works(device)
    case = Case(sizes, device, flashinfer=by_flashinfer)
    checked, failed = Table(args.out / f"{args.name}-checks.csv"), 0
    for row in checks(case, sizes):
        checked.add(**row)
        failed += bool(row["differ"]) or row["flashinfer_differ"] not in ("", 0)
        print(",".join(map(str, row.values())), flush=True)
    timed = Table(args.out / f"{args.name}-times.csv")
    for name, of, call in pieces(case, sizes):
        spent = microseconds(call, device)
        timed.add(piece=name, of=of, us=spent)
        print(f"{name},{of},{spent:.2f}", flush=True)
    print(f"{failed} checks differ; flashinfer: {by_flashinfer}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
