"""Captured rounds say what called ones say: tokens, records and state, at every width.

Owns the comparison of two engines that differ in their executor alone, one after the other: single
requests, second turns on a restored prefix, and equal prompts at once. Both read prompts in the
same pieces. Records are compared where both played the same plans: fixed widths without copies, as
a round that is launched ahead of the last one's record can look for none. What a slot holds after a
request is compared to the bit; differences are stated, absolute and relative to the largest value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.h200.desk import Desk, Desks, Told
from benchmarks.h200.record import Box, Run
from benchmarks.h200.sizes import Sizes
from benchmarks.h200.taps import in_pieces, plays, records
from benchmarks.h200.texts import ADAPTIVE, ARMS, FOLLOW_UP, LAWS, OFF, QUESTIONS, arms, copying
from flarechat.bench.arms import FIXED, Arm

Key = tuple[str, str, str, int]
SINGLE, SECOND, BRANCH = "single", "second turn", "equal prompts"
SEEDED = "seeded ratio"
_WITH_SECOND_TURN, _SECOND_PROMPTS = (OFF, "fixed-3", "fixed-7", ADAPTIVE), 2


@dataclass(frozen=True, slots=True)
class Kept:
    """What one answer left: tokens, its lane's records, its slot's state by name."""

    tokens: tuple[int, ...]
    records: tuple[Any, ...]
    state: Mapping[str, Tensor]
    restored: int


def widths(drafts: bool) -> list[Arm]:
    """Every width, adaptive and fixed, without and with copies."""
    if not drafts:
        off, adaptive = arms((OFF, "adaptive+history"))
        return [off, *map(copying, arms(("fixed-3", "fixed-7"))), adaptive]
    return [*arms(ARMS), *map(copying, arms(("fixed-3", "fixed-7")))]


def cases(drafts: bool, questions: int) -> list[tuple[str, Arm, int]]:
    """Law, arm and prompt of every single request, prompt by prompt."""
    return [
        (law, arm, prompt)
        for prompt in range(questions)
        for law in ("greedy", "match", SEEDED)
        for arm in widths(drafts)
        if law != SEEDED or arm.name in ("fixed-3", "fixed-7")
    ]


class Witness:
    """Asks one engine everything and keeps what it left."""

    def __init__(self, desk: Desk, sizes: Sizes) -> None:
        self.desk, self.sizes = desk, sizes
        self.kept: dict[Key, Kept] = {}
        self.played = self.desk.executor.name

    def ask_all(self, box: Box, share: float) -> None:
        """As many cases as fit into this share of the time that is left."""
        own = Box(box.left * share)
        with in_pieces(self.desk):
            self._ask_all(own)
        box.cut = box.cut or own.cut

    def _ask_all(self, box: Box) -> None:
        for law, arm, prompt in cases(self.desk.drafts, self.sizes.equality_questions):
            if box.over:
                return
            self._single(law, arm, prompt)
            if prompt == 0 and law != SEEDED and arm.name in (OFF, "fixed-3", ADAPTIVE):
                self._branch(law, arm, prompt)

    def _single(self, law: str, arm: Arm, prompt: int) -> None:
        """One request, computed whole, and for some a second turn after it."""
        self.desk.forget_prefixes()
        text, tokens = QUESTIONS[prompt], self.sizes.equality_tokens
        told = self._ask((law, arm.name, SINGLE, prompt), text, law, arm, tokens)
        if arm.name in _WITH_SECOND_TURN and prompt < _SECOND_PROMPTS:
            before = [(text, told.finished.text)]
            key = law, arm.name, SECOND, prompt
            self._ask(key, FOLLOW_UP, law, arm, tokens // 2, before=before)

    def _ask(self, key: Key, text: str, law: str, arm: Arm, tokens: int, **more: Any) -> Told:
        arm, sampling = under(law, arm)
        with plays(self.desk) as seen, records() as read:
            told = self.desk.ask(text, arm, sampling, tokens, **more)
        slot = seen.slots[0][0]
        own = tuple(lanes[0] for lanes in read[: len(told.rounds)])
        state = self._state(slot, arm.speculation.learned)
        self.kept[key] = Kept(told.tokens, own, state, told.restored)
        return told

    def _branch(self, law: str, arm: Arm, prompt: int) -> None:
        """Equal prompts at once: the first computes, the others copy."""
        self.desk.forget_prefixes()
        arm, sampling = under(law, arm)
        tokens, count = self.sizes.equality_tokens, self.desk.lanes
        asked = [self.desk.request(QUESTIONS[prompt], arm, sampling, tokens) for _ in range(count)]
        for lane, told in enumerate(self.desk.answer(*asked)):
            key = law, arm.name, BRANCH, lane
            self.kept[key] = Kept(told.tokens, (), {}, told.restored)

    def _state(self, slot: int, learned: bool) -> dict[str, Tensor]:
        """Copies of the slot's rows in every state that the request kept up, and of its columns in
        the pool. A head's own rows pair two tokens each, so there is one fewer of them."""
        engine = self.desk.engine
        rows = len(engine.residents.held(slot))
        found = {f"pool.{n}": t[slot].clone() for n, t in engine.pool.tensors().items()}
        states = [("target", state, rows) for state in self.desk.executor.target.states()]
        head = getattr(engine.drafter, "learned", None)
        if head is not None:
            states.append(("head", head.hidden, rows))
            states += [("head", head.cache, max(rows - 1, 0))] if learned else []
        for whose, state, count in states:
            saved = state.snapshot(slot, count)
            found |= {f"{whose}.{type(state).__name__}.{n}": t for n, t in saved.items()}
        return found


def under(law: str, arm: Arm) -> tuple[Arm, Any]:
    """The arm and the sampling of a law; `seeded ratio` draws by ratio from a seed."""
    if law != SEEDED:
        return arm, LAWS[law]
    return replace(arm, speculation=replace(arm.speculation, acceptance="ratio")), LAWS["match"]


def difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> tuple[float, float, str]:
    """Largest absolute difference of two states, the largest relative to the largest value of its
    tensor, and the tensor with that one."""
    absolute, relative, where = 0.0, 0.0, ""
    for name in left:
        if left[name].shape != right[name].shape:
            return float("inf"), float("inf"), name
        one, other = left[name].double(), right[name].double()
        if not one.numel() or torch.equal(one, other):
            continue
        apart = float((one - other).abs().max())
        share = apart / max(float(one.abs().max()), 1e-30)
        absolute = max(absolute, apart)
        if share > relative:
            relative, where = share, name
    return absolute, relative, where


def first_apart(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Where two answers part; -1 if they are equal."""
    if left == right:
        return -1
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def compare(run: Run, eager: Witness, graph: Witness) -> None:
    """A row for every answer that both gave."""
    for key, one in eager.kept.items():
        other = graph.kept.get(key)
        if other is None:
            continue
        law, arm, case, number = key
        planned = (arm == OFF or arm in FIXED) and case != BRANCH
        shown = planned and bool(one.records) and bool(other.records)
        apart = first_apart(one.tokens, other.tokens)
        compared = apart < 0 and bool(one.state)
        absolute, relative, where = (
            difference(one.state, other.state) if compared else (0.0, 0.0, "")
        )
        run.table("equality").add(
            law=law, arm=arm, case=case, number=number, same_plans=int(planned),
            tokens=len(one.tokens), same_tokens=int(apart < 0), first_apart=apart,
            records=len(one.records) if shown else 0,
            same_records=int(one.records == other.records) if shown else "",
            states=len(one.state) if compared else 0, state_abs=absolute, state_rel=relative,
            state_worst=where, restored=one.restored, restored_other=other.restored,
        )  # fmt: skip


def compare_widths(run: Run, executor: str, witness: Witness) -> None:
    """A row for every answer whose law promises the text of `off`."""
    for (law, arm, case, number), kept in witness.kept.items():
        if law == SEEDED or (arm == OFF and case == SINGLE):
            continue
        prompt = 0 if case == BRANCH else number
        plain = witness.kept.get((law, OFF, case if case == SECOND else SINGLE, prompt))
        if plain is not None and not (case == SECOND and arm == OFF):
            apart = first_apart(plain.tokens, kept.tokens)
            run.table("widths-equal").add(
                executor=executor, law=law, arm=arm, case=case, number=number,
                tokens=len(plain.tokens), same_tokens=int(apart < 0), first_apart=apart,
            )  # fmt: skip


def measure(run: Run, desks: Desks, sizes: Sizes, executor: str, box: Box) -> dict[str, Any]:
    """The section."""
    made = [desks.get(name, lanes=max(sizes.lanes)) for name in ("eager", executor)]
    witnesses = [Witness(desk, sizes) for desk in made]
    box.begin()
    for witness, share in zip(witnesses, (0.6, 1.0), strict=True):
        witness.ask_all(box, share)
        compare_widths(run, witness.played, witness)
    compare(run, *witnesses)
    return {"executors": [desk.boot_figures for desk in made]}
