"""How far a round is from what the device allows: bytes that must move, and kernels to launch.

Owns the two floors. The bytes are those of the weights a round reads, of the keys and values at its
context and of the logits, over the copy bandwidth measured here; the launches are the kernels of
the round times an empty kernel in a graph. A round is compared with the larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from benchmarks.h200.bare import Replay, device_seconds, replay_of, timed
from benchmarks.h200.desk import Desk, Desks, Setup
from benchmarks.h200.record import Box, Run
from benchmarks.h200.sizes import Sizes
from benchmarks.h200.taps import Plays, plays
from benchmarks.h200.texts import LAWS, OFF, QUESTIONS, SEED, arms, behind
from flarechat.engine.plan import extent_for
from flarechat.engine.slot import SCRATCH_ROWS
from flarechat.protocol import MAX_DRAFT_TOKENS

EMPTY_KERNELS = 1000
Kernel = tuple[str, float, float]


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of round: K drafts, drafted this way, planned as in a request of this arm."""

    arm: str
    draft_tokens: int
    drafting: str


PLAIN = (Case(OFF, 0, "none"), Case(OFF, 7, "copies"))
LEARNED = (Case("fixed-1", 1, "mtp"), Case("fixed-3", 3, "mtp"), Case("fixed-7", 7, "mtp"))


@dataclass(frozen=True, slots=True)
class Timed:
    """A case at a context: the state it starts from, the calls that play it, seconds a round."""

    context: str
    case: Case
    seen: Plays
    consumed: int
    replays: list[Replay]
    seconds: float


def measure(run: Run, desks: Desks, sizes: Sizes, executor: str, box: Box) -> dict[str, Any]:
    """The section. All is timed before anything is profiled, as a profiler may stay in the way."""
    bandwidth = copy_bandwidth(desks.setup, sizes.copy_bytes)
    empty = empty_kernel_seconds() if desks.setup.cuda else 0.0
    desk = desks.get(executor, lanes=max(sizes.lanes))
    box.begin()
    cases = [
        _timed(desk, sizes, context, case)
        for context in sizes.contexts
        for case in (*PLAIN, *(LEARNED if desk.drafts else ()))
        if not box.over
    ]
    failure = ""
    for timing in cases:
        kernels: list[Kernel] = []
        if desk.setup.cuda and not failure and not box.over:
            try:
                kernels = kernel_table(desk, timing.seen, timing.replays)
            except RuntimeError as told:
                failure = str(told)
        _write(run, desk, timing, kernels, bandwidth, empty)
    return {
        **desk.boot_figures,
        "copy_bytes_a_second": bandwidth,
        "empty_kernel_us": 1e6 * empty,
        "profiler_failure": failure,
    }


def _timed(desk: Desk, sizes: Sizes, context: str, case: Case) -> Timed:
    seen, slots, plan = _begun(desk, sizes, sizes.contexts[context], case)
    replays = [replay_of(desk, slots, plan)] * sizes.replays
    seconds = device_seconds(desk, seen, replays, sizes.passes) / sizes.replays
    return Timed(context, case, seen, int(seen.pool["consumed"][slots[0]]), replays, seconds)


def _write(
    run: Run, desk: Desk, timing: Timed, kernels: Sequence[Kernel], bandwidth: float, empty: float
) -> None:
    """The rows of one case."""
    case, busy = timing.case, sum(spent for *_, spent in kernels)
    for name, count, spent in kernels:
        run.table("kernels").add(
            context=timing.context, draft_tokens=case.draft_tokens, drafting=case.drafting,
            kernel=name, count=count, us=spent, share=spent / busy,
        )  # fmt: skip
    launches = round(sum(count for _, count, _ in kernels))
    moved = sum(bytes_moved(desk, case, timing.consumed).values())
    floor = max(moved / bandwidth, launches * empty)
    run.table("floor").add(
        context=timing.context, consumed=timing.consumed, draft_tokens=case.draft_tokens,
        drafting=case.drafting, bytes=moved, bytes_us=1e6 * moved / bandwidth, kernels=launches,
        launch_us=1e6 * launches * empty, busy_us=busy, round_us=1e6 * timing.seconds,
        over_floor=timing.seconds / floor,
    )  # fmt: skip


def _begun(desk: Desk, sizes: Sizes, tokens: int, case: Case) -> tuple[Plays, tuple[int, ...], Any]:
    """A prompt of so many tokens read, the pool as it is then, and the plan of the case."""
    (arm,) = arms((case.arm,))
    encode = desk.engine.language.tokenizer.encode
    prompt = behind(QUESTIONS[0], tokens, lambda text: len(encode(text)), SEED)
    desk.steer()
    with plays(desk) as seen:
        desk.ask(prompt, arm, LAWS["match"], (MAX_DRAFT_TOKENS + 1) * (sizes.replays + 1))
    width = case.draft_tokens + 1
    rows = int(seen.pool["consumed"][seen.slots[0][0]]) + width * sizes.replays
    extent = extent_for(rows, desk.engine.pool.context + SCRATCH_ROWS)
    plan = replace(
        seen.plans[0], draft_tokens=case.draft_tokens, drafting=case.drafting, extent=extent
    )
    return seen, seen.slots[0], plan


def bytes_moved(desk: Desk, case: Case, consumed: int) -> dict[str, int]:
    """Bytes a round must move by part, each weight read once a pass."""
    target, told = desk.executor.target, desk.ready.model.memory
    assert told is not None, "a booted engine says what it priced"
    args, size = target.args, target.embedding.itemsize
    row = 2 * args.num_key_value_heads * args.head_dim * size
    width, depth = case.draft_tokens + 1, case.draft_tokens if case.drafting == "mtp" else 0
    parts = {
        "weights": told.priced["weights"],
        "rows": args.num_hidden_layers * row * (consumed + width),
        "logits": 2 * width * args.vocab_size * size,
    }
    if depth:
        head = desk.engine.drafter.learned.head  # type: ignore[attr-defined]
        taps = len(head.args.taps)
        fuse = taps * args.hidden_size**2 * size if taps > 1 else 0
        layers = head.args.blocks.num_hidden_layers
        step = told.priced["mtp weights"] - fuse
        parts["chain"] = depth * (step + layers * row * consumed)
        parts["absorb"] = fuse + 2 * args.hidden_size**2 * size
    return parts


def copy_bandwidth(setup: Setup, size: int) -> float:
    """Bytes a second, read and written, of a large copy on the device."""
    source = torch.zeros(size, dtype=torch.uint8, device=setup.device)
    sink = torch.empty_like(source)
    seconds = median(timed(setup.cuda, lambda: sink.copy_(source)) for _ in range(12))
    return 2 * size / seconds


def empty_kernel_seconds() -> float:
    """One empty kernel of a graph that has a thousand."""
    from benchmarks.h200.empty import launch

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(EMPTY_KERNELS):
            launch()
    graph.replay()
    return median(timed(True, graph.replay) for _ in range(20)) / EMPTY_KERNELS


def kernel_table(desk: Desk, seen: Plays, replays: Sequence[Replay]) -> list[Kernel]:
    """Name, launches and device microseconds a round of every kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    seen.reset(desk)
    desk.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for replay in replays:
            replay()
        desk.synchronize()
    found: dict[str, list[float]] = {}
    for event in profiled.events():
        if event.device_type.name == "CUDA":
            found.setdefault(event.name, []).append(event.time_range.elapsed_us())
    rounds = len(replays)
    rows = [(name, len(times) / rounds, sum(times) / rounds) for name, times in found.items()]
    return sorted(rows, key=lambda row: -row[2])
