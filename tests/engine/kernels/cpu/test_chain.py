"""Blocks in a row, chains and absorption in one call against the same step by step: to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flarechat.engine.frame import LaneRecord
from flarechat.engine.kernels import cpu
from flarechat.engine.plan import LawShape
from flarechat.engine.proposal import Proposal
from flarechat.engine.recipes.llama.model import Blocks
from flarechat.engine.recipes.llama.mtp import MtpHead
from flarechat.engine.slot import Lanes
from flarechat.engine.window import Window
from flarechat.protocol import STORED, Sampling
from tests.engine.mtp_reference import RECORDS, StagedMtp, kin, kin_tensors, luck, workbench
from tests.engine.tiny import PROMPTS, VOCABULARY, Bench, head_record

if cpu.library() is None:
    pytest.skip(f"no C kernels: {cpu.reason()}", allow_module_level=True)

ALL = {
    **RECORDS,
    "all at once": head_record(layers=2, taps=(1, 2, 1), vocabulary=range(1, VOCABULARY, 2)),
}
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "drawn": Sampling(temperature=0.8, top_k=12, top_p=0.9),
    "penalised": Sampling(
        temperature=0.9, top_k=30, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.1
    ),
}
PROMPTS_OF = ([3, *range(1, 36)], PROMPTS[1], [5], PROMPTS[0])
TURNS = [
    (3, (0, 1, 2, 3)), (7, (2, 0)), (1, (1,)), (0, (3, 0)), (5, (0, 1, 2, 3)), (2, (3, 1)),
    (4, (2,)), (6, (0, 3)), (7, (1, 2, 3, 0)),
]  # fmt: skip


def stepwise(made: Bench) -> None:
    """Let this bench do in many calls what others do in one."""
    drafter: Any = made.executor.drafter
    assert drafter._whole is drafter.head
    drafter._whole = None
    assert drafter.head.calls
    for owner in (made.target, drafter.head):
        owner.blocks = Blocks(owner.blocks)


def heard(drafter: StagedMtp) -> list[Proposal]:
    """What the drafter proposes from here on."""
    proposals: list[Proposal] = []
    propose = drafter.propose

    def watched(lanes: Lanes, plan: Any) -> Proposal:
        proposals.append(propose(lanes, plan))
        return proposals[-1]

    drafter.propose = watched  # type: ignore[method-assign]
    return proposals


def play(
    record: dict[str, Any], sampling: Sampling, acceptance: str,
    script: Callable[[int, int, int], list[int]] | None, *, once: bool,
) -> tuple[Bench, list[Proposal], list[list[LaneRecord]]]:  # fmt: skip
    """Four requests, of which one ends soon and stays in its rounds, and one has no hidden row at
    first."""
    made, _ = workbench(kin(), record, kin_tensors(record), dtype=STORED)
    if not once:
        stepwise(made)
    drafter = made.executor.drafter
    assert isinstance(drafter, StagedMtp)
    for slot, prompt in enumerate(PROMPTS_OF):
        match = acceptance == "match" or (acceptance == "mixed" and slot % 2 == 0)
        made.open(
            slot, prompt, sampling=sampling, seed=slot, match=match, budget=6 if slot == 3 else 60,
            chunk=40 if slot == 0 else 3,
        )  # fmt: skip
    if script:
        drafter.script = script
    proposals, law = heard(drafter), LawShape.of([sampling], VOCABULARY)
    frames = [made.play(slots, k, law=law, acceptance=acceptance) for k, slots in TURNS]
    return made, proposals, frames


def require_equal(once: tuple[Any, ...], steps: tuple[Any, ...]) -> None:
    (made, proposals, frames), (plain, expected, records) = once, steps

    assert records == frames
    for theirs, own in zip(expected, proposals, strict=True):
        for name in ("tokens", "offered", "probs", "ids"):
            one, other = getattr(theirs, name), getattr(own, name)
            assert (one is None) == (other is None), name
            assert one is None or torch.equal(one, other), name
    for pair in zip(states(plain), states(made), strict=True):
        assert torch.equal(*pair)


def states(made: Bench) -> list[Tensor]:
    """Every tensor of the bench: the pool's, the target's rows and the drafter's, unreachable ones
    included."""
    owners = [*made.target.states(), *made.executor.drafter.states()]
    named = [made.pool.tensors(), *(owner.tensors() for owner in owners)]
    return [tensor for tensors in named for tensor in tensors.values()]


@pytest.mark.parametrize("acceptance", ["ratio", "match", "mixed"])
@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("record", ALL.values(), ids=ALL)
def test_whole_rounds_are_the_same_in_one_call_and_step_by_step(
    record: dict[str, Any], name: str, acceptance: str
) -> None:
    """Drafts, their laws, what is kept, and every row of every cache."""
    once, steps = (
        play(record, SAMPLINGS[name], acceptance, None, once=once) for once in (True, False)
    )
    require_equal(once, steps)

    assert any(record.accepted for frame in once[2] for record in frame)


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("good", range(8))
def test_staged_drafts_are_taken_and_the_chain_goes_on_from_them(good: int, wrong: bool) -> None:
    """Copies right for so many tokens, then a wrong one, with which no more are kept."""
    sampling, record, truth = SAMPLINGS["greedy"], ALL["all at once"], dict[int, list[int]]()
    made, _ = workbench(kin(), record, kin_tensors(record), dtype=STORED)
    for slot, prompt in enumerate(PROMPTS_OF):
        made.open(slot, prompt, sampling=sampling, seed=slot, budget=60)
        truth[slot] = [made.play((slot,), 0)[0].tokens[0] for _ in range(60)]
    script = luck(truth, lambda slot, done: good, wrong=wrong)
    once, steps = (play(record, sampling, "mixed", script, once=once) for once in (True, False))
    require_equal(once, steps)
    kept = {record.accepted for frame in once[2] for record in frame}

    assert good in kept
    assert not wrong or max(kept) == good


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_of_a_drawn_chain_staged_drafts_are_points(sampling: Sampling) -> None:
    def script(slot: int, done: int, k: int) -> list[int]:
        return [
            (7 * slot + 3 * done + step) % VOCABULARY for step in range((done + slot) % (k + 1))
        ]

    require_equal(
        *(play(ALL["two layers"], sampling, "ratio", script, once=once) for once in (True, False))
    )


def head_and_rows(count: int) -> tuple[MtpHead, Tensor, Tensor]:
    """A head with hidden rows [1, count, D] and their tokens."""
    record = ALL["all at once"]
    made, _ = workbench(kin(), record, kin_tensors(record), dtype=STORED)
    draw = torch.Generator().manual_seed(count)
    head: Any = made.executor.drafter.head  # type: ignore[attr-defined]
    hidden = torch.randn(1, count, head.features, generator=draw)
    return head, hidden, torch.randint(0, VOCABULARY, (1, count), generator=draw)


def test_a_pair_is_the_product_of_both_normalised_rows() -> None:
    """As torch normalises them, but for roundings of int8 activations."""
    head, hidden, tokens = head_and_rows(5)
    expected = MtpHead._pair(head, hidden, tokens)
    off = (head._pair(hidden, tokens) - expected).norm() / expected.norm()

    assert float(off) < 5e-3


def test_a_pair_does_not_depend_on_the_rows_beside_it() -> None:
    head, hidden, tokens = head_and_rows(41)
    whole = head._pair(hidden, tokens)
    alone = [head._pair(hidden[:, [i]], tokens[:, [i]]) for i in range(41)]

    assert torch.equal(whole, torch.cat(alone, dim=1))


@pytest.mark.parametrize("layers", [range(2), range(1), range(1, 2), range(0)])
def test_any_run_of_blocks_is_one_block_after_the_other(layers: range) -> None:
    made, plain = (
        workbench(kin(), ALL["two layers"], kin_tensors(ALL["two layers"]), dtype=STORED)[0]
        for _ in range(2)
    )
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(2))
    found = []
    for bench, blocks in ((made, made.target.blocks), (plain, Blocks(plain.target.blocks))):
        for slot in (0, 1):
            bench.open(slot, PROMPTS[slot])
        window, kv = Window(Lanes(bench.pool, (1, 0)), 3), bench.target.kv
        given = x.clone()
        found.append(blocks.run(given, kv, layers, window, 64))  # type: ignore[union-attr]

        assert torch.equal(x, given)

    assert torch.equal(*found)
    for pair in zip(states(made), states(plain), strict=True):
        assert torch.equal(*pair)
